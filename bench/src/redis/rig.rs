//! The server on one core, everybody who calls it on another.

use slidegate_testkit::{Flavour, Server, until};
use tokio::runtime::Runtime;

use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, count, pin};

pub(crate) struct Rig {
    pub(crate) server: Server,
    /// Of one thread, for all callers are on one core.
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

    /// Tolerates what would be an error elsewhere: other work on the machine must not end the run.
    pub(crate) fn patient_url(&self) -> String {
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

    /// Runs `work`, which makes so many decisions and says how many it made in a second.
    pub(crate) fn sample(&self, decisions: usize, work: impl FnOnce() -> f64) -> Sample {
        let before = self.cpu_s();
        let per_second = work();
        Sample { per_second, server_us: (self.cpu_s() - before) * 1e6 / count(decisions) }
    }

    /// Bytes that each of `keys` takes once `fill` has written them all.
    pub(crate) fn bytes_per_key(&self, keys: usize, fill: impl FnOnce()) -> f64 {
        self.empty();
        let before = self.settled_memory();
        fill();
        let taken = self.settled_memory() - before;
        self.empty();
        taken / count(keys)
    }

    /// The server moves a grown table to its new place bit by bit, and frees the old one at the end.
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
        field.expect("INFO says it").to_owned()
    }
}
