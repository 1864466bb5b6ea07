//! Replica of a Redis or Valkey server.

use std::ops::Deref;

use crate::wait::until;
use crate::{FaultProxy, Server, ServerBuilder};

/// A replica. Dereferences to its [`Server`].
#[derive(Debug)]
pub struct Replica {
    server: Server,
}

impl Replica {
    /// Starts a replica of the master's flavour and waits until it is in sync.
    pub fn of(master: &Server) -> Self {
        Self::build(Server::builder(master.flavour()), master)
    }

    /// Starts a replica that connects to the master through a proxy.
    pub fn through_proxy(proxy: &FaultProxy, master: &Server) -> Self {
        Self::follow(Server::builder(master.flavour()), proxy.address().port(), master)
    }

    /// Starts a replica from a builder.
    pub fn build(builder: ServerBuilder, master: &Server) -> Self {
        Self::follow(builder, master.port(), master)
    }

    fn follow(builder: ServerBuilder, port: u16, master: &Server) -> Self {
        let server = builder.args(["--replicaof", &format!("127.0.0.1 {port}")]).start();
        let replica = Self { server };
        replica.wait_in_sync(master);
        replica
    }

    /// Waits until the replica has everything that the master had at the time of the call.
    pub fn wait_in_sync(&self, master: &Server) {
        wait_in_sync(&self.server, master);
    }

    /// Makes the replica a master.
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

/// Waits until `replica` has everything that `master` had at the time of the call.
pub(crate) fn wait_in_sync(replica: &Server, master: &Server) {
    let info = ["INFO", "replication"];
    let offset = |server: &Server, name| {
        let offset = server.field(&info, name)?;
        offset.parse::<u64>().map_err(|error| format!("{error}: {offset}"))
    };
    let wanted = offset(master, "master_repl_offset").expect("the master responds");
    until("the replica is in sync", || {
        let link = replica.field(&info, "master_link_status")?;
        let reached = offset(replica, "slave_repl_offset")?;
        if link == "up" && reached >= wanted { Ok(()) } else { Err(format!("{link}, {reached} of {wanted}")) }
    });
}
