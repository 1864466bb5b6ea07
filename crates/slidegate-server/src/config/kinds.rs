//! What fields take that is one word or text.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value as Json, json};
use slidegate::parse_window;

use super::field::Kind;
use super::review::{Review, hint};
use super::tree::{Node, Value};

/// The text of a scalar, or takes note that there is none.
pub(super) fn text<'a>(node: &'a Node, path: &str, wanted: &str, review: &mut Review) -> Option<&'a str> {
    match &node.value {
        Value::Scalar { text, .. } if !node.is_nothing() => Some(text),
        _ => {
            review.refuse(node.line, path, format!("expected {wanted}, not {}", node.kind()));
            None
        }
    }
}

/// Any text.
#[derive(Clone, Copy)]
pub(super) struct Text {
    /// What it is.
    pub(super) what: &'static str,
}

impl Kind for Text {
    type Value = String;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<String> {
        text(node, path, self.what, review).map(str::to_owned)
    }

    fn schema(&self) -> Json {
        json!({"type": "string"})
    }

    fn allowed(&self) -> String {
        self.what.to_owned()
    }
}

/// Where a file or a folder is.
#[derive(Clone, Copy)]
pub(super) struct PathTo(&'static str);

impl PathTo {
    pub(super) const FILE: Self = Self("the path of a file");
    pub(super) const FOLDER: Self = Self("the path of a folder");
}

impl Kind for PathTo {
    type Value = PathBuf;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<PathBuf> {
        text(node, path, self.0, review).map(PathBuf::from)
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "minLength": 1})
    }

    fn allowed(&self) -> String {
        self.0.to_owned()
    }
}

/// A text that can be parsed. Its own errors say what is allowed.
pub(super) struct Parsed<T> {
    /// What it is.
    what: &'static str,
    /// What it looks like, for editors.
    pattern: &'static str,
    into: PhantomData<fn() -> T>,
}

impl<T> Parsed<T> {
    pub(super) const fn new(what: &'static str, pattern: &'static str) -> Self {
        Self { what, pattern, into: PhantomData }
    }
}

impl<T> Clone for Parsed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Parsed<T> {}

impl<T: FromStr<Err = String>> Kind for Parsed<T> {
    type Value = T;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<T> {
        let text = text(node, path, self.what, review)?;
        text.parse().map_err(|message: String| review.refuse(node.line, path, message)).ok()
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": self.pattern})
    }

    fn allowed(&self) -> String {
        self.what.to_owned()
    }
}

/// How much of what is no number an error repeats.
const MOST_REPEATED: usize = 40;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_REPEATED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A whole number in a range.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Kind for Whole {
    type Value = u64;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<u64> {
        let found = match &node.value {
            Value::Scalar { text, is_plain } if !node.is_nothing() => {
                let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
                let number = text.parse().ok().filter(|number| (self.min..=self.max).contains(number));
                match number {
                    Some(number) if is_digits && *is_plain => return Some(number),
                    Some(_) if is_digits => format!("{text:?} in quotes"),
                    _ => shortened(text),
                }
            }
            _ => node.kind().to_owned(),
        };
        review.refuse(node.line, path, format!("{found} is not {}", self.allowed()));
        None
    }

    fn schema(&self) -> Json {
        json!({"type": "integer", "minimum": self.min, "maximum": self.max})
    }

    fn allowed(&self) -> String {
        format!("a whole number between {} and {}", self.min, self.max)
    }
}

/// `true` or `false`.
#[derive(Clone, Copy)]
pub(super) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<bool> {
        let found = match &node.value {
            Value::Scalar { text, is_plain: true } if !node.is_nothing() => match text.as_str() {
                "true" | "True" | "TRUE" => return Some(true),
                "false" | "False" | "FALSE" => return Some(false),
                _ => shortened(text),
            },
            _ => node.kind().to_owned(),
        };
        review.refuse(node.line, path, format!("{found} is neither true nor false"));
        None
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }
}

/// A word that the configuration knows.
pub(crate) trait Word: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];

    /// How it is written.
    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

/// One of some words.
#[derive(Clone, Copy)]
pub(super) struct OneOf<T>(pub(super) PhantomData<T>);

impl<T> OneOf<T> {
    pub(super) const ANY: Self = Self(PhantomData);
}

impl<T: Word> OneOf<T> {
    fn names() -> impl Iterator<Item = &'static str> {
        T::ALL.iter().map(|(name, _)| *name)
    }
}

impl<T: Word> Kind for OneOf<T> {
    type Value = T;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<T> {
        let allowed = self.allowed();
        let text = text(node, path, &allowed, review)?;
        let found = T::ALL.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let message = format!("{text:?} is not {allowed}{}", hint(text, Self::names()));
            review.refuse(node.line, path, message);
        }
        found.map(|(_, value)| *value)
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "enum": Self::names().collect::<Vec<_>>()})
    }

    fn allowed(&self) -> String {
        format!("one of {}", Self::names().collect::<Vec<_>>().join(", "))
    }
}

/// A time.
#[derive(Clone, Copy)]
pub(super) struct Time {
    most: Duration,
    most_text: &'static str,
    /// Whether `none` may be written in its place.
    may_be_none: bool,
}

impl Time {
    /// The longest that anybody may be made to wait.
    pub(super) const UP_TO_A_MINUTE: Self =
        Self { most: Duration::from_mins(1), most_text: "1m", may_be_none: false };
    /// The longest that a connection may be allowed to take for anything.
    pub(super) const UP_TO_AN_HOUR: Self =
        Self { most: Duration::from_hours(1), most_text: "1h", may_be_none: false };

    pub(super) const fn or_none(self) -> Self {
        Self { may_be_none: true, ..self }
    }
}

impl Kind for Time {
    type Value = Duration;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<Duration> {
        let allowed = self.allowed();
        let text = text(node, path, &allowed, review)?;
        if self.may_be_none && text == "none" {
            return Some(Duration::ZERO);
        }
        let understood = parse_window(text).ok();
        let time = understood.filter(|time| *time <= self.most);
        if time.is_none() {
            let is_number = text.parse::<u32>().is_ok_and(|number| number > 0);
            let hint = match understood {
                None if is_number => format!("; write {text}ms or {text}s"),
                None => "; write 500ms, 10s or 1m".to_owned(),
                Some(_) => String::new(),
            };
            review.refuse(node.line, path, format!("{text:?} is not {allowed}{hint}"));
        }
        time
    }

    fn schema(&self) -> Json {
        let none = if self.may_be_none { "|none" } else { "" };
        json!({"type": "string", "pattern": format!("^([0-9]*(ms|s|m|h|d|sec|min|hour|day){none})$")})
    }

    fn allowed(&self) -> String {
        let none = if self.may_be_none { ", or none" } else { "" };
        format!("a time between 1ms and {}{none}", self.most_text)
    }
}
