//! One run of a fault, from before its start until the store has recovered.

use std::time::Duration;

use slidegate::resilience::{BreakerSettings, BreakerState, OnFailure};
use slidegate::{Clock, PreciseClock};
use slidegate_testkit::until;

use crate::backend::Backend;
use crate::fault::Fault;
use crate::herd::Herd;
use crate::load::{LIMIT, Load, NODES};
use crate::tally::{MODES, Responses, Tally};

/// Durations of a run. A tick is a pause of [`until`], about 10 ms.
pub(crate) struct Timing {
    fault_ticks: u32,
    flap_ticks: u32,
    breaker: fn() -> BreakerSettings,
    /// Measured runs do not wait until all breakers are closed, which takes 10 s with the default settings.
    pub(crate) is_measured: bool,
}

/// Long enough for each fault to take effect.
pub(crate) const SHORT: Timing = Timing {
    fault_ticks: 20,
    flap_ticks: 5,
    breaker: || BreakerSettings {
        open_duration: Duration::from_millis(20),
        max_open_duration: Duration::from_millis(100),
        recovery_duration: Duration::from_millis(100),
        ..BreakerSettings::default()
    },
    is_measured: false,
};

/// About 3 s per fault, and the default breaker settings.
pub(crate) const LONG: Timing =
    Timing { fault_ticks: 300, flap_ticks: 100, breaker: BreakerSettings::default, is_measured: true };

pub(crate) struct FaultRun {
    pub(crate) fault: Fault,
    pub(crate) clients: usize,
    pub(crate) tally: Tally,
    /// Time from the end of the fault until the store replied to each node again.
    pub(crate) recovered_after_ms: u64,
}

impl FaultRun {
    pub(crate) fn run<B: Backend>(fault: Fault, timing: &Timing) -> Self {
        let server = B::start(fault);
        let clients = if fault == Fault::Reconnect { B::CLIENTS } else { 0 };
        let herd = Herd::connect::<B>(server.proxy().address(), clients);
        herd.wait_for_connections(1);
        let load = Load::start(&server, (timing.breaker)());
        until("the store has admitted requests of all nodes and modes", || {
            let tally = load.tally();
            let is_begun = |responses: &Responses| responses.hot_admitted_by_store >= LIMIT / 6;
            fulfilled(
                tally.modes.iter().all(is_begun) && tally.by_node.iter().all(|&times| times > 0),
                &tally,
            )
        });

        let before = load.tally();
        fault.begin(&server);
        let mut tick = 0;
        until("the fault had an effect", || {
            fault.tick(&server, tick, timing.flap_ticks);
            tick += 1;
            let now = load.tally();
            let has_more_failures =
                |(now, before): (&Responses, &Responses)| now.undecided() > before.undecided();
            let has_failures =
                !fault.is_noticeable() || now.modes.iter().zip(&before.modes).all(has_more_failures);
            fulfilled(tick >= timing.fault_ticks && has_failures, &now)
        });
        fault.end(&server);

        let clock = PreciseClock::default();
        let (ended_ms, at_end) = (clock.now_ms(), load.tally());
        until("the store replies to all nodes again", || {
            let now = load.tally();
            fulfilled(now.by_node.iter().zip(&at_end.by_node).all(|(now, then)| now > then), &now)
        });
        let recovered_after_ms = clock.now_ms() - ended_ms;
        herd.wait_for_connections(2);
        until("the limit is used up in the store too", || {
            let now = load.tally();
            let denied =
                |(now, then): (&Responses, &Responses)| now.hot_denied_by_store > then.hot_denied_by_store;
            fulfilled(now.modes.iter().zip(&at_end.modes).all(denied), &now)
        });
        if !timing.is_measured {
            until("all breakers are closed", || match load.breakers() {
                states if states.iter().all(|&state| state == BreakerState::Closed) => Ok(()),
                states => Err(format!("{states:?}")),
            });
        }
        Self { fault, clients, tally: load.end(), recovered_after_ms }
    }

    /// Asserts the guarantees that do not depend on speed.
    pub(crate) fn assert_guarantees(&self) {
        for (mode, responses) in MODES.iter().zip(&self.tally.modes) {
            let context = format!("{:?}, {mode:?}: {responses:?}", self.fault);
            assert_eq!(responses.unmarked, 0, "each decision names its source: {context}");
            match mode {
                OnFailure::Closed => {
                    assert_eq!(responses.admitted_without_store, 0, "{context}");
                    assert_eq!(responses.by_fallback.len(), 0, "{context}");
                }
                _ => assert_eq!(responses.errors, 0, "{context}"),
            }
            // A fallback decision without its mark would exceed the store's limit here.
            let by_store = LIMIT + self.lost_units();
            assert!(
                responses.hot_admitted_by_store <= by_store,
                "more than {by_store} by the store: {context}"
            );
            if *mode != OnFailure::Open {
                let most = LIMIT + self.max_excess(*mode);
                assert!(responses.hot_admitted <= most, "more than {most}: {context}");
            }
        }
        if let Fault::OutOfMemory | Fault::DiskFull = self.fault {
            assert!(self.tally.reasons().contains_key("full"), "{:?}", self.tally);
        }
    }

    /// Returns the most that may be admitted beyond the limit, without what `open` allows by itself.
    pub(crate) fn max_excess(&self, mode: OnFailure) -> u64 {
        match mode {
            OnFailure::Local => self.lost_units() + u64::from(NODES) * (LIMIT / u64::from(NODES)),
            _ => self.lost_units(),
        }
    }

    /// Returns the units that the store may admit again after losing its counts.
    fn lost_units(&self) -> u64 {
        self.fault.count_losses() * LIMIT
    }
}

fn fulfilled(is_fulfilled: bool, tally: &Tally) -> Result<(), String> {
    if is_fulfilled { Ok(()) } else { Err(format!("{tally:?}")) }
}
