//! Sentinels of a master.

use std::net::{Ipv4Addr, SocketAddr};

use crate::builder::{Role, ServerBuilder};
use crate::tls::Tls;
use crate::wait::until;
use crate::{Reply, Server};

/// A master without a reply for this time counts as down. A failover still takes some seconds.
const DOWN_AFTER_MS: u32 = 300;
const FAILOVER_TIMEOUT_MS: u32 = 3_000;

/// Group of sentinels. A majority has to agree that the master is down.
#[derive(Debug)]
pub struct Sentinels {
    name: String,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts three sentinels that watch `master` under `name`. Waits until they know each other and all replicas, so
    /// start the replicas first.
    pub fn start(master: &Server, name: &str) -> Self {
        Self::start_many(3, master, name)
    }

    /// Starts one sentinel that uses TLS with its clients and with the master, which must have TLS enabled.
    pub fn start_tls(master: &Server, name: &str) -> Self {
        let tls = Tls::shared_args(master.tls().authority());
        let tls_options = ["--tls-replication", "yes"].map(String::from);
        Self::build(1, master, name, master.tls().port(), |builder| builder.tls().args(tls).args(tls_options))
    }

    /// Starts `count` sentinels.
    pub fn start_many(count: usize, master: &Server, name: &str) -> Self {
        Self::build(count, master, name, master.port(), |builder| builder)
    }

    fn build(
        count: usize,
        master: &Server,
        name: &str,
        port: u16,
        set_up: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let quorum = count / 2 + 1;
        let password = master.password.as_ref();
        let password = password.map_or(String::new(), |word| format!("sentinel auth-pass {name} {word}\n"));
        let config = format!(
            "sentinel monitor {name} 127.0.0.1 {port} {quorum}\n\
             sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {name} {FAILOVER_TIMEOUT_MS}\n\
             {password}"
        );
        let builder = ServerBuilder::new(master.flavour(), Role::Sentinel).file("sentinel.conf", &config);
        let builder = set_up(builder);
        let sentinels = (0..count).map(|_| builder.clone().start()).collect();
        let started = Self { name: name.to_owned(), sentinels };
        started.wait_discovered(master);
        started
    }

    /// Addresses of the sentinels.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Server::address).collect()
    }

    /// The sentinels, so that a test can kill or stop each of them.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Returns the master's address if all living sentinels agree on it.
    pub fn master(&self) -> Result<SocketAddr, String> {
        let alive = self.sentinels.iter().filter(|sentinel| sentinel.is_alive());
        let mut masters = alive.map(|sentinel| self.master_by(sentinel)).collect::<Result<Vec<_>, _>>()?;
        masters.dedup();
        match masters[..] {
            [master] => Ok(master),
            _ => Err(format!("the sentinels do not agree: {masters:?}")),
        }
    }

    /// Waits until all living sentinels agree on a master other than `former`, and returns its address.
    pub fn wait_failover(&self, former: SocketAddr) -> SocketAddr {
        until("the sentinels have another master", || match self.master()? {
            master if master == former => Err(format!("still {master}")),
            master => Ok(master),
        })
    }

    fn master_by(&self, sentinel: &Server) -> Result<SocketAddr, String> {
        let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name];
        let reply = sentinel.try_command(&command).map_err(|error| error.to_string())?;
        let Reply::Array(parts) = &reply else { return Err(format!("{reply:?}")) };
        let port = parts[1].text().parse::<u16>().map_err(|error| format!("{error}: {reply:?}"))?;
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }

    fn wait_discovered(&self, master: &Server) {
        let others = (self.sentinels.len() - 1).to_string();
        let replicas =
            master.field(&["INFO", "replication"], "connected_slaves").expect("the master responds");
        for sentinel in &self.sentinels {
            until("the sentinels know each other and the replicas", || {
                let seen = fields(sentinel.command(&["SENTINEL", "MASTER", &self.name]));
                let is_discovered = has(&seen, "flags", "master")
                    && has(&seen, "num-other-sentinels", &others)
                    && has(&seen, "num-slaves", &replicas)
                    && self.can_promote(sentinel);
                if is_discovered { Ok(()) } else { Err(format!("{seen:?}")) }
            });
        }
    }

    /// Returns whether the sentinel has a connection to all replicas. It promotes no replica before that.
    fn can_promote(&self, sentinel: &Server) -> bool {
        let replicas = sentinel.command(&["SENTINEL", "REPLICAS", &self.name]).array();
        let is_ready = |seen: Vec<_>| has(&seen, "flags", "slave") && has(&seen, "master-link-status", "ok");
        replicas.into_iter().map(fields).all(is_ready)
    }
}

/// Splits a flat array into pairs of name and value.
fn fields(reply: Reply) -> Vec<(String, String)> {
    let Reply::Array(parts) = reply else { return Vec::new() };
    parts.chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

fn has(fields: &[(String, String)], name: &str, value: &str) -> bool {
    fields.iter().any(|field| field.0 == name && field.1 == value)
}
