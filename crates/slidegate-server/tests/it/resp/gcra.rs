//! `CL.THROTTLE` beside the generic cell rate algorithm, written down here by itself and in whole numbers.

use std::io::{BufRead, BufReader, Write};

use super::{Resp, command};
use crate::harness::START_MS;

/// Numbers that look random and are the same each time.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of the numbers below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) >> 7) % end
    }
}

/// One key: when its next cell would be due, in ms times `count`, so that the interval between two is whole.
struct Cell {
    max_burst: i128,
    count: i128,
    period_s: i128,
    due: i128,
}

impl Cell {
    fn rolled(dice: &mut Dice) -> Self {
        let mut among = |numbers: &[i128]| numbers[dice.below(numbers.len() as u64) as usize];
        Self {
            max_burst: among(&[0, 1, 4, 15, 99]),
            count: among(&[1, 3, 7, 30, 1000]),
            period_s: among(&[1, 2, 60, 3600]),
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
        let owed = self.due.max(now) - now;
        let remaining = (tolerance - owed).div_euclid(interval);
        [i128::from(is_limited), self.max_burst + 1, remaining, retry, seconds(owed)]
    }
}

#[test]
fn thousands_of_steps_are_answered_as_the_algorithm_has_it() {
    let server = Resp::start();
    let stream = server.stream();
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    let mut dice = Dice::new(11);
    let mut cells: Vec<Cell> = (0..60).map(|_| Cell::rolled(&mut dice)).collect();
    let mut now_ms = START_MS;
    let (mut limited, mut steps) = (0, 0);
    while steps < 20_000 {
        let pause_ms = [0, 1, 17, 333, 1000, 20_000][dice.below(6) as usize];
        now_ms += pause_ms;
        server.clock.advance(pause_ms);
        let (mut said, mut expected) = (String::new(), String::new());
        for _ in 0..=dice.below(40) {
            let number = dice.below(cells.len() as u64) as usize;
            let cell = &mut cells[number];
            let quantity = [0, 1, 1, 1, 2, 5, 16, 200][dice.below(8) as usize];
            let words = [cell.max_burst, cell.count, cell.period_s, quantity].map(|word| word.to_string());
            let [burst, count, period, quantity_word] = words.each_ref().map(String::as_str);
            said += &command(&["CL.THROTTLE", &format!("key:{number}"), burst, count, period, quantity_word]);
            let answer = cell.throttle(now_ms, quantity);
            limited += answer[0];
            steps += 1;
            expected += "*5\r\n";
            expected.extend(answer.iter().map(|number| format!(":{number}\r\n")));
        }
        writer.write_all(said.as_bytes()).unwrap();
        let mut answer = String::new();
        while answer.len() < expected.len() && reader.read_line(&mut answer).unwrap() > 0 {}
        assert_eq!(answer, expected, "at {now_ms} to {said}");
    }
    assert!(limited > 1000 && limited < 19_000, "{limited} of {steps} were limited");
}
