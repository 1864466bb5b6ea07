//! The server on one core, everybody who calls it on another.

use std::fs;

use slidegate_testkit::Postgres;
use tokio::runtime::Runtime;

use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, count, pin};

/// The kernel's unit for a process's time, on all that this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) struct Rig {
    pub(crate) server: Postgres,
    /// Of one thread, for all callers are on one core.
    pub(crate) runtime: Runtime,
}

impl Rig {
    pub(crate) fn start() -> Self {
        pin(std::process::id(), CALLERS_CORE);
        // Nobody waits for a disk. Slidegate says so itself where it matters; the others shall have it no worse.
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

    /// The server as it was at first.
    pub(crate) fn empty(&self) {
        self.server.sql("DROP SCHEMA IF EXISTS slidegate CASCADE; DROP TABLE IF EXISTS limits, upserts");
    }

    pub(crate) fn text(&self, sql: &str) -> String {
        self.server.sql(sql)[0][0].clone().expect("it is not null")
    }

    pub(crate) fn number(&self, sql: &str) -> usize {
        self.text(sql).parse().expect("a number")
    }

    /// Runs `work`, which makes so many decisions and says how many it made in a second.
    pub(crate) fn sample(&self, decisions: usize, work: impl FnOnce() -> f64) -> Sample {
        let before = self.cpu_s();
        let per_second = work();
        Sample { per_second, server_us: (self.cpu_s() - before) * 1e6 / count(decisions) }
    }

    /// Of the server and its children, those that have ended included.
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

/// Own time, user and system, and that of children that were waited for. Nothing of a process that has just ended.
fn times(process: u32) -> [u64; 4] {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may have spaces in it.
    let mut fields = line.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    [(); 4].map(|()| fields.next().and_then(|field| field.parse().ok()).unwrap_or(0))
}
