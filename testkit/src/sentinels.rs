//! Sentinels that watch a master.

use std::net::{Ipv4Addr, SocketAddr};

use crate::builder::{Role, ServerBuilder};
use crate::tls::Tls;
use crate::wait::until;
use crate::{Reply, Server};

/// A master that has not answered for so long is down. Failing over takes some seconds all the same.
const DOWN_AFTER_MS: u32 = 300;
const FAILOVER_TIMEOUT_MS: u32 = 3_000;

/// Several sentinels, a majority of which has to agree that the master is down.
#[derive(Debug)]
pub struct Sentinels {
    name: String,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts three that watch `master` under `name`, and waits until they know each other and all its replicas. Start
    /// those first.
    pub fn start(master: &Server, name: &str) -> Self {
        Self::start_many(3, master, name)
    }

    /// Starts one that speaks TLS, with those who ask it and with the master, which does.
    pub fn start_tls(master: &Server, name: &str) -> Self {
        let tls = Tls::shared_args(master.tls().authority());
        let speaks = ["--tls-replication", "yes"].map(String::from);
        Self::build(1, master, name, master.tls().port(), |builder| builder.tls().args(tls).args(speaks))
    }

    /// Starts as many as are wanted.
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
        started.wait_acquainted(master);
        started
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Server::address).collect()
    }

    /// Each by itself, to be killed or stopped.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Where the master is, if all sentinels that are alive agree.
    pub fn master(&self) -> Result<SocketAddr, String> {
        let alive = self.sentinels.iter().filter(|sentinel| sentinel.is_alive());
        let mut masters = alive.map(|sentinel| self.master_by(sentinel)).collect::<Result<Vec<_>, _>>()?;
        masters.dedup();
        match masters[..] {
            [master] => Ok(master),
            _ => Err(format!("they do not agree: {masters:?}")),
        }
    }

    /// Waits until all sentinels that are alive agree on another master than `former`, and gives its address.
    pub fn wait_failover(&self, former: SocketAddr) -> SocketAddr {
        until("the sentinels have another master", || match self.master()? {
            master if master == former => Err(format!("still {master}")),
            master => Ok(master),
        })
    }

    fn master_by(&self, sentinel: &Server) -> Result<SocketAddr, String> {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name];
        let reply = sentinel.try_command(&ask).map_err(|error| error.to_string())?;
        let Reply::Array(parts) = &reply else { return Err(format!("{reply:?}")) };
        let port = parts[1].text().parse::<u16>().map_err(|error| format!("{error}: {reply:?}"))?;
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }

    fn wait_acquainted(&self, master: &Server) {
        let others = (self.sentinels.len() - 1).to_string();
        let replicas =
            master.field(&["INFO", "replication"], "connected_slaves").expect("the master answers");
        for sentinel in &self.sentinels {
            until("the sentinels know each other and the replicas", || {
                let seen = fields(sentinel.command(&["SENTINEL", "MASTER", &self.name]));
                let is_acquainted = has(&seen, "flags", "master")
                    && has(&seen, "num-other-sentinels", &others)
                    && has(&seen, "num-slaves", &replicas)
                    && self.can_promote(sentinel);
                if is_acquainted { Ok(()) } else { Err(format!("{seen:?}")) }
            });
        }
    }

    /// Whether it has heard from all replicas itself: it promotes none that it knows but by name.
    fn can_promote(&self, sentinel: &Server) -> bool {
        let replicas = sentinel.command(&["SENTINEL", "REPLICAS", &self.name]).array();
        let is_ready = |seen: Vec<_>| has(&seen, "flags", "slave") && has(&seen, "master-link-status", "ok");
        replicas.into_iter().map(fields).all(is_ready)
    }
}

/// Names and values by turns.
fn fields(reply: Reply) -> Vec<(String, String)> {
    let Reply::Array(parts) = reply else { return Vec::new() };
    parts.chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

fn has(fields: &[(String, String)], name: &str, value: &str) -> bool {
    fields.iter().any(|field| field.0 == name && field.1 == value)
}
