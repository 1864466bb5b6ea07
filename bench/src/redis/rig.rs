//! Redis server on one core, all callers on another.

use slidegate_testkit::{Flavour, Server, until};
use tokio::runtime::Runtime;

use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, count, pin};

pub(crate) struct Rig {
    pub(crate) server: Server,
    /// Single-threaded, because all callers run on one core.
    pub(crate) runtime: Runtime,
}

impl Rig {
    pub(crate) fn start() -> Self {
        pin(std::process::id(), CALLERS_CORE);
        let server = Server::start(Flavour::Redis);
        pin(server.pid(), SERVER_CORE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { server, runtime }
    }

    /// URL with a budget long enough that other work on the machine does not end the run with a timeout.
    pub(crate) fn long_budget_url(&self) -> String {
        format!("{}?budget_ms=10000", self.server.url())
    }

    pub(crate) fn port(&self) -> String {
        self.server.port().to_string()
    }

    pub(crate) fn version(&self) -> String {
        self.field("redis_version")
    }

    pub(crate) fn empty(&self) {
        self.server.command(&["FLUSHALL"]).ok();
    }

    /// Runs `work`, which makes `decisions` decisions and returns its rate per second.
    pub(crate) fn sample(&self, decisions: usize, work: impl FnOnce() -> f64) -> Sample {
        let before = self.cpu_s();
        let per_second = work();
        Sample { per_second, server_us: (self.cpu_s() - before) * 1e6 / count(decisions) }
    }

    /// Returns the bytes per key after `fill` has written `keys` keys.
    pub(crate) fn bytes_per_key(&self, keys: usize, fill: impl FnOnce()) -> f64 {
        self.empty();
        let before = self.settled_memory();
        fill();
        let taken = self.settled_memory() - before;
        self.empty();
        taken / count(keys)
    }

    /// The server rehashes a grown table step by step and frees the old one at the end.
    fn settled_memory(&self) -> f64 {
        let (mut last, mut calm) = (0.0_f64, 0);
        until("the server's memory is settled", || {
            let now = self.number("used_memory");
            calm = if (now - last).abs() < 4096.0 { calm + 1 } else { 0 };
            last = now;
            if calm == 80 { Ok(now) } else { Err(format!("{now} bytes")) }
        })
    }

    fn cpu_s(&self) -> f64 {
        self.number("used_cpu_user") + self.number("used_cpu_sys")
    }

    fn number(&self, name: &str) -> f64 {
        self.field(name).parse().expect("a number")
    }

    fn field(&self, name: &str) -> String {
        let info = self.server.command(&["INFO"]).text();
        let field = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        field.expect("INFO reports the field").to_owned()
    }
}
