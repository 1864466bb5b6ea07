//! The Redis store joins the conformance suite, on Redis and on Valkey.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance::{START, Subject};
use slidegate::{ManualClock, RedisStore};
use slidegate_testkit::{Flavour, Server};

/// A store with keys of its own on a server that all tests of this file share.
async fn subject(server: &Server) -> Subject<RedisStore> {
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("subject{}", SUBJECTS.fetch_add(1, Relaxed));
    let clock = ManualClock::at(START);
    let builder = RedisStore::builder(&server.url()).unwrap().prefix(&prefix).unwrap();
    let store = builder.time_from(clock.clone()).budget(Duration::from_secs(20)).connect().await.unwrap();
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 50 }
}

mod on_redis {
    use super::*;

    static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(Flavour::Redis));

    conformance::suite!(subject(&SERVER).await);
}

mod on_valkey {
    use super::*;

    static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(Flavour::Valkey));

    conformance::suite!(subject(&SERVER).await);
}
