//! PostgreSQL in the fault matrix.

use slidegate::store::PostgresStore;
use slidegate_testkit::{FaultProxy, Postgres};

use crate::backend::Backend;
use crate::fault::Fault;

pub(crate) struct PostgresBehindProxy {
    server: Postgres,
    proxy: FaultProxy,
    url: String,
}

impl Backend for PostgresBehindProxy {
    type Store = PostgresStore;

    const NAME: &'static str = "PostgreSQL";
    const FULL: Fault = Fault::DiskFull;
    /// Each client is a server process; 1,000 are too many for two cores.
    const CLIENTS: usize = 200;
    const HELLO: &'static [u8] = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    const REJECTED: u8 = b'E';

    fn start(fault: Fault) -> Self {
        let builder = Postgres::builder();
        let server = match fault {
            Fault::DiskFull => builder.data_on_tmpfs(100).start(),
            Fault::Reconnect => builder.setting("max_connections", "500").start(),
            _ => builder.start(),
        };
        let proxy = FaultProxy::start(server.address());
        let url = match fault {
            Fault::Down => format!("{}?durable=true&sync=local", server.url()),
            _ => format!("postgres://postgres@{}/postgres", proxy.address()),
        };
        Self { server, proxy, url }
    }

    async fn connect(&self) -> PostgresStore {
        PostgresStore::connect(&self.url).await.unwrap()
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
        let value = if is_read_only { "on" } else { "off" };
        self.server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        self.server.sql("SELECT pg_reload_conf()");
    }

    fn fill(&self) {
        self.server.fill_disk();
    }

    fn free_space(&self) {
        self.server.free_disk();
    }
}
