//! Rate-limit headers. Those of draft-ietf-httpapi-ratelimit-headers are structured-field lists.

#[cfg(feature = "http")]
mod response_headers;
#[cfg(feature = "http")]
mod style;

use slidegate_core::{Decision, Policy, QuotaReport};

#[cfg(feature = "tower")]
pub(crate) use self::response_headers::ResponseHeaders;
#[cfg(feature = "http")]
pub use self::style::{HeaderStyle, PolicyHeaders};

/// Returns the HTTP headers of a decision: `ratelimit-policy`, `ratelimit` and, for a denial with a retry time,
/// `retry-after`. Names are in lower case, as HTTP/2 requires; values are ASCII.
///
/// A decision that counted nothing, because a rule made it or the store failed, has no headers.
///
/// In `ratelimit-policy`, `q` and `w` are the rate: a token bucket's burst may exceed `q`. In `ratelimit`, `r` is the
/// remaining quota and `t` the wait until it grows.
///
/// ```
/// use slidegate::{ManualClock, Policy, rate_limit_headers};
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// let limiter = StoreLimiter::new(MemoryStore::builder().clock(ManualClock::at(0)).build()?);
/// let policy = Policy::parse("api", ["100/1m"])?;
/// let decision = limiter.check_now(policy.key("user:1"))?;
/// let headers = rate_limit_headers(&policy, &decision);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""100/1m";q=100;w=60"#.to_owned()));
/// assert_eq!(headers[1], ("ratelimit", r#""100/1m";r=99;t=120"#.to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn rate_limit_headers(policy: &Policy, decision: &Decision) -> Vec<(&'static str, String)> {
    if !decision.is_counted() {
        return Vec::new();
    }
    let mut headers =
        vec![("ratelimit-policy", policy_list(policy)), ("ratelimit", limit_list(policy, decision))];
    if let Some(seconds) = retry_after_seconds(decision) {
        headers.push(("retry-after", seconds.to_string()));
    }
    headers
}

/// The value of the header `retry-after`: the longest of all waits in whole seconds, rounded up like `t`. Never earlier than
/// the `t` of a quota that denied the request, which after a charge beyond the limit is later than the retry of the charge.
pub fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    let retry_after_ms = decision.retry_after_ms()?;
    let violated = decision.quotas().into_iter().filter(|report| report.retry.is_some());
    Some(whole_seconds(violated.map(|report| report.more_after_ms).fold(retry_after_ms, u64::max)))
}

/// Returns the value of `ratelimit-policy`.
fn policy_list(policy: &Policy) -> String {
    list(
        policy,
        policy.quotas().iter().map(|quota| [quota.limit(), whole_seconds(quota.window_ms())]),
        ["q", "w"],
    )
}

/// Returns the value of `ratelimit`.
fn limit_list(policy: &Policy, decision: &Decision) -> String {
    let numbers = |report: &QuotaReport| [report.remaining, whole_seconds(report.more_after_ms)];
    list(policy, decision.quotas().iter().map(numbers), ["r", "t"])
}

/// Builds a list without formatting machinery and with an exact capacity, because it runs for each response. Spare
/// capacity would cost an allocation when the string becomes a header value.
fn list(
    policy: &Policy,
    quotas: impl ExactSizeIterator<Item = [u64; 2]> + Clone,
    names: [&str; 2],
) -> String {
    let item = |(index, numbers): (usize, [u64; 2])| {
        let name = comma(index).len() + policy.quota_name(index).len() + 2;
        let parameter = |(name, number): (&str, u64)| name.len() + 2 + digits(number);
        name + names.into_iter().zip(numbers).map(parameter).sum::<usize>()
    };
    let mut list = String::with_capacity(quotas.clone().enumerate().map(item).sum());
    for (index, numbers) in quotas.enumerate() {
        list.push_str(comma(index));
        push_sf_string(&mut list, policy.quota_name(index));
        for (name, number) in names.into_iter().zip(numbers) {
            list.push(';');
            list.push_str(name);
            list.push('=');
            list.push_str(itoa::Buffer::new().format(number));
        }
    }
    list
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |last| last as usize + 1)
}

