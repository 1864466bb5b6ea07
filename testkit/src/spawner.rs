//! The thread that starts processes.
//!
//! `setpriv --pdeathsig` ties a process to the *thread* that started it, and a test's thread ends before the test
//! binary does. All are started from this one, so that a server in a `static` outlives the test that came first, and
//! dies with the test binary however that ends.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use crate::binary::on_path;

struct Order {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (sender, orders) = channel::<Order>();
        std::thread::spawn(move || {
            for mut order in orders {
                // Nobody waits any more if its thread has panicked meanwhile.
                let _ = order.reply.send(order.command.spawn());
            }
        });
        sender
    });

    let (reply, child) = channel();
    ORDERS.send(Order { command, reply }).expect("the thread that starts processes never ends");
    child.recv().expect("the thread that starts processes never ends")
}

/// A command that is killed together with this process, where `setpriv` can see to it.
pub(crate) fn mortal(program: &Path) -> Command {
    match on_path("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}
