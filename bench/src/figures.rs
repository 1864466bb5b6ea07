//! Medians and ranges of measurements, and table rows of them.

use std::fmt;

/// Measurements of one figure over several rounds, sorted.
#[derive(Clone, Default)]
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    pub(crate) fn push(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

/// Formats the median and the range: `20.2 (19.8–21.0)`.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", short(self.median()))?;
        match self.0.as_slice() {
            [least, .., most] => write!(f, " ({}–{})", short(*least), short(*most)),
            _ => Ok(()),
        }
    }
}

/// Formats a figure with about three digits, large ones in thousands.
fn short(figure: f64) -> String {
    match figure {
        100_000.0.. => format!("{:.0} k", figure / 1000.0),
        10_000.0.. => format!("{:.1} k", figure / 1000.0),
        100.0.. => format!("{figure:.0}"),
        _ => format!("{figure:.1}"),
    }
}

/// A figure that is measured only once.
impl From<f64> for Figures {
    fn from(figure: f64) -> Self {
        Self(vec![figure])
    }
}

/// Table row: a figure of Slidegate beside the same figure of a peer.
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) here: Figures,
    pub(crate) beside: Figures,
    pub(crate) aim: Aim,
}

/// Target for the ratio of the first figure to the second.
#[derive(Clone, Copy)]
pub(crate) enum Aim {
    AtLeast(f64),
    AtMost(f64),
    /// No target; the row is for comparison.
    Open,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.aim.verdict(self.here.median() / self.beside.median());
        write!(f, "| {} | {} | {} | {verdict} |", self.label, self.here, self.beside)
    }
}

impl Aim {
    /// Formats the ratio and the target, `1/3.1 | at most 1/3`, followed by `, missed` if the target is missed.
    pub(crate) fn verdict(self, ratio: f64) -> String {
        let (aim, is_reached) = match self {
            Self::AtLeast(aim) => (format!("at least {aim}"), ratio >= aim),
            Self::AtMost(aim) if aim < 0.5 => (format!("at most 1/{}", rounded(1.0 / aim)), ratio <= aim),
            Self::AtMost(aim) => (format!("at most {aim}"), ratio <= aim),
            Self::Open => ("–".to_owned(), true),
        };
        let shown = if ratio < 0.5 { format!("1/{:.1}", 1.0 / ratio) } else { format!("{ratio:.2}") };
        let missed = if is_reached { "" } else { ", missed" };
        format!("{shown} | {aim}{missed}")
    }
}

/// Rounds to one decimal: `3` or `2.5`.
fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
