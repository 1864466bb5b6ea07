//! Pages where nobody can go for a new key, and until when: so that it is known without a look at all keys.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// For each page the moment until which none of its keys can go; nothing where that is not known.
///
/// Found out under the page's lock, by whoever has looked at all of its keys, and taken back or made shorter with each
/// of them that changes there. What is counted without the lock only keeps a key for longer; what is given back, or mended
/// because the clock has stepped back, takes it.
#[derive(Default)]
pub(super) struct Barren {
    until_ms: Box<[AtomicU64]>,
    /// When somebody had to go the last time.
    last_ms: AtomicU64,
    /// The page that was looked at last for one of another page.
    hand: AtomicUsize,
    /// How many times any page would do.
    times_any: AtomicUsize,
}

impl Barren {
    pub(super) const BYTES_PER_PAGE: usize = size_of::<AtomicU64>();

    pub(super) fn new(pages: usize) -> Self {
        let until_ms = (0..pages).map(|_| AtomicU64::new(0)).collect();
        Self { until_ms, ..Self::default() }
    }

    /// Whether nobody of this page can go at `now_ms`.
    pub(super) fn has(&self, page: usize, now_ms: u64) -> bool {
        self.until_ms[page].load(Ordering::Relaxed) > now_ms
    }

    pub(super) fn set(&self, page: usize, until_ms: u64) {
        self.until_ms[page].store(until_ms, Ordering::Relaxed);
    }

    /// Forgets everything if the clock has stepped back since the last call, by more than threads differ in what time they
    /// think it is: denials may end sooner then.
    pub(super) fn begin_anew_if_back(&self, now_ms: u64) {
        const SLACK_MS: u64 = 1000;
        let last_ms = self.last_ms.load(Ordering::Relaxed);
        if now_ms > last_ms {
            self.last_ms.store(now_ms, Ordering::Relaxed);
        } else if now_ms + SLACK_MS < last_ms {
            self.last_ms.store(now_ms, Ordering::Relaxed);
            self.until_ms.iter().for_each(|until| until.store(0, Ordering::Relaxed));
        }
    }

    /// Nobody can go until then at the latest.
    pub(super) fn no_longer_than(&self, page: usize, until_ms: u64) {
        let until = &self.until_ms[page];
        until.store(until.load(Ordering::Relaxed).min(until_ms), Ordering::Relaxed);
    }

    /// The pages where somebody may go at `now_ms`, from the one looked at last on and around.
    pub(super) fn others(&self, now_ms: u64) -> impl Iterator<Item = usize> {
        let first = self.hand.load(Ordering::Relaxed);
        let pages = (first..self.until_ms.len()).chain(0..first);
        pages.filter(move |page| !self.has(*page, now_ms))
    }

    /// Has the next [`others`](Self::others) begin here.
    pub(super) fn begin_at(&self, page: usize) {
        self.hand.store(page, Ordering::Relaxed);
    }

    /// Any page, each time another.
    pub(super) fn any(&self) -> usize {
        self.times_any.fetch_add(1, Ordering::Relaxed) % self.until_ms.len()
    }
}
