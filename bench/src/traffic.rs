//! Pseudo-random keys.

/// Xorshift generator with a fixed seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are enough")]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Key with this number: twelve bytes, like a short user name.
pub(crate) fn key(number: usize) -> String {
    format!("user:{number:07}")
}

/// Draws `count` of `keys` numbers, all equally likely.
pub(crate) fn uniform(keys: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| (random.next() % keys as u64) as u32).collect()
}

/// Draws `count` of `keys` numbers. The n-th most likely is drawn in proportion to 1/n; ranks are scattered over the
/// numbers.
#[expect(clippy::cast_precision_loss, reason = "ranks are small")]
pub(crate) fn zipf(keys: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut total = 0.0;
    let cumulative: Vec<f64> = (1..=keys)
        .map(|rank| {
            total += 1.0 / rank as f64;
            total
        })
        .collect();
    let mut random = Random::new(seed);
    (0..count)
        .map(|_| {
            let point = random.unit() * total;
            let rank = cumulative.partition_point(|sum| *sum < point).min(keys - 1);
            (rank as u64 * 2_654_435_761 % keys as u64) as u32
        })
        .collect()
}
