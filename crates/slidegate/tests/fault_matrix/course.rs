//! One fault from before it begins until it is over and forgotten.

use std::time::Duration;

use slidegate::degrade::{BreakerSettings, BreakerState, OnFailure};
use slidegate::{Clock, PreciseClock};
use slidegate_testkit::until;

use crate::backend::Backend;
use crate::fault::Fault;
use crate::herd::Herd;
use crate::load::{LIMIT, Load, NODES};
use crate::tally::{Answers, MODES, Tally};

/// How long things take. A tick is a pause of [`until`], some 10 ms.
pub(crate) struct Pace {
    fault_ticks: u32,
    flap_ticks: u32,
    breaker: fn() -> BreakerSettings,
    /// Else it waits until every node has the store decide everything again, which takes a breaker as it comes ten seconds.
    pub(crate) is_measured: bool,
}

/// As long as it takes to see each fault.
pub(crate) const SHORT: Pace = Pace {
    fault_ticks: 20,
    flap_ticks: 5,
    breaker: || BreakerSettings {
        rest: Duration::from_millis(20),
        longest_rest: Duration::from_millis(100),
        recovery: Duration::from_millis(100),
        ..BreakerSettings::default()
    },
    is_measured: false,
};

/// Some three seconds for each fault, and a breaker as it comes.
pub(crate) const LONG: Pace =
    Pace { fault_ticks: 300, flap_ticks: 100, breaker: BreakerSettings::default, is_measured: true };

pub(crate) struct Course {
    pub(crate) fault: Fault,
    pub(crate) clients: usize,
    pub(crate) tally: Tally,
    /// From the end of the fault until the store had answered each node again.
    pub(crate) back_after_ms: u64,
}

impl Course {
    pub(crate) fn run<B: Backend>(fault: Fault, pace: &Pace) -> Self {
        let server = B::start(fault);
        let clients = if fault == Fault::Reconnect { B::CLIENTS } else { 0 };
        let herd = Herd::connect::<B>(server.proxy().address(), clients);
        herd.wait_for_visits(1);
        let load = Load::start(&server, (pace.breaker)());
        until("the store has admitted some for everybody", || {
            let tally = load.tally();
            let is_begun = |answers: &Answers| answers.hot_admitted_by_store >= LIMIT / 6;
            fulfilled(
                tally.modes.iter().all(is_begun) && tally.by_node.iter().all(|&times| times > 0),
                &tally,
            )
        });

        let before = load.tally();
        fault.begin(&server);
        let mut tick = 0;
        until("the fault was felt", || {
            fault.tick(&server, tick, pace.flap_ticks);
            tick += 1;
            let now = load.tally();
            let felt = |(now, before): (&Answers, &Answers)| now.undecided() > before.undecided();
            let is_felt = !fault.is_felt() || now.modes.iter().zip(&before.modes).all(felt);
            fulfilled(tick >= pace.fault_ticks && is_felt, &now)
        });
        fault.end(&server);

        let clock = PreciseClock::default();
        let (ended_ms, at_end) = (clock.now_ms(), load.tally());
        until("the store answers every node again", || {
            let now = load.tally();
            fulfilled(now.by_node.iter().zip(&at_end.by_node).all(|(now, then)| now > then), &now)
        });
        let back_after_ms = clock.now_ms() - ended_ms;
        herd.wait_for_visits(2);
        until("the limit is spent in the store too", || {
            let now = load.tally();
            let denied =
                |(now, then): (&Answers, &Answers)| now.hot_denied_by_store > then.hot_denied_by_store;
            fulfilled(now.modes.iter().zip(&at_end.modes).all(denied), &now)
        });
        if !pace.is_measured {
            until("every breaker is closed", || match load.breakers() {
                states if states.iter().all(|&state| state == BreakerState::Closed) => Ok(()),
                states => Err(format!("{states:?}")),
            });
        }
        Self { fault, clients, tally: load.end(), back_after_ms }
    }

    /// What must hold however long anything took.
    pub(crate) fn assert_promises(&self) {
        for (mode, answers) in MODES.iter().zip(&self.tally.modes) {
            let seen = format!("{:?}, {mode:?}: {answers:?}", self.fault);
            assert_eq!(answers.unmarked, 0, "whoever decides says so: {seen}");
            match mode {
                OnFailure::Closed => {
                    assert_eq!(answers.admitted_without_store, 0, "{seen}");
                    assert_eq!(answers.by_fallback.len(), 0, "{seen}");
                }
                OnFailure::Local | OnFailure::Open => assert_eq!(answers.errors, 0, "{seen}"),
            }
            // An answer that was not marked as a fallback would be too many of the store's.
            let by_store = LIMIT + self.forgotten();
            assert!(answers.hot_admitted_by_store <= by_store, "more than {by_store} by the store: {seen}");
            if *mode != OnFailure::Open {
                let most = LIMIT + self.most_over(*mode);
                assert!(answers.hot_admitted <= most, "more than {most}: {seen}");
            }
        }
        if let Fault::OutOfMemory | Fault::DiskFull = self.fault {
            assert!(self.tally.reasons().contains_key("full"), "{:?}", self.tally);
        }
    }

    /// The most that may be admitted beyond the limit, without what `open` lets in by itself.
    pub(crate) fn most_over(&self, mode: OnFailure) -> u64 {
        match mode {
            OnFailure::Local => self.forgotten() + u64::from(NODES) * (LIMIT / u64::from(NODES)),
            OnFailure::Closed | OnFailure::Open => self.forgotten(),
        }
    }

    /// What the store may admit once more because it has lost its counts.
    fn forgotten(&self) -> u64 {
        self.fault.forgets() * LIMIT
    }
}

fn fulfilled(is_fulfilled: bool, tally: &Tally) -> Result<(), String> {
    if is_fulfilled { Ok(()) } else { Err(format!("{tally:?}")) }
}
