//! Thread that spawns all child processes.
//!
//! `setpriv --pdeathsig` ties a process to the *thread* that spawned it, and a test's thread ends before the test
//! binary. This thread spawns all processes. So a server in a `static` outlives the first test that uses it, and ends
//! with the test binary.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use crate::binary::on_path;

struct SpawnRequest {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static REQUESTS: LazyLock<Sender<SpawnRequest>> = LazyLock::new(|| {
        let (sender, requests) = channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for mut request in requests {
                // Fails if the requesting thread has panicked meanwhile.
                let _ = request.reply.send(request.command.spawn());
            }
        });
        sender
    });

    let (reply, child) = channel();
    REQUESTS.send(SpawnRequest { command, reply }).expect("the thread that starts processes never ends");
    child.recv().expect("the thread that starts processes never ends")
}

/// Returns a command whose process is killed together with this one, if `setpriv` is available.
pub(crate) fn dying_with_parent(program: &Path) -> Command {
    match on_path("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}
