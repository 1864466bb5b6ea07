//! Asks the database now and then what was given back to keys, by whomever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::batch::Name;
use super::pool::{Cancelling, Shared};
use super::statement::{Unreadable, numbers, query};
use crate::clock::{Clock, SystemClock};
use crate::store::news::{Mark, News};
use crate::store::supervise::supervise;

/// How often it is asked.
const PAUSE_MS: u64 = 200;
/// Without an answer for longer than this, nobody relies on having heard everything.
const PATIENCE: Duration = Duration::from_millis(700);

/// What is heard, and whether anybody wants to know.
#[derive(Default)]
pub(super) struct Ears {
    news: Arc<News>,
    is_wanted: AtomicBool,
}

impl Ears {
    /// What is known about a name now. From the first time on, the database is asked.
    pub(super) fn mark(&self, shared: &Arc<Shared>, name: Name) -> Mark {
        if !self.is_wanted.load(Relaxed) && !self.is_wanted.swap(true, Relaxed) {
            let shared = Arc::downgrade(shared);
            let news = Arc::clone(&self.news);
            supervise("listening to postgres", move || listen(shared.clone(), Arc::clone(&news)));
        }
        self.news.mark(name.0[0])
    }
}

/// The version of each part, as far as there is one.
type Versions = HashMap<u8, i64>;

/// Asks for as long as there is a store.
async fn listen(shared: Weak<Shared>, news: Arc<News>) {
    let mut known = Versions::new();
    // What was said until now has been missed.
    news.tell_all();
    while let Some(store) = shared.upgrade() {
        let sent_ms = news.now_ms();
        // In the time between, nobody may have given anything back, or the database is away, and then so is everybody.
        if let Ok(Some(versions)) = tokio::time::timeout(PATIENCE, ask(&store)).await {
            for part in 0..=u8::MAX {
                if versions.get(&part) != known.get(&part) {
                    news.tell(part);
                }
            }
            known = versions;
            news.confirm(sent_ms);
        }
        drop(store);
        SystemClock::default().sleep(PAUSE_MS).await;
    }
}

async fn ask(shared: &Shared) -> Option<Versions> {
    let mut client = Cancelling::get(shared).await.ok()?;
    let text = format!("SELECT * FROM {}.news()", shared.schema);
    let answer = query(client.client(), &text, PATIENCE).await;
    client.is_done = true;
    let row =
        answer.inspect_err(|error| tracing::debug!(%error, "postgres does not tell what is given back"));
    let row = row.ok()??;
    let read = || {
        let parts = numbers::<u8>(&row, "parts")?.ok_or(Unreadable)?;
        let versions = numbers::<i64>(&row, "versions")?.ok_or(Unreadable)?;
        Ok::<_, Unreadable>(parts.into_iter().zip(versions).collect())
    };
    read().ok()
}
