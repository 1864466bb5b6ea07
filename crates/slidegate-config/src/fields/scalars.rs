//! Kinds of fields with a single value: texts, numbers, words and times.

use std::fmt::Display;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value as Json, json};
use slidegate::parse_window;

use crate::fields::diagnostics::{Diagnostics, hint};
use crate::fields::field::Kind;
use crate::fields::tree::{Node, Value};

/// Returns the text of a scalar, or reports that the node is none.
pub(crate) fn text<'a>(
    node: &'a Node,
    path: &str,
    wanted: &str,
    diagnostics: &mut Diagnostics,
) -> Option<&'a str> {
    match &node.value {
        Value::Scalar { text, .. } if !node.is_null() => Some(text),
        _ => {
            diagnostics.report(node.line, path, format!("expected {wanted}, not {}", node.kind()));
            None
        }
    }
}

/// Any text.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    /// Description in messages.
    pub(crate) noun: &'static str,
}

impl Kind for Text {
    type Value = String;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<String> {
        text(node, path, self.noun, diagnostics).map(str::to_owned)
    }

    fn schema(&self) -> Json {
        json!({"type": "string"})
    }

    fn expected(&self) -> String {
        self.noun.to_owned()
    }
}

/// Path of a file or a folder.
#[derive(Clone, Copy)]
pub(crate) struct FsPath(&'static str);

impl FsPath {
    pub(crate) const FILE: Self = Self("the path of a file");
    pub(crate) const FOLDER: Self = Self("the path of a folder");
}

impl Kind for FsPath {
    type Value = PathBuf;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<PathBuf> {
        text(node, path, self.0, diagnostics).map(PathBuf::from)
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "minLength": 1})
    }

    fn expected(&self) -> String {
        self.0.to_owned()
    }
}

/// A text with a parser, whose errors become the messages.
pub(crate) struct Parsed<T> {
    /// Description in messages.
    noun: &'static str,
    /// Regular expression for the JSON Schema.
    pattern: &'static str,
    into: PhantomData<fn() -> T>,
}

impl<T> Parsed<T> {
    pub(crate) const fn new(noun: &'static str, pattern: &'static str) -> Self {
        Self { noun, pattern, into: PhantomData }
    }
}

impl<T> Clone for Parsed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Parsed<T> {}

impl<T: FromStr<Err: Display>> Kind for Parsed<T> {
    type Value = T;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<T> {
        let text = text(node, path, self.noun, diagnostics)?;
        text.parse().map_err(|error: T::Err| diagnostics.report(node.line, path, error.to_string())).ok()
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": self.pattern})
    }

    fn expected(&self) -> String {
        self.noun.to_owned()
    }
}

/// Maximum length of an invalid value in a message.
const MAX_QUOTED_CHARS: usize = 40;

pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An integer in a range.
#[derive(Clone, Copy)]
pub(crate) struct Integer {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Kind for Integer {
    type Value = u64;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<u64> {
        let found = match &node.value {
            Value::Scalar { text, is_plain } if !node.is_null() => {
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
        diagnostics.report(node.line, path, format!("{found} is not {}", self.expected()));
        None
    }

    fn schema(&self) -> Json {
        json!({"type": "integer", "minimum": self.min, "maximum": self.max})
    }

    fn expected(&self) -> String {
        format!("a whole number between {} and {}", self.min, self.max)
    }
}

/// `true` or `false`.
#[derive(Clone, Copy)]
pub(crate) struct Boolean;

impl Kind for Boolean {
    type Value = bool;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<bool> {
        let found = match &node.value {
            Value::Scalar { text, is_plain: true } if !node.is_null() => match text.as_str() {
                "true" | "True" | "TRUE" => return Some(true),
                "false" | "False" | "FALSE" => return Some(false),
                _ => shortened(text),
            },
            _ => node.kind().to_owned(),
        };
        diagnostics.report(node.line, path, format!("{found} is not true or false"));
        None
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }

    fn expected(&self) -> String {
        "true or false".to_owned()
    }
}

/// A value that the configuration writes as one of several keywords.
pub trait Keyword: Copy + PartialEq + 'static {
    /// Returns all values with their keywords.
    fn all() -> impl Iterator<Item = (&'static str, Self)>;

    /// Returns the keyword of the value.
    fn keyword(self) -> &'static str {
        Self::all().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

/// One of the keywords of `T`.
#[derive(Clone, Copy)]
pub(crate) struct OneOf<T>(pub(crate) PhantomData<T>);

impl<T> OneOf<T> {
    pub(crate) const ANY: Self = Self(PhantomData);
}

impl<T: Keyword> OneOf<T> {
    fn names() -> impl Iterator<Item = &'static str> {
        T::all().map(|(name, _)| name)
    }
}

impl<T: Keyword> Kind for OneOf<T> {
    type Value = T;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<T> {
        let expected = self.expected();
        let text = text(node, path, &expected, diagnostics)?;
        let found = T::all().find(|(name, _)| *name == text);
        if found.is_none() {
            let message = format!("{text:?} is not {expected}{}", hint(text, Self::names()));
            diagnostics.report(node.line, path, message);
        }
        found.map(|(_, value)| value)
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "enum": Self::names().collect::<Vec<_>>()})
    }

    fn expected(&self) -> String {
        format!("one of {}", Self::names().collect::<Vec<_>>().join(", "))
    }
}

/// A duration with its unit.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    max: Duration,
    max_text: &'static str,
    /// Whether `none` is accepted, as zero.
    accepts_none: bool,
}

impl Time {
    /// Range of the times that delay a response.
    pub(crate) const UP_TO_A_MINUTE: Self =
        Self { max: Duration::from_mins(1), max_text: "1m", accepts_none: false };
    /// Range of the timeouts of connections.
    pub(crate) const UP_TO_AN_HOUR: Self =
        Self { max: Duration::from_hours(1), max_text: "1h", accepts_none: false };

    pub(crate) const fn or_none(self) -> Self {
        Self { accepts_none: true, ..self }
    }
}

impl Kind for Time {
    type Value = Duration;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Duration> {
        let expected = self.expected();
        let text = text(node, path, &expected, diagnostics)?;
        if self.accepts_none && text == "none" {
            return Some(Duration::ZERO);
        }
        let parsed = parse_window(text).ok();
        let time = parsed.filter(|time| *time <= self.max);
        if time.is_none() {
            let is_number = text.parse::<u32>().is_ok_and(|number| number > 0);
            let hint = match parsed {
                None if is_number => format!("; write {text}ms or {text}s"),
                None => "; write 500ms, 10s or 1m".to_owned(),
                Some(_) => String::new(),
            };
            diagnostics.report(node.line, path, format!("{text:?} is not {expected}{hint}"));
        }
        time
    }

    fn schema(&self) -> Json {
        let none = if self.accepts_none { "|none" } else { "" };
        json!({"type": "string", "pattern": format!("^([0-9]*(ms|s|m|h|d|sec|min|hour|day){none})$")})
    }

    fn expected(&self) -> String {
        let none = if self.accepts_none { ", or none" } else { "" };
        format!("a time between 1ms and {}{none}", self.max_text)
    }
}
