//! `CL.THROTTLE` against an independent integer implementation of the generic cell rate algorithm.

use std::io::{BufRead, BufReader, Write};

use super::{RespServer, command};
use crate::harness::START_MS;

/// Deterministic pseudo-random generator.
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) >> 7) % end
    }
}

/// State of a key. `due` is the theoretical arrival time of its next cell in ms times `count`, so that the interval
/// between cells is an integer.
struct Cell {
    max_burst: i128,
    count: i128,
    period_s: i128,
    due: i128,
}

impl Cell {
    fn random(random: &mut SeededRandom) -> Self {
        let mut pick = |numbers: &[i128]| numbers[random.below(numbers.len() as u64) as usize];
        Self {
            max_burst: pick(&[0, 1, 4, 15, 99]),
            count: pick(&[1, 3, 7, 30, 1000]),
            period_s: pick(&[1, 2, 60, 3600]),
            due: 0,
        }
    }

    fn throttle(&mut self, now_ms: u64, quantity: i128) -> [i128; 5] {
        let interval = self.period_s * 1000;
        let tolerance = interval * (self.max_burst + 1);
        let now = i128::from(now_ms) * self.count;
        let due = self.due.max(now) + interval * quantity;
        let too_early = due - tolerance - now;
        let seconds = |scaled: i128| -(-scaled).div_euclid(self.count * 1000);
        let is_limited = too_early > 0;
        let retry = if is_limited && interval * quantity <= tolerance { seconds(too_early) } else { -1 };
        if !is_limited {
            self.due = due;
        }
        let debt = self.due.max(now) - now;
        let remaining = (tolerance - debt).div_euclid(interval);
        [i128::from(is_limited), self.max_burst + 1, remaining, retry, seconds(debt)]
    }
}

#[test]
fn random_steps_get_the_replies_of_the_algorithm() {
    let server = RespServer::start();
    let stream = server.stream();
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    let mut random = SeededRandom::new(11);
    let mut cells: Vec<Cell> = (0..60).map(|_| Cell::random(&mut random)).collect();
    let mut now_ms = START_MS;
    let (mut limited, mut steps) = (0, 0);
    while steps < 20_000 {
        let pause_ms = [0, 1, 17, 333, 1000, 20_000][random.below(6) as usize];
        now_ms += pause_ms;
        server.clock.advance(pause_ms);
        let (mut sent, mut expected) = (String::new(), String::new());
        for _ in 0..=random.below(40) {
            let number = random.below(cells.len() as u64) as usize;
            let cell = &mut cells[number];
            let quantity = [0, 1, 1, 1, 2, 5, 16, 200][random.below(8) as usize];
            let words = [cell.max_burst, cell.count, cell.period_s, quantity].map(|word| word.to_string());
            let [burst, count, period, quantity_word] = words.each_ref().map(String::as_str);
            sent += &command(&["CL.THROTTLE", &format!("key:{number}"), burst, count, period, quantity_word]);
            let reply = cell.throttle(now_ms, quantity);
            limited += reply[0];
            steps += 1;
            expected += "*5\r\n";
            expected.extend(reply.iter().map(|number| format!(":{number}\r\n")));
        }
        writer.write_all(sent.as_bytes()).unwrap();
        let mut replies = String::new();
        while replies.len() < expected.len() && reader.read_line(&mut replies).unwrap() > 0 {}
        assert_eq!(replies, expected, "at {now_ms} to {sent}");
    }
    assert!(limited > 1000 && limited < 19_000, "{limited} of {steps} were limited");
}