fn comma(index: usize) -> &'static str {
    if index == 0 { "" } else { ", " }
}

/// Converts milliseconds to seconds, rounded up.
fn whole_seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// Returns a structured-field string, which holds printable ASCII only. Other characters in a name become `?`.
#[cfg(feature = "http")]
fn sf_string(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    push_sf_string(&mut text, name);
    text
}

fn push_sf_string(text: &mut String, name: &str) {
    text.push('"');
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        // The common case.
        text.push_str(name);
    } else {
        for character in name.chars() {
            match character {
                '"' | '\\' => text.extend(['\\', character]),
                ' '..='~' => text.push(character),
                _ => text.push('?'),
            }
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sfv::{List, ListEntry, Parser};

    use super::*;
    use crate::ManualClock;
    use crate::store::{MemoryStore, StoreLimiter};

    fn limiter() -> StoreLimiter<MemoryStore<ManualClock>> {
        StoreLimiter::new(MemoryStore::builder().clock(ManualClock::at(60_000)).build().unwrap())
    }

    /// Parses a list into `(name, [(parameter, value)])`.
    fn parse(value: &str) -> Vec<(String, Vec<(String, i64)>)> {
        let list: List = Parser::new(value).parse().unwrap();
        list.iter()
            .map(|entry| {
                let ListEntry::Item(item) = entry else { panic!("{value}: not an item") };
                let number = |value: &sfv::BareItem| i64::from(value.as_integer().unwrap());
                let parameters =
                    item.params.iter().map(|(key, value)| (key.as_str().to_owned(), number(value))).collect();
                (item.bare_item.as_string().unwrap().as_str().to_owned(), parameters)
            })
            .collect()
    }

    fn item(name: &str, parameters: [(&str, i64); 2]) -> (String, Vec<(String, i64)>) {
        (name.to_owned(), parameters.map(|(key, value)| (key.to_owned(), value)).to_vec())
    }

    #[test]
    fn every_quota_is_listed_and_parses_back() {
        let policy = Policy::with_names(
            "api",
            [("burst", "1/1500ms fixed-window".parse().unwrap()), ("daily", "1000/1d".parse().unwrap())],
        )
        .unwrap();
        let limiter = limiter();
        let headers = rate_limit_headers(&policy, &limiter.check_now(policy.key("a")).unwrap());
        let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["ratelimit-policy", "ratelimit"]);
        let policies = [item("burst", [("q", 1), ("w", 2)]), item("daily", [("q", 1000), ("w", 86_400)])];
        assert_eq!(parse(&headers[0].1), policies);
        // The clock is one minute into the day. A sliding window is full again at the end of the following window.
        let limits = [item("burst", [("r", 0), ("t", 2)]), item("daily", [("r", 999), ("t", 172_740)])];
        assert_eq!(parse(&headers[1].1), limits);
    }

    #[test]
    fn the_retry_time_of_a_denial_is_not_earlier_than_t() {
        let policy =
            Policy::with_names("api", [("a", "1/1s".parse().unwrap()), ("b", "1/1m".parse().unwrap())])
                .unwrap();
        let limiter = limiter();
        assert!(limiter.check_now(policy.key("a")).unwrap().is_allowed());
        let decision = limiter.check_now(policy.key("a")).unwrap();
        let headers = rate_limit_headers(&policy, &decision);
        assert_eq!(headers[2].0, "retry-after");
        let retry_after: i64 = headers[2].1.parse().unwrap();
        let longest = parse(&headers[1].1).iter().map(|(_, parameters)| parameters[1].1).max().unwrap();
        assert_eq!(retry_after, longest);
        assert_eq!(retry_after, 120);
    }

    #[test]
    fn retry_after_is_never_earlier_than_t_of_a_violated_quota() {
        let quotas =
            ["4/10s", "4/10s strict-window", "4/10s fixed-window", "4/10s sliding-log", "4/10s token-bucket"];
        for quota in quotas {
            let policy = Policy::parse("api", [quota]).unwrap();
            for charges in [[5, 0], [4, 3], [4, 400], [100, 1]] {
                let limiter = limiter();
                for cost in charges {
                    let charged = limiter.charge_now(policy.key("a").cost(cost)).unwrap();
                    check_retry_after(&policy, &charged, quota);
                }
                let checked = limiter.check_now(policy.key("a")).unwrap();
                assert!(!checked.is_allowed(), "{quota} {charges:?}");
                check_retry_after(&policy, &checked, quota);
            }
            for spent in [0, 3, 4] {
                let limiter = limiter();
                let _ = limiter.charge_now(policy.key("a").cost(spent)).unwrap();
                for seconds in [1, 5, 60] {
                    let _ = limiter.block_now(policy.key("a"), Duration::from_secs(seconds)).unwrap();
                    for cost in [1, 4] {
                        let blocked = limiter.check_now(policy.key("a").cost(cost)).unwrap();
                        assert!(!blocked.is_allowed(), "{quota} {spent} {seconds}");
                        check_retry_after(&policy, &blocked, quota);
                    }
                }
            }
        }
    }

    /// Compares `retry-after` with `t`, and both with the decision.
    fn check_retry_after(policy: &Policy, decision: &Decision, quota: &str) {
        let headers = rate_limit_headers(policy, decision);
        let t = parse(&headers[1].1)[0].1[1].1;
        let retry_after = headers.get(2).map(|(_, value)| value.parse::<i64>().unwrap());
        assert_eq!(retry_after.is_some(), decision.retry_after_ms().is_some(), "{quota}: {decision:?}");
        let retry_ms = i64::try_from(decision.retry_after_ms().unwrap_or(0)).unwrap();
        if let Some(seconds) = retry_after {
            assert!(seconds >= t && 1000 * seconds >= retry_ms, "{quota}: {seconds} {t} {decision:?}");
        }
    }

    #[test]
    fn a_cost_above_the_limit_has_no_retry_time() {
        let policy = Policy::parse("api", ["5/1s"]).unwrap();
        let decision = limiter().check_now(policy.key("a").cost(6)).unwrap();
        let headers = rate_limit_headers(&policy, &decision);
        assert_eq!(headers.len(), 2);
        assert_eq!(parse(&headers[1].1), [item("5/1s", [("r", 5), ("t", 0)])]);
    }

    #[test]
    fn any_name_gives_a_valid_header() {
        let hostile = "quote \"hi\" \\ größe 限 \u{ad}";
        let policy = Policy::with_names("api", [(hostile, "5/1s".parse().unwrap())]).unwrap();
        let headers = rate_limit_headers(&policy, &limiter().check_now(policy.key("a")).unwrap());
        assert_eq!(parse(&headers[0].1), [item("quote \"hi\" \\ gr??e ? ?", [("q", 5), ("w", 1)])]);
        assert!(headers.iter().all(|(_, value)| value.is_ascii()));
    }

    #[test]
    fn a_list_has_no_spare_capacity() {
        let policy = Policy::parse("api", ["10/1s", "281474976710656/366d"]).unwrap();
        for (name, value) in
            rate_limit_headers(&policy, &limiter().check_now(policy.key("a").cost(0)).unwrap())
        {
            assert_eq!(value.capacity(), value.len(), "{name}: {value}");
        }
    }

    #[test]
    fn the_largest_numbers_fit() {
        let policy = Policy::parse("api", ["281474976710656/366d"]).unwrap();
        let headers = rate_limit_headers(&policy, &limiter().check_now(policy.key("a").cost(0)).unwrap());
        assert_eq!(parse(&headers[0].1)[0].1[0].1, 1 << 48);
    }
}
