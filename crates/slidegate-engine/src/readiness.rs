//! Conditions that the readiness probe reports.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

/// Conditions that the readiness probe reports: the drain, the configuration file and the changes of operators.
#[derive(Debug)]
pub struct Readiness {
    draining: watch::Sender<bool>,
    config_error: ArcSwapOption<String>,
    are_changes_known: AtomicBool,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            draining: watch::Sender::new(false),
            config_error: ArcSwapOption::empty(),
            are_changes_known: AtomicBool::new(true),
        }
    }
}

impl Readiness {
    /// Returns whether the service drains and new requests should go elsewhere.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Marks the service as draining.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Completes when the service drains.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut draining = self.draining.subscribe();
        async move {
            let _ = draining.wait_for(|is_draining| *is_draining).await;
        }
    }

    /// Returns the problems of the configuration file; `None` while the file is in force.
    pub fn config_error(&self) -> Option<String> {
        self.config_error.load().as_deref().cloned()
    }

    /// Sets or clears the problems of the configuration file.
    pub fn set_config_error(&self, error: Option<String>) {
        self.config_error.store(error.map(Into::into));
    }

    /// Returns whether the changes of operators are loaded. Until then they are not in force.
    pub fn are_changes_known(&self) -> bool {
        self.are_changes_known.load(Ordering::Relaxed)
    }

    /// Sets whether the changes of operators are loaded.
    pub fn set_changes_known(&self, are_known: bool) {
        self.are_changes_known.store(are_known, Ordering::Relaxed);
    }
}
