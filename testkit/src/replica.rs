//! A server that follows another.

use std::ops::Deref;

use crate::wait::until;
use crate::{FaultProxy, Server, ServerBuilder};

/// A replica; all that a [`Server`] can do, it can.
#[derive(Debug)]
pub struct Replica {
    server: Server,
}

impl Replica {
    /// Starts a server of the master's flavour as its replica, and waits until it has all the master has.
    pub fn of(master: &Server) -> Self {
        Self::build(Server::builder(master.flavour()), master)
    }

    /// Starts one that hears from the master by a proxy in front of it.
    pub fn by_way_of(proxy: &FaultProxy, master: &Server) -> Self {
        Self::follow(Server::builder(master.flavour()), proxy.address().port(), master)
    }

    /// Starts one that is made to measure.
    pub fn build(builder: ServerBuilder, master: &Server) -> Self {
        Self::follow(builder, master.port(), master)
    }

    fn follow(builder: ServerBuilder, port: u16, master: &Server) -> Self {
        let server = builder.args(["--replicaof", &format!("127.0.0.1 {port}")]).start();
        let replica = Self { server };
        replica.wait_in_sync(master);
        replica
    }

    /// Waits until it has all that the master had when this was called.
    pub fn wait_in_sync(&self, master: &Server) {
        wait_in_sync(&self.server, master);
    }

    /// Makes it a master.
    pub fn promote(&self) {
        self.server.command(&["REPLICAOF", "NO", "ONE"]).ok();
    }
}

impl Deref for Replica {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Waits until `replica` has all that its master had when this was called.
pub(crate) fn wait_in_sync(replica: &Server, master: &Server) {
    let info = ["INFO", "replication"];
    let offset = |server: &Server, name| {
        let offset = server.field(&info, name)?;
        offset.parse::<u64>().map_err(|error| format!("{error}: {offset}"))
    };
    let wanted = offset(master, "master_repl_offset").expect("the master answers");
    until("the replica is in sync", || {
        let link = replica.field(&info, "master_link_status")?;
        let reached = offset(replica, "slave_repl_offset")?;
        if link == "up" && reached >= wanted { Ok(()) } else { Err(format!("{link}, {reached} of {wanted}")) }
    });
}
