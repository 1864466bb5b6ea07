//! Compares the script's exact arithmetic with Rust's, in the server, for products beyond the precision of a double.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use slidegate_testkit::{Flavour, Server};

const EXACT: &str = include_str!("../src/store/redis/lua/exact.lua");

/// Runs `body` for each row of arguments, in the server.
fn evaluate(server: &Server, body: &str, rows: &[Vec<u64>]) -> Vec<u64> {
    let width = rows[0].len();
    let script = format!(
        "{EXACT}\nlocal out = {{}}\nfor i = 1, #ARGV, {width} do\nlocal x = {{}}\n\
         for k = 0, {width} - 1 do x[k + 1] = tonumber(ARGV[i + k]) end\n\
         out[#out + 1] = string.format('%.0f', {body})\nend\nreturn out"
    );
    let mut results = Vec::new();
    for rows in rows.chunks(500) {
        let mut command = vec!["EVAL".to_owned(), script.clone(), "0".to_owned()];
        command.extend(rows.iter().flatten().map(ToString::to_string));
        results.extend(
            server.command(&command).array().iter().map(|result| result.text().parse::<u64>().unwrap()),
        );
    }
    results
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number of any magnitude below 2^`bits`, often next to a power of two.
    fn number(&mut self, bits: u64) -> u64 {
        let power = 1 << (self.next() % bits + 1);
        let number = match self.next() % 4 {
            0 => power - 1 - self.next() % 3 % power,
            1 => power / 2 + self.next() % 3,
            _ => self.next() % power,
        };
        number.min((1 << bits) - 1)
    }
}

#[test]
fn quotients_are_exact() {
    let server = Server::start(Flavour::Redis);
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let rows: Vec<Vec<u64>> = (0..20_000)
        .map(|_| {
            let c = random.number(35).max(1);
            let b = random.number(35).min(c);
            // Half of the time next to a multiple, where rounding matters.
            let a = random.number(50);
            let a = if random.next().is_multiple_of(2) { a - a % c + random.next() % 2 } else { a };
            vec![a.min((1 << 50) - 1), b, c]
        })
        .collect();
    for (body, is_rounded_up) in
        [("mul_div(x[1], x[2], x[3])", false), ("mul_div_ceil(x[1], x[2], x[3])", true)]
    {
        for (row, result) in rows.iter().zip(evaluate(&server, body, &rows)) {
            let [a, b, c] = row[..] else { unreachable!() };
            let product = u128::from(a) * u128::from(b);
            let c = u128::from(c);
            let expected = if is_rounded_up { product.div_ceil(c) } else { product / c };
            assert_eq!(u128::from(result), expected, "{body} of {row:?}");
        }
    }
}

#[test]
fn products_are_compared_exactly() {
    let server = Server::start(Flavour::Redis);
    let mut random = Random(0xFEDC_BA98_7654_3211);
    let rows: Vec<Vec<u64>> = (0..20_000)
        .map(|_| {
            let (a, b) = (random.number(48).max(1), random.number(35).max(1));
            match random.next() % 3 {
                // Products that differ in their last bits only.
                0 => vec![a, b, a, (b + random.next() % 3).saturating_sub(1)],
                1 => {
                    let factor = 1 + random.next() % 7;
                    let (c, d) = (a / factor + random.next() % 2, (b * factor).min((1 << 35) - 1));
                    vec![a, b, c, d]
                }
                _ => vec![a, b, random.number(48), random.number(35)],
            }
        })
        .collect();
    let body = "is_product_less(x[1], x[2], x[3], x[4]) and 1 or 0";
    for (row, result) in rows.iter().zip(evaluate(&server, body, &rows)) {
        let [a, b, c, d] = row[..] else { unreachable!() };
        let is_less = u128::from(a) * u128::from(b) < u128::from(c) * u128::from(d);
        assert_eq!(result == 1, is_less, "{row:?}");
    }
}
