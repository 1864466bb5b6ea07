//! The model checker's atomics, each of whose uses may be interrupted.

use loom::sync::atomic;
use std::sync::atomic::Ordering;

pub(crate) use loom::sync::atomic::fence;
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;

loom::lazy_static! {
    static ref TURN: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
}

/// Loom runs two uses of an atomic the other way around only if one is the last before the other. A thread that loads
/// a word and then swaps it would so hide from it that another one had loaded it earlier. Here each use of anything is
/// preceded by a store to the same place, so that each is the last before the next, and any order is tried. As nobody
/// ever loads from that place, it orders nothing.
fn interruptible() {
    TURN.store(0, Ordering::Relaxed);
}

macro_rules! atomic {
    ($name:ident, $number:ty) => {
        #[derive(Default)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) fn new(value: $number) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $number {
                interruptible();
                self.0.load(order)
            }

            pub(crate) fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                interruptible();
                self.0.fetch_add(value, order)
            }
        }
    };
}

atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

impl AtomicU64 {
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        interruptible();
        self.0.store(value, order);
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        interruptible();
        self.0.compare_exchange(current, new, success, failure)
    }
}

impl AtomicUsize {
    pub(crate) fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
        interruptible();
        self.0.fetch_sub(value, order)
    }

    pub(crate) fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        update: impl FnMut(usize) -> Option<usize>,
    ) -> Result<usize, usize> {
        interruptible();
        self.0.fetch_update(success, failure, update)
    }
}
