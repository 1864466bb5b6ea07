//! The processes of one server: the postmaster and its children, each of which is a process group of its own.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::Process;
use crate::still::until_still;
use crate::wait::until;

/// Stops all of them, and waits until they stand still.
pub(crate) fn stop(postmaster: &Process, data: &Path) {
    assert!(freeze(postmaster), "the server has ended:\n{}", postmaster.log_tail());
    let members = members(data);
    signal(&members, Signal::STOP);
    for pid in members {
        until_still(number(pid));
    }
}

/// Lets all of them go on.
pub(crate) fn go_on(postmaster: &Process, data: &Path) {
    signal(&members(data), Signal::CONT);
    postmaster.signal(Signal::CONT);
}

/// Kills all of them, also those that outlived a postmaster, and waits until they are gone.
pub(crate) fn kill(postmaster: &Process, data: &Path) {
    // It would otherwise see a child die and start others.
    freeze(postmaster);
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

/// Stops the postmaster, so that it neither starts children nor buries them, if it is alive.
fn freeze(postmaster: &Process) -> bool {
    let is_alive = postmaster.try_signal(Signal::STOP);
    until_still(postmaster.pid());
    is_alive
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

fn signal(members: &[Pid], signal: Signal) {
    for pid in members {
        // Fails only if it has ended meanwhile.
        let _ = kill_process(*pid, signal);
    }
}

/// Those that work in the data folder. The dead do not, even before they are buried.
fn members(data: &Path) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("this is Linux").flatten();
    let members =
        processes.filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|at| at == data));
    members.filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?)).collect()
}
