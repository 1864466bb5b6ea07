//! Times in the file.

use std::time::Duration;

use serde_saphyr::Spanned;
use slidegate::parse_window;

use super::build::line_of;
use super::problem::Problem;

/// The longest that anybody may be made to wait.
const MOST: Duration = Duration::from_mins(1);

pub(super) fn span(
    field: &str,
    text: Option<&Spanned<String>>,
    problems: &mut Vec<Problem>,
) -> Option<Duration> {
    up_to(MOST, "1m", field, text, problems)
}

pub(super) fn up_to(
    most: Duration,
    most_text: &str,
    field: &str,
    text: Option<&Spanned<String>>,
    problems: &mut Vec<Problem>,
) -> Option<Duration> {
    let text = text?;
    let span = parse_window(&text.value).ok().filter(|span| *span <= most);
    if span.is_none() {
        let refused = format!("{:?} is not a time between 1ms and {most_text}", text.value);
        problems.push(Problem::at(line_of(text), field, refused));
    }
    span
}
