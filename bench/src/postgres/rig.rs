//! PostgreSQL server on one core, all callers on another.

use std::fs;

use slidegate_testkit::Postgres;
use tokio::runtime::Runtime;

use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, count, pin};

/// Linux counts CPU time in ticks of 10 ms on all machines that run this.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) struct Rig {
    pub(crate) server: Postgres,
    /// Single-threaded, because all callers run on one core.
    pub(crate) runtime: Runtime,
}

impl Rig {
    pub(crate) fn start() -> Self {
        pin(std::process::id(), CALLERS_CORE);
        // No commit waits for the disk. Slidegate sets this for its own transactions; its peers get the same.
        let server = Postgres::builder()
            .setting("synchronous_commit", "off")
            .setting("shared_buffers", "128MB")
            .start();
        pin(server.pid(), SERVER_CORE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { server, runtime }
    }

    pub(crate) fn version(&self) -> String {
        self.text("SHOW server_version")
    }

    /// Drops all tables of the benchmark.
    pub(crate) fn empty(&self) {
        self.server.sql("DROP SCHEMA IF EXISTS slidegate CASCADE; DROP TABLE IF EXISTS limits, upserts");
    }

    pub(crate) fn text(&self, sql: &str) -> String {
        self.server.sql(sql)[0][0].clone().expect("the value is not null")
    }

    pub(crate) fn number(&self, sql: &str) -> usize {
        self.text(sql).parse().expect("a number")
    }

    /// Runs `work`, which makes `decisions` decisions and returns its rate per second.
    pub(crate) fn sample(&self, decisions: usize, work: impl FnOnce() -> f64) -> Sample {
        let before = self.cpu_s();
        let per_second = work();
        Sample { per_second, server_us: (self.cpu_s() - before) * 1e6 / count(decisions) }
    }

    /// CPU time of the server and its children, including those that have ended.
    fn cpu_s(&self) -> f64 {
        let postmaster = self.server.pid();
        let own: u64 = times(postmaster).iter().sum();
        let path = format!("/proc/{postmaster}/task/{postmaster}/children");
        let children = fs::read_to_string(path).expect("the server is there");
        let living = children.split_whitespace().filter_map(|child| child.parse().ok());
        let theirs: u64 = living.map(|child| times(child)[..2].iter().sum::<u64>()).sum();
        count((own + theirs) as usize) / TICKS_PER_SECOND
    }
}

/// User and system time of a process, then those of its reaped children. Zeros for a process that has just ended.
fn times(process: u32) -> [u64; 4] {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The process name in parentheses may contain spaces.
    let mut fields = line.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    [(); 4].map(|()| fields.next().and_then(|field| field.parse().ok()).unwrap_or(0))
}
