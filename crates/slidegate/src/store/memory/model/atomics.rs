//! Atomics of the model checker, with a possible interruption before each use.

use loom::sync::atomic;
use std::sync::atomic::Ordering;

pub(crate) use loom::sync::atomic::fence;
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;

loom::lazy_static! {
    static ref INTERRUPTION: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
}

/// Lets the model checker switch threads here. Loom reverses two uses of an atomic only if one immediately precedes the
/// other in its trace. A thread that loads a word and then swaps it would hide its load from a race with an earlier
/// one. A store to one common location before each use makes every use the immediate predecessor of the next, so that
/// all orders are explored. No thread loads from that location, so it adds no ordering.
fn interruptible() {
    INTERRUPTION.store(0, Ordering::Relaxed);
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
