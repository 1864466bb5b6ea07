//! Medians and ranges, and the rows that they stand in.

use std::fmt;

/// What several rounds gave.
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

/// `20.2 (19.8–21.0)`.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", short(self.median()))?;
        match self.0.as_slice() {
            [least, .., most] => write!(f, " ({}–{})", short(*least), short(*most)),
            _ => Ok(()),
        }
    }
}

/// Three digits or so, large ones in thousands.
fn short(figure: f64) -> String {
    match figure {
        100_000.0.. => format!("{:.0} k", figure / 1000.0),
        10_000.0.. => format!("{:.1} k", figure / 1000.0),
        100.0.. => format!("{figure:.0}"),
        _ => format!("{figure:.1}"),
    }
}

/// One figure that needs no second measurement.
impl From<f64> for Figures {
    fn from(figure: f64) -> Self {
        Self(vec![figure])
    }
}

/// What Slidegate does, beside what somebody else does.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) here: Figures,
    pub(crate) beside: Figures,
    pub(crate) aim: Aim,
}

/// What the first figure should be, in terms of the second.
#[derive(Clone, Copy)]
pub(crate) enum Aim {
    AtLeast(f64),
    AtMost(f64),
    /// Only for comparison.
    Open,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.aim.verdict(self.here.median() / self.beside.median());
        write!(f, "| {} | {} | {} | {verdict} |", self.what, self.here, self.beside)
    }
}

impl Aim {
    /// `1/3.1 | at most 1/3`, with a word about it if it is missed.
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

/// `3` or `2.5`.
fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
