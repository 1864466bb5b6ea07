//! Redis in the fault matrix.

use slidegate::store::RedisStore;
use slidegate_testkit::{FaultProxy, Flavour, Server};

use crate::backend::Backend;
use crate::fault::Fault;

pub(crate) struct RedisBehindProxy {
    server: Server,
    proxy: FaultProxy,
    url: String,
}

impl Backend for RedisBehindProxy {
    type Store = RedisStore;

    const NAME: &'static str = "Redis";
    const FULL: Fault = Fault::OutOfMemory;
    const CLIENTS: usize = 1000;
    const HELLO: &'static [u8] = b"PING\r\n";
    const REJECTED: u8 = b'-';

    fn start(fault: Fault) -> Self {
        let builder = Server::builder(Flavour::Redis);
        let server = match fault {
            // The append-only file is written before the response, so the counts survive a kill.
            Fault::Down => builder.args(["--appendonly", "yes"]).start(),
            _ => builder.start(),
        };
        let proxy = FaultProxy::start(server.address());
        let url = if fault == Fault::Down { server.url() } else { proxy.url() };
        Self { server, proxy, url }
    }

    async fn connect(&self) -> RedisStore {
        RedisStore::connect(&self.url).await.unwrap()
    }

    fn proxy(&self) -> &FaultProxy {
        &self.proxy
    }

    fn kill(&self) {
        self.server.kill();
    }

    fn restart(&self) {
        self.server.restart();
    }

    fn set_read_only(&self, is_read_only: bool) {
        // Port 1 is closed: the server becomes a replica of an unreachable primary and keeps its data.
        let [host, port] = if is_read_only { ["127.0.0.1", "1"] } else { ["NO", "ONE"] };
        self.server.command(&["REPLICAOF", host, port]).ok();
    }

    fn fill(&self) {
        self.server.command(&["SET", "ballast", &"x".repeat(2_000_000)]).ok();
        self.server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb"]).ok();
    }

    fn free_space(&self) {
        self.server.command(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    }
}
