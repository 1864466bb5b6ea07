//! Time of one check beside that of peers.

use crate::figures::{Aim, Figures};
use crate::measure::{time_round, time_round_of_16};
use crate::subjects::{AllNumbers, Bare, Clocked, Governor, Limit, Slidegate, Subject, Throttlecrab};
use crate::traffic::{key, uniform, zipf};

struct Scenario {
    name: &'static str,
    limit: Limit,
    keys: usize,
    draws: fn(usize, usize, u64) -> Vec<u32>,
    /// Checks per thread and round, with one thread and with two.
    counts: [usize; 2],
    rounds: [usize; 2],
    /// Target for Slidegate's share of governor's time, with one thread and with two.
    aims: [Aim; 2],
}

const fn at_most_one_of(parts: f64) -> Aim {
    Aim::AtMost(1.0 / parts)
}

/// One key takes many short rounds. Two threads need longer rounds, so that they overlap for most of each. With many
/// keys, a round first has to load them back into the cache.
const SCENARIOS: [Scenario; 5] = [
    Scenario {
        name: "hot key allowed",
        limit: Limit::Ample,
        keys: 1,
        draws: uniform,
        counts: [250_000, 1_000_000],
        rounds: [61, 31],
        aims: [at_most_one_of(3.0), at_most_one_of(2.5)],
    },
    Scenario {
        name: "hot key denied",
        limit: Limit::One,
        keys: 1,
        draws: uniform,
        counts: [250_000, 1_000_000],
        rounds: [61, 31],
        aims: [at_most_one_of(3.0), Aim::Open],
    },
    Scenario {
        name: "100 k uniform",
        limit: Limit::Usual,
        keys: 100_000,
        draws: uniform,
        counts: [1_000_000; 2],
        rounds: [21; 2],
        aims: [at_most_one_of(6.0), Aim::Open],
    },
    Scenario {
        name: "1 M uniform",
        limit: Limit::Usual,
        keys: 1_000_000,
        draws: uniform,
        counts: [1_000_000; 2],
        rounds: [21; 2],
        aims: [at_most_one_of(4.0), Aim::Open],
    },
    Scenario {
        name: "1 M Zipf",
        limit: Limit::Usual,
        keys: 1_000_000,
        draws: zipf,
        counts: [1_000_000; 2],
        rounds: [21; 2],
        aims: [at_most_one_of(3.0), Aim::Open],
    },
];

/// Runs the scenarios whose names contain `part`; an empty `part` selects all.
pub(crate) fn times(part: &str) {
    println!("nanoseconds per check, median of all rounds (least to most)");
    println!("×: times governor's of the same round, median of all rounds\n");
    let columns = "slidegate | governor | throttlecrab | bare | bare, clock | × | aim | with all numbers | 16 at a time";
    println!("| | threads | {columns} |");
    println!("|{}", "---|".repeat(11));
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(part)) {
        for threads in [1, 2] {
            times_of(scenario, threads);
        }
    }
}

/// Runs all subjects in turn and starts each round with a different one. So a noisy moment does not always hit the same
/// subject, and no subject always finds the same cache contents.
fn times_of(scenario: &Scenario, threads: usize) {
    let (count, rounds) = (scenario.counts[threads - 1], scenario.rounds[threads - 1]);
    let requests_of =
        |seed| (scenario.draws)(scenario.keys, count, seed).into_iter().map(|n| key(n as usize));
    let requests: Vec<Vec<String>> = (1..=threads).map(|seed| requests_of(seed as u64).collect()).collect();
    let table = scenario.keys.max(1000);
    // Separate tables: otherwise one measurement would warm the cache for the other.
    let [slidegate, sixteen] = [(); 2].map(|()| Slidegate::new(scenario.limit, table));
    let all_numbers = AllNumbers::new(scenario.limit, table);
    let governor = Governor::new(scenario.limit, table);
    let throttlecrab = Throttlecrab::new(scenario.limit, table);
    let bare = Bare::new(scenario.limit, table);
    let clocked = Clocked::new(scenario.limit, table);
    for key in (0..scenario.keys).map(key) {
        slidegate.check(&key);
        sixteen.check(&key);
        all_numbers.check(&key);
        governor.check(&key);
        throttlecrab.check(&key);
        bare.check(&key);
        clocked.check(&key);
    }
    // Only one thread checks 16 keys at a time.
    let turns = if threads == 1 { 7 } else { 6 };
    let mut figures: [Figures; 7] = Default::default();
    let mut ratios = Figures::default();
    for round in 0..rounds {
        eprint!("\r{}, {threads} thread(s), round {} of {rounds} …", scenario.name, round + 1);
        let mut times = [0.0; 7];
        for turn in 0..turns {
            let place = (round + turn) % turns;
            times[place] = match place {
                0 => time_round(&slidegate, &requests),
                1 => time_round(&governor, &requests),
                2 => time_round(&throttlecrab, &requests),
                3 => time_round(&bare, &requests),
                4 => time_round(&clocked, &requests),
                5 => time_round(&all_numbers, &requests),
                _ => time_round_of_16(&sixteen, &requests[0]),
            };
            figures[place].push(times[place]);
        }
        // Ratio within one round: a longer slowdown of the machine affects both values.
        ratios.push(times[0] / times[1]);
    }
    eprintln!();
    let [slidegate, governors, crabs, bares, clocked, all_numbers, sixteens] = figures;
    let sixteens = if threads == 1 { sixteens.to_string() } else { "–".to_owned() };
    let verdict = scenario.aims[threads - 1].verdict(ratios.median());
    println!(
        "| {} | {threads} | {slidegate} | {governors} | {crabs} | {bares} | {clocked} | {verdict} | {all_numbers} | {sixteens} |",
        scenario.name
    );
}
