//! Settings that all remote stores have.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use slidegate_core::Moment;

use crate::clock::{Clock, SystemClock};
use crate::error::SettingsError;

const DEFAULT_BUDGET: Duration = Duration::from_millis(100);
const DEFAULT_MAX_WAITING: usize = 8192;
/// Grain of a server's time, which is rounded down to a millisecond.
const SERVER_GRAIN_MS: u64 = 1;

/// Settings of a remote store.
#[derive(Clone)]
pub(crate) struct RemoteSettings {
    /// Secret of the hash of keys.
    pub(crate) secret: Option<String>,
    /// Time that a request may take, if it is set.
    pub(crate) own_budget: Option<Duration>,
    /// Largest number of requests in a queue.
    pub(crate) max_waiting: usize,
    /// Certificate authority of the servers, in place of the system's.
    pub(crate) ca_pem: Option<Vec<u8>>,
    /// Clock that decides in place of the server's.
    pub(crate) given_time: Option<Arc<dyn Clock>>,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        let max_waiting = DEFAULT_MAX_WAITING;
        Self { secret: None, own_budget: None, max_waiting, ca_pem: None, given_time: None }
    }
}

impl RemoteSettings {
    /// Sets an option of a URL. The options of the store, `allowed`, include those that are unknown here.
    pub(crate) fn set_option(
        &mut self,
        name: &str,
        value: &str,
        allowed: &[&str],
    ) -> Result<(), SettingsError> {
        let invalid = |why: fmt::Arguments<'_>| Err(SettingsError::option(name, why));
        match name {
            "secret" if value.is_empty() => return invalid(format_args!("it is empty")),
            "secret" => self.secret = Some(value.to_owned()),
            "budget_ms" => match value.parse() {
                Ok(ms @ 1..=60_000) => self.own_budget = Some(Duration::from_millis(ms)),
                _ => return invalid(format_args!("{value:?} is not between 1 and 60000")),
            },
            "ca" => self.ca_pem = Some(read_pem(name, value)?),
            _ => {
                let allowed = allowed.join(", ");
                return invalid(format_args!("there is no such option; allowed are {allowed}"));
            }
        }
        Ok(())
    }

    pub(crate) fn budget(&self) -> Duration {
        self.own_budget.unwrap_or(DEFAULT_BUDGET)
    }

    /// Returns the time to decide by; `None` for the server's time.
    pub(crate) fn given_moment(&self) -> Option<Moment> {
        self.given_time.as_ref().map(|clock| clock.moment())
    }

    /// Returns the grain of the time that decides.
    pub(crate) fn grain_ms(&self) -> u64 {
        self.given_moment().map_or(SERVER_GRAIN_MS, Moment::grain_ms)
    }

    /// Returns the clock by which the callers wait.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.given_time.clone().unwrap_or_else(|| Arc::new(SystemClock::default()))
    }
}

/// Reads the file that an option names.
pub(crate) fn read_pem(option: &str, path: &str) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(path)
        .map_err(|error| SettingsError::option(option, format_args!("cannot read {path:?}: {error}")))
}

/// Defines the setters of a builder with the field `remote: RemoteSettings`, each with the documentation of its store.
macro_rules! remote_setters {
    (
        $builder:ty:
        $(#[$secret:meta])* secret;
        $(#[$budget:meta])* budget;
        $(#[$max_waiting:meta])* max_waiting;
        $(#[$ca_certificate:meta])* ca_certificate;
        $(#[$time_from:meta])* time_from;
    ) => {
        impl $builder {
            $(#[$secret])*
            pub fn secret(mut self, secret: &str) -> Self {
                self.remote.secret = Some(secret.to_owned());
                self
            }

            $(#[$budget])*
            pub fn budget(mut self, budget: std::time::Duration) -> Self {
                self.remote.own_budget = Some(budget);
                self
            }

            $(#[$max_waiting])*
            pub fn max_waiting(mut self, max_waiting: usize) -> Self {
                self.remote.max_waiting = max_waiting.max(1);
                self
            }

            $(#[$ca_certificate])*
            pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
                self.remote.ca_pem = Some(pem.into());
                self
            }

            $(#[$time_from])*
            pub fn time_from(mut self, clock: impl $crate::clock::Clock) -> Self {
                self.remote.given_time = Some(std::sync::Arc::new(clock));
                self
            }
        }
    };
}
pub(crate) use remote_setters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_invalid_option() {
        let error_of = |name: &str, value: &str| {
            let set = RemoteSettings::default().set_option(name, value, &["secret", "color"]);
            set.unwrap_err().to_string()
        };
        assert_eq!(error_of("secret", ""), "secret: it is empty");
        for value in ["0", "60001", "x"] {
            let expected = format!("budget_ms: {value:?} is not between 1 and 60000");
            assert_eq!(error_of("budget_ms", value), expected);
        }
        assert!(error_of("ca", "/nowhere").starts_with("ca: cannot read \"/nowhere\""));
        assert_eq!(error_of("colour", "x"), "colour: there is no such option; allowed are secret, color");
    }
}
