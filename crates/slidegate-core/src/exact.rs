//! `a·b/d` without overflow and without floats.
//!
//! Limits reach 2^48 and windows 2^35 ms, so products reach 2^83. Products of nearly all quotas stay below 2^64 and need one
//! machine division. The wide path computes the same integers for the largest quotas.

/// `⌊a·b/d⌋`, saturating at `u64::MAX`.
#[inline(always)]
pub(crate) fn mul_div_floor(a: u64, b: u64, d: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / d,
        None => narrow(wide(a, b) / u128::from(d)),
    }
}

/// `⌈a·b/d⌉`, saturating at `u64::MAX`.
#[inline(always)]
pub(crate) fn mul_div_ceil(a: u64, b: u64, d: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(d),
        None => narrow(wide(a, b).div_ceil(u128::from(d))),
    }
}

/// `⌈a/d⌉` of a wide number, saturating at `u64::MAX`.
#[inline(always)]
pub(crate) fn div_ceil(a: u128, d: u64) -> u64 {
    match u64::try_from(a) {
        Ok(a) => a.div_ceil(d),
        Err(_) => narrow(a.div_ceil(u128::from(d))),
    }
}

/// The full product.
#[inline(always)]
pub(crate) fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[inline(always)]
fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_paths_agree_around_64_bits() {
        let (a, b) = (1 << 32, (1 << 32) - 1);
        assert_eq!(mul_div_floor(a, b, 3), u64::try_from(wide(a, b) / 3).unwrap());
        assert_eq!(mul_div_ceil(a, b, 7), u64::try_from(wide(a, b).div_ceil(7)).unwrap());
        assert_eq!(mul_div_floor(1 << 48, 1 << 35, 1 << 35), 1 << 48);
        assert_eq!(mul_div_ceil((1 << 48) - 1, 1 << 35, 1 << 48), 1 << 35);
        assert_eq!(mul_div_floor(u64::MAX, u64::MAX, 1), u64::MAX);
        assert_eq!(div_ceil(wide(1 << 48, 1 << 35) + 1, 1 << 35), (1 << 48) + 1);
    }
}
