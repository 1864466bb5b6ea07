//! The value of the header `ratelimit`.

use slidegate_core::QuotaReport;

use crate::headers::whole_seconds;

/// Parameters of an item, before their numbers.
const REMAINING: &[u8] = b";r=";
const WAIT: &[u8] = b";t=";
/// Length of the longest parameters of an item: two numbers of 20 digits.
const MAX_PARAMETER_BYTES: usize = REMAINING.len() + 20 + WAIT.len() + 20;
/// A list of up to this length is built on the stack: two quotas with any numbers, or more with usual ones.
const STACK_BYTES: usize = 128;

/// Parameters of an item: remaining units, and the wait until there are more.
#[derive(Clone, Copy)]
pub(super) struct ItemNumbers {
    pub(super) remaining: u64,
    pub(super) wait_seconds: u64,
}

impl From<&QuotaReport> for ItemNumbers {
    fn from(report: &QuotaReport) -> Self {
        Self { remaining: report.remaining, wait_seconds: whole_seconds(report.more_after_ms) }
    }
}

/// Passes a list to `use_list`. Built without formatting machinery and without an allocation, because it differs for each
/// response. Each item has a quoted name, after a comma except for the first.
pub(super) fn with_limit_list<'n, T>(
    items: impl Iterator<Item = (&'n [u8], ItemNumbers)> + Clone,
    use_list: impl FnOnce(&[u8]) -> T,
) -> T {
    let max_bytes: usize = items.clone().map(|(name, _)| name.len() + MAX_PARAMETER_BYTES).sum();
    let (mut short, mut long);
    let buffer: &mut [u8] = if max_bytes <= STACK_BYTES {
        short = [0; STACK_BYTES];
        &mut short
    } else {
        long = vec![0; max_bytes];
        &mut long
    };
    let mut length = 0;
    let mut append = |part: &[u8]| {
        buffer[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    };
    for (name, numbers) in items {
        append(name);
        append(REMAINING);
        append(itoa::Buffer::new().format(numbers.remaining).as_bytes());
        append(WAIT);
        append(itoa::Buffer::new().format(numbers.wait_seconds).as_bytes());
    }
    use_list(&buffer[..length])
}
