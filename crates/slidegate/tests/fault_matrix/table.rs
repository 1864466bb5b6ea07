//! The tables of `docs/benchmarks.md`.

use std::fmt::Write as _;

use slidegate::resilience::OnFailure;

use crate::fault_run::FaultRun;
use crate::load::LIMIT;
use crate::tally::{MODES, Responses};

const HEAD: &str =
    "| fault | slowest response, ms | bare timer, ms | responses | by the store | without it, and why \
| `closed`: errors | `closed`: over | `local`: over | `open`: allowed without the store | back after, ms |
|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|
";

pub(crate) fn of(store: &str, runs: &[FaultRun]) -> String {
    let mut text = format!("### {store}\n\n{HEAD}");
    for run in runs {
        row(&mut text, run);
    }
    text
}

fn row(text: &mut String, run: &FaultRun) {
    let tally = &run.tally;
    let [closed, local, open] = &tally.modes;
    let responses: u64 = tally.modes.iter().map(Responses::all).sum();
    let by_store: u64 = tally.modes.iter().map(|responses| responses.by_store).sum();
    let reasons: Vec<_> = tally.reasons().iter().map(|(reason, times)| format!("{reason} {times}")).collect();
    let name = match run.clients {
        0 => run.fault.name().to_owned(),
        clients => format!("{clients} {}", run.fault.name().trim_start_matches("all ")),
    };
    let over = |mode: OnFailure, responses: &Responses| {
        let over = responses.hot_admitted.saturating_sub(LIMIT);
        format!("{over} of {}", run.max_excess(mode))
    };
    writeln!(
        text,
        "| {name} | {} | {} | {responses} | {by_store} | {} | {} | {} | {} | {} | {} |",
        tally.longest_ms,
        tally.longest_timer_ms,
        reasons.join(", "),
        closed.errors,
        over(MODES[0], closed),
        over(MODES[1], local),
        open.admitted_without_store,
        run.recovered_after_ms,
    )
    .unwrap();
}
