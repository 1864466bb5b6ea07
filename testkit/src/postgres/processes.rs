//! Processes of one server: the postmaster and its children. Each child is its own process group.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::Process;
use crate::stopped::until_stopped;
use crate::wait::until;

/// Stops all processes with SIGSTOP and waits until they have stopped.
pub(crate) fn stop(postmaster: &Process, data: &Path) {
    assert!(stop_postmaster(postmaster), "the server has ended:\n{}", postmaster.log_tail());
    let members = members(data);
    signal(&members, Signal::STOP);
    for pid in members {
        until_stopped(number(pid));
    }
}

/// Continues all processes with SIGCONT.
pub(crate) fn resume(postmaster: &Process, data: &Path) {
    signal(&members(data), Signal::CONT);
    postmaster.signal(Signal::CONT);
}

/// Kills all processes, including backends that outlived their postmaster, and waits until they have ended.
pub(crate) fn kill(postmaster: &Process, data: &Path) {
    // A running postmaster would replace a child that dies.
    stop_postmaster(postmaster);
    let own = postmaster.pid();
    let children = members(data).into_iter().filter(|pid| number(*pid) != own);
    signal(&children.collect::<Vec<_>>(), Signal::KILL);
    postmaster.kill();
    until("they are gone", || {
        let rest = members(data);
        signal(&rest, Signal::KILL);
        if rest.is_empty() { Ok(()) } else { Err(format!("{rest:?} are there")) }
    });
}

/// Stops the postmaster if it is alive, so that it neither starts nor reaps children. Returns whether it was alive.
fn stop_postmaster(postmaster: &Process) -> bool {
    let is_alive = postmaster.try_signal(Signal::STOP);
    until_stopped(postmaster.pid());
    is_alive
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

fn signal(members: &[Pid], signal: Signal) {
    for pid in members {
        // Fails only if the process has ended meanwhile.
        let _ = kill_process(*pid, signal);
    }
}

/// Returns the processes that run in the data folder. Zombies have no working folder.
fn members(data: &Path) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("this is Linux").flatten();
    let members =
        processes.filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|at| at == data));
    members.filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?)).collect()
}
