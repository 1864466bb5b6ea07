//! Styles of the rate-limit headers, and their values without an allocation.

use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue};
use slidegate_core::{Decision, Policy, QuotaReport};

use super::{policy_list, retry_after_seconds, sf_string, whole_seconds};

pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Style of the rate-limit headers. A denial that ends has `retry-after` in all styles except [`None`](Self::None).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of the IETF draft, as lists of all quotas.
    #[default]
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the tightest quota, the last in seconds since the epoch.
    LegacyEpoch,
    /// Like `LegacyEpoch`, with the reset in seconds from now.
    LegacyDelta,
    /// No headers, not even `retry-after` on a denial.
    None,
}

impl HeaderStyle {
    /// Passes the name and the value of each header of a decision at `now_ms` to `header`, without an allocation. `policy`
    /// has the constant parts of the headers under the policy of the decision.
    pub fn visit(
        self,
        policy: &PolicyHeaders,
        decision: &Decision,
        now_ms: u64,
        mut header: impl FnMut(&HeaderName, &[u8]),
    ) {
        if !decision.is_counted() {
            return;
        }
        policy.assert_match(decision);
        match self {
            Self::None => return,
            Self::Draft => {
                header(&RATE_LIMIT_POLICY, policy.header.as_bytes());
                policy.with_limits(decision, |limits| header(&RATE_LIMIT, limits));
            }
            Self::LegacyEpoch | Self::LegacyDelta => {
                let numbers = LegacyNumbers::new(self, &decision.tightest(), now_ms);
                header(&LEGACY_LIMIT, itoa::Buffer::new().format(numbers.limit).as_bytes());
                header(&LEGACY_REMAINING, itoa::Buffer::new().format(numbers.remaining).as_bytes());
                header(&LEGACY_RESET, itoa::Buffer::new().format(numbers.reset).as_bytes());
            }
        }
        if let Some(seconds) = retry_after_seconds(decision) {
            header(&RETRY_AFTER, itoa::Buffer::new().format(seconds).as_bytes());
        }
    }
}

/// Numbers of the tightest quota in the headers of the legacy styles.
pub(super) struct LegacyNumbers {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// Time at which all units are available again, in seconds since the epoch or from now.
    pub(super) reset: u64,
}

impl LegacyNumbers {
    pub(super) fn new(style: HeaderStyle, tightest: &QuotaReport, now_ms: u64) -> Self {
        let base_ms = if style == HeaderStyle::LegacyEpoch { now_ms } else { 0 };
        Self {
            limit: tightest.limit,
            remaining: tightest.remaining,
            reset: whole_seconds(base_ms + tightest.reset_after_ms),
        }
    }
}

/// Constant parts of the rate-limit headers under a policy, or under one of its tiers. Compute them once and keep them.
///
/// ```
/// use http::HeaderMap;
/// use slidegate::headers::{HeaderStyle, PolicyHeaders};
/// use slidegate::{Limiter, ManualClock};
///
/// let clock = ManualClock::at(0);
/// let api = Limiter::builder("api").quotas(["1/1m fixed-window"]).clock(clock).in_memory()?;
/// let policy = PolicyHeaders::new(api.policy());
///
/// let mut response = HeaderMap::new();
/// HeaderStyle::Draft.write(&mut response, &policy, &api.check_now("user:1")?, 0);
/// assert_eq!(response["ratelimit-policy"], r#""1/1m";q=1;w=60"#);
/// assert_eq!(response["ratelimit"], r#""1/1m";r=0;t=60"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyHeaders {
    header: HeaderValue,
    /// Quoted name of each quota, after a comma except for the first.
    names: Box<[String]>,
}

impl PolicyHeaders {
    /// Computes the parts.
    pub fn new(policy: &Policy) -> Self {
        // A structured field is ASCII without control characters.
        let header = HeaderValue::try_from(policy_list(policy));
        let header = header.unwrap_or_else(|_| HeaderValue::from_static(""));
        let name = |index| {
            let comma = if index == 0 { "" } else { ", " };
            comma.to_owned() + &sf_string(policy.quota_name(index))
        };
        let names = (0..policy.quotas().len()).map(name).collect();
        Self { header, names }
    }

    /// Value of `ratelimit-policy`.
    pub(super) fn policy_header(&self) -> &HeaderValue {
        &self.header
    }

    /// Whether the policy has a single quota.
    #[inline(always)]
    pub(super) fn has_one_quota(&self) -> bool {
        self.names.len() == 1
    }

    /// Checks in debug builds that the decision has a report for each quota. Lists of another policy would be wrong or cut.
    #[inline(always)]
    pub(super) fn assert_match(&self, decision: &Decision) {
        debug_assert_eq!(
            self.names.len(),
            decision.quotas().len(),
            "the headers of a decision need the `PolicyHeaders` of its policy"
        );
    }

    /// Length of the first quota's quoted name, with which the value of `ratelimit-policy` starts.
    pub(super) fn first_name_bytes(&self) -> usize {
        self.names[0].len()
    }

    /// Passes the value of `ratelimit` to `use_value`.
    pub(super) fn with_limits<T>(&self, decision: &Decision, use_value: impl FnOnce(&[u8]) -> T) -> T {
        let names = self.names.iter().map(String::as_bytes);
        with_limit_list(names.zip(decision.quotas().iter().map(ItemNumbers::from)), use_value)
    }
}

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
