//! Atomics and the lock: those of the standard library, or those of the model checker, which runs the same code in every
//! possible order (`make loom`).

#[cfg(not(slidegate_loom))]
pub(super) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, fence},
    },
    thread::yield_now,
};

#[cfg(slidegate_loom)]
pub(super) use super::model::atomics::{AtomicU64, AtomicUsize, Mutex, MutexGuard, fence, yield_now};

/// Returns zeroed memory that the operating system provides as it is first used.
#[cfg(not(slidegate_loom))]
pub(super) fn zeroed<T: bytemuck::Zeroable>(len: usize) -> Box<[T]> {
    bytemuck::zeroed_slice_box(len)
}

#[cfg(slidegate_loom)]
pub(super) fn zeroed<T: Default>(len: usize) -> Box<[T]> {
    (0..len).map(|_| T::default()).collect()
}
