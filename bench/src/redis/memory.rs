//! Server memory per key, as written by Slidegate and by common layouts.

use redis::{Pipeline, cmd};
use slidegate::store::{RedisStore, StoreLimiter};
use slidegate::{ManualClock, Policy};

use super::callers::KEYS;
use super::rig::Rig;
use crate::traffic::key;

/// Enough keys for exact bytes; with 200 entries each, more would take minutes.
const LONG_KEYS: usize = 2000;
const NOW_MS: u64 = 1_800_000_000_000;
const WINDOW_MS: u64 = 60_000;

/// Bytes per key of common layouts.
pub(crate) struct UsualLayouts {
    pub(crate) counter: f64,
    pub(crate) two_strings: f64,
    pub(crate) one_hash: f64,
    pub(crate) packed: f64,
}

pub(crate) fn usual_layouts(rig: &Rig) -> UsualLayouts {
    eprintln!("memory of the usual layouts …");
    let name = |number| format!("rate:{}", key(number));
    let life = 2 * WINDOW_MS;
    let string = |pipeline: &mut Pipeline, name: String, value: &[u8]| {
        pipeline.add_command(cmd("SET").arg(name).arg(value).arg("PX").arg(life).clone()).ignore();
    };
    UsualLayouts {
        counter: written(rig, KEYS, |pipeline, number| string(pipeline, name(number), b"1")),
        two_strings: written(rig, KEYS, |pipeline, number| {
            for window in [NOW_MS / WINDOW_MS, NOW_MS / WINDOW_MS + 1] {
                string(pipeline, format!("{}:{window}", name(number)), b"1");
            }
        }),
        one_hash: written(rig, KEYS, |pipeline, number| {
            let mut fields = cmd("HSET");
            fields.arg(name(number)).arg("start").arg(NOW_MS).arg("prev").arg(1).arg("cur").arg(1);
            pipeline.add_command(fields).ignore();
            pipeline.add_command(cmd("PEXPIRE").arg(name(number)).arg(life).clone()).ignore();
        }),
        packed: written(rig, KEYS, |pipeline, number| string(pipeline, name(number), &[1; 12])),
    }
}

/// Bytes per key of a sorted set of `entries` entries. A member is a timestamp and a suffix that makes it unique.
pub(crate) fn sorted_set(rig: &Rig, entries: u64) -> f64 {
    written(rig, LONG_KEYS, |pipeline, number| {
        let name = format!("rate:{}", key(number));
        for entry in 0..entries {
            let at_ms = NOW_MS + entry * WINDOW_MS / entries;
            let member = format!("{at_ms}-{entry}");
            pipeline.add_command(cmd("ZADD").arg(&name).arg(at_ms).arg(member).clone()).ignore();
        }
        pipeline.add_command(cmd("PEXPIRE").arg(&name).arg(WINDOW_MS).clone()).ignore();
    })
}

fn written(rig: &Rig, keys: usize, write: impl Fn(&mut Pipeline, usize)) -> f64 {
    rig.bytes_per_key(keys, || {
        let client = redis::Client::open(rig.server.url()).expect("a valid address");
        rig.runtime.block_on(async {
            let mut connection = client.get_multiplexed_async_connection().await.expect("a server");
            for first in (0..keys).step_by(100) {
                let mut pipeline = redis::pipe();
                (first..keys.min(first + 100)).for_each(|number| write(&mut pipeline, number));
                pipeline.exec_async(&mut connection).await.expect("a response");
            }
        });
    })
}

/// Bytes per key of Slidegate under a quota, after `checks_per_key` checks of each key, evenly spread over one window.
pub(crate) fn slidegate(rig: &Rig, quota: &str, checks_per_key: u64) -> f64 {
    let keys = if checks_per_key == 1 { KEYS } else { LONG_KEYS };
    let names: Vec<String> = (0..keys).map(key).collect();
    let policy = Policy::parse("memory", [quota]).expect("a valid quota");
    let clock = ManualClock::at(NOW_MS);
    rig.bytes_per_key(keys, || {
        rig.runtime.block_on(async {
            let builder = RedisStore::builder(&rig.long_budget_url()).expect("a valid address");
            let store = builder.time_from(clock.clone()).connect().await.expect("a server");
            let limiter = StoreLimiter::new(store);
            for _ in 0..checks_per_key {
                for some in names.chunks(1000) {
                    let checks: Vec<_> = some.iter().map(|name| policy.key(name)).collect();
                    let decisions = limiter.check_many(&checks).await;
                    assert!(decisions.iter().all(|a| a.as_ref().is_ok_and(slidegate::Decision::is_allowed)));
                }
                clock.advance(WINDOW_MS / checks_per_key);
            }
        });
    })
}
