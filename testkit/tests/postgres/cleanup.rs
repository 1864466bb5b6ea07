use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use slidegate_testkit::{Postgres, until};

use super::faults::busy_backend;
use super::{exists, is_mounted_in, processes};

#[test]
fn a_server_is_removed_after_a_panic() {
    let (send, received) = std::sync::mpsc::channel();
    let failed = std::thread::spawn(move || {
        let postgres = Postgres::builder().data_on_tmpfs(100).start();
        send.send((postgres.pid(), postgres.folder().to_owned())).unwrap();
        panic!("this panic belongs to the test");
    });
    assert!(failed.join().is_err());
    let (pid, folder) = received.recv().unwrap();
    assert!(!exists(pid) && !folder.exists() && !is_mounted_in(&folder) && processes(&folder).is_empty());
}

/// Runs in a separate process, which the next test kills.
#[test]
#[ignore = "runs until it is killed"]
fn hold_servers_until_killed() {
    let servers = [Postgres::builder().data_on_tmpfs(100).start(), Postgres::start(), Postgres::start()];
    busy_backend(&servers[1]);
    servers[2].stop_signal();
    let folders: Vec<_> = servers.iter().map(|server| server.folder().to_str().unwrap()).collect();
    println!("holding {}", folders.join(" "));
    loop {
        std::thread::park();
    }
}

#[test]
fn servers_are_removed_after_the_test_process_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "cleanup::hold_servers_until_killed"]);
    let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();

    let mut output = String::new();
    let mut stdout = holder.stdout.take().unwrap();
    let folders: Vec<PathBuf> = loop {
        let mut bytes = [0; 256];
        let count = stdout.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "the holder has ended: {output}");
        output.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        let line = output.split_once("holding ").and_then(|(_, rest)| rest.split_once('\n'));
        if let Some((folders, _)) = line {
            break folders.split(' ').map(PathBuf::from).collect();
        }
    };
    assert!(folders.len() == 3 && folders.iter().all(|folder| processes(folder).len() > 3));
    assert!(is_mounted_in(&folders[0]));
    holder.kill().unwrap();
    holder.wait().unwrap();
    for folder in &folders {
        until("the folder and its processes are gone", || {
            let left = (processes(folder), folder.exists(), is_mounted_in(folder));
            if left == (Vec::new(), false, false) { Ok(()) } else { Err(format!("{folder:?}: {left:?}")) }
        });
    }
}
