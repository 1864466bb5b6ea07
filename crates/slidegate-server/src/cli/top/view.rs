//! Text of one update of `slidegate top`.

use std::fmt::Write;

use slidegate_engine::changes::Timestamp;
use slidegate_engine::decision_counts::Outcomes;
use slidegate_engine::heavy_hitters::HeavyHitter;

use crate::protocols::admin::{LiveResponse, PolicyLive};

/// Size of the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { columns: 100, rows: 40 }
    }
}

/// Content of one update.
pub(super) struct Frame<'a> {
    pub(super) current: &'a LiveResponse,
    /// Response of the previous update, for the rates.
    pub(super) previous: Option<&'a LiveResponse>,
    pub(super) server: String,
    pub(super) is_coloured: bool,
}

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

const BAR_COLUMNS: usize = 20;
const NAME_COLUMNS: usize = 22;
/// Rows that are not policies or keys.
const FRAME_ROWS: usize = 8;

impl Frame<'_> {
    pub(super) fn draw(&self, size: Size) -> String {
        let mut text = String::new();
        self.head(&mut text, size.columns);
        let rows = size.rows.saturating_sub(FRAME_ROWS);
        let shown = self.current.policies.len().min((rows / 2).max(1));
        self.policies(&mut text, shown);
        self.keys(&mut text, size.columns, rows.saturating_sub(shown).max(1));
        text
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.is_coloured { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn head(&self, text: &mut String, columns: usize) {
        let now = self.current;
        // Rounded down to a second.
        let at = Timestamp(now.now_ms / 1000 * 1000);
        let _ = write!(text, "{}  {}  {at}", self.paint(BOLD, "slidegate top"), self.server);
        if let Some(keys) = now.memory_keys {
            let _ = write!(text, "  {}", counted(keys, "key"));
        }
        let _ = write!(text, "  {}", counted(now.changes as u64, "change"));
        match now.store.as_deref() {
            None => {}
            Some("closed") => text.push_str("  store: in use"),
            Some(state) => {
                let _ = write!(text, "  {}", self.paint(RED, &format!("store: resting ({state})")));
            }
        }
        text.push('\n');
        let mut error_line = |what: &str, error: &Option<String>| {
            let Some(first) = error.as_ref().and_then(|error| error.lines().next()) else { return };
            let line = fitted(&format!("{what}: {first}"), columns);
            let _ = writeln!(text, "{}", self.paint(RED, line.trim_end()));
        };
        error_line("the store did not decide its last request", &now.store_error);
        error_line("the file is not in force", &now.config_error);
        text.push('\n');
    }

    fn policies(&self, text: &mut String, shown: usize) {
        let title = format!(
            "{:<NAME_COLUMNS$} {:<8} {:>11} {:>11}  {}",
            "POLICY", "MODE", "ALLOWED/s", "DENIED/s", "DENIED IN THE LAST MINUTE"
        );
        let _ = writeln!(text, "{}", self.paint(DIM, &title));
        let mut policies: Vec<&PolicyLive> = self.current.policies.iter().collect();
        let busy = |policy: &PolicyLive| policy.last_minute.allowed + denied(policy.last_minute);
        policies.sort_by_key(|policy| (std::cmp::Reverse(busy(policy)), policy.name.clone()));
        for policy in policies.iter().take(shown) {
            self.policy(text, policy);
        }
        let hidden = policies.len().saturating_sub(shown);
        if hidden > 0 {
            let _ = writeln!(text, "{}", self.paint(DIM, &format!("and {hidden} more")));
        }
        text.push('\n');
    }

    fn policy(&self, text: &mut String, policy: &PolicyLive) {
        let previous = self.previous.and_then(|previous| {
            let same = previous.policies.iter().find(|other| other.name == policy.name)?;
            Some((same.since_start, self.current.now_ms.saturating_sub(previous.now_ms)))
        });
        let rate = |count: fn(Outcomes) -> u64| match previous {
            Some((outcomes, elapsed_ms)) => {
                per_second(count(policy.since_start).saturating_sub(count(outcomes)), elapsed_ms)
            }
            None => "–".to_owned(),
        };
        let minute = policy.last_minute;
        let total = minute.allowed + denied(minute);
        let filled = (denied(minute) * BAR_COLUMNS as u64).div_ceil(total.max(1)) as usize;
        let bar = format!("{}{}", "█".repeat(filled), "·".repeat(BAR_COLUMNS - filled));
        let style = if denied(minute) * 20 > total { RED } else { YELLOW };
        let share = if total == 0 { "–".to_owned() } else { percent(denied(minute), total) };
        let _ = writeln!(
            text,
            "{} {:<8} {:>11} {:>11}  {} {share}",
            fitted(&policy.name, NAME_COLUMNS),
            policy.mode,
            rate(|outcomes| outcomes.allowed),
            rate(denied),
            if filled == 0 { bar } else { self.paint(style, &bar) },
        );
        if let Some(advice) = &policy.advice {
            let _ = writeln!(text, "{}", self.paint(DIM, &format!("  {advice}")));
        }
    }

    fn keys(&self, text: &mut String, columns: usize, rows: usize) {
        let width = columns.saturating_sub(2) / 2;
        let titles = ["MOST DENIED, LAST 1–2 MINUTES", "BUSIEST, LAST 1–2 MINUTES"];
        let title = titles.map(|title| fitted(title, width)).join("  ");
        let _ = writeln!(text, "{}", self.paint(DIM, title.trim_end()));
        let [denied, busiest] = [&self.current.most_denied, &self.current.busiest];
        for row in 0..rows.min(denied.len().max(busiest.len())) {
            let cell = |hitters: &[HeavyHitter]| {
                hitters.get(row).map_or(" ".repeat(width), |hitter| key_cell(hitter, width))
            };
            let line = format!("{}  {}", cell(denied), cell(busiest));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
}

fn denied(outcomes: Outcomes) -> u64 {
    outcomes.denied + outcomes.shadow
}

fn key_cell(hitter: &HeavyHitter, width: usize) -> String {
    let count = if hitter.error > 0 { format!("≤{}", hitter.count) } else { hitter.count.to_string() };
    let policy = hitter.policy.as_deref().unwrap_or("(in request)");
    let name = width.saturating_sub(count.chars().count() + 1);
    format!("{} {count}", fitted(&format!("{policy}  {}", hitter.key), name))
}

/// Formats a number and its noun, such as `1 key` or `2 keys`.
fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Pads or shortens a text to the width.
fn fitted(text: &str, width: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= width {
        return format!("{text:<width$}");
    }
    let start: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{start}…")
}

/// Replaces control characters and invisible characters with dots. A client chooses its key, which must not move the cursor
/// or reverse the text.
fn printable(text: &str) -> String {
    let is_printable = |c: char| {
        let is_invisible = matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}');
        !c.is_control() && !is_invisible
    };
    text.chars().map(|c| if is_printable(c) { c } else { '·' }).collect()
}

/// Formats a rate per second with one decimal.
fn per_second(count: u64, elapsed_ms: u64) -> String {
    let tenths = count.saturating_mul(10_000) / elapsed_ms.max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Formats a share in percent with two decimals.
fn percent(part: u64, total: u64) -> String {
    let hundredths = part.saturating_mul(10_000) / total.max(1);
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hitter(key: &str, count: u64, error: u64) -> HeavyHitter {
        HeavyHitter { policy: Some("api".to_owned()), key: key.to_owned(), count, error }
    }

    fn live(now_ms: u64, allowed: u64, denied: u64) -> LiveResponse {
        let outcomes = Outcomes { allowed, denied, ..Outcomes::default() };
        let policy = |name: &str, outcomes, advice: Option<&str>| PolicyLive {
            name: name.to_owned(),
            mode: "enforce".to_owned(),
            since_start: outcomes,
            last_minute: outcomes,
            advice: advice.map(str::to_owned),
        };
        LiveResponse {
            now_ms,
            store: Some("open".to_owned()),
            store_error: Some("no connection\nto it".to_owned()),
            memory_keys: None,
            config_error: None,
            changes: 2,
            policies: vec![
                policy("idle", Outcomes::default(), None),
                policy("api", outcomes, Some("too tight")),
            ],
            busiest: vec![hitter("user:1", 40, 3), hitter("\x1b[2Jevil\u{202E}", 4, 0)],
            most_denied: vec![hitter("user:1", 25, 0)],
        }
    }

    #[test]
    fn a_frame_shows_rates_and_heavy_hitters() {
        let (before, now) = (live(1_800_000_000_000, 100, 10), live(1_800_000_002_000, 225, 25));
        let frame = Frame {
            current: &now,
            previous: Some(&before),
            server: "http://a:1".to_owned(),
            is_coloured: false,
        };
        let expected = "\
slidegate top  http://a:1  2027-01-15T08:00:02Z  2 changes  store: resting (open)
the store did not decide its last request: no connection

POLICY                 MODE       ALLOWED/s    DENIED/s  DENIED IN THE LAST MINUTE
api                    enforce         62.5         7.5  ██·················· 10.00 %
  too tight
idle                   enforce          0.0         0.0  ···················· –

MOST DENIED, LAST 1–2 MINUTES            BUSIEST, LAST 1–2 MINUTES
api  user:1                          25  api  user:1                         ≤40
                                         api  ·[2Jevil·                        4
";
        let drawn = frame.draw(Size { columns: 80, rows: 24 });
        assert_eq!(drawn, expected, "{drawn}");
    }

    #[test]
    fn nouns_of_one_are_singular_and_a_closed_breaker_has_no_details() {
        let mut now = live(0, 0, 0);
        (now.store, now.store_error) = (Some("closed".to_owned()), None);
        (now.changes, now.memory_keys) = (1, Some(1));
        let frame = Frame { current: &now, previous: None, server: "a".to_owned(), is_coloured: false };
        let drawn = frame.draw(Size::default());
        let expected = "slidegate top  a  1970-01-01T00:00:00Z  1 key  1 change  store: in use\n\nPOLICY";
        assert!(drawn.starts_with(expected), "{drawn}");
    }

    #[test]
    fn a_frame_fits_small_terminals_and_long_names() {
        let mut now = live(0, 1, 0);
        now.policies[0].name = "x".repeat(100);
        now.store_error = Some("e".repeat(300));
        now.busiest = (0..200).map(|number| hitter(&"k".repeat(300), number, 0)).collect();
        let frame = Frame { current: &now, previous: None, server: String::new(), is_coloured: false };
        for (columns, rows) in [(80, 24), (40, 5), (1, 1)] {
            let drawn = frame.draw(Size { columns, rows });
            assert!(drawn.lines().count() <= rows.max(FRAME_ROWS + 2), "{columns}×{rows}: {drawn}");
            let error = drawn.lines().nth(1).unwrap_or_default();
            assert!(error.chars().count() <= columns, "{error}");
        }
    }
}
