//! Our own format.

use std::fmt::Write;

use slidegate::Quota;

/// What was understood, and the files that say the same.
pub(super) struct Imported {
    pub(super) told: String,
    pub(super) files: Vec<Written>,
}

/// A file that was made.
pub(super) struct Written {
    /// Its name in the folder, if there can be several.
    pub(super) name: Option<String>,
    pub(super) text: String,
}

impl Imported {
    /// One file in our own format.
    pub(super) fn one(told: String, text: String) -> Self {
        Self { told, files: vec![Written { name: None, text }] }
    }
}

/// A file that is being written.
pub(super) struct Writer(String);

impl Writer {
    /// With comments at its beginning.
    pub(super) fn new(comments: &[&str]) -> Self {
        let mut text = String::new();
        for comment in comments {
            let _ = writeln!(text, "# {comment}");
        }
        text.push_str("policies:\n");
        Self(text)
    }

    pub(super) fn policy(&mut self, name: &str, quotas: &[(&str, Quota)], is_shadow: bool) {
        // What JSON takes for a text, YAML does as well.
        let _ = writeln!(self.0, "  {}:\n    quotas:", serde_json::json!(name));
        for (quota_name, quota) in quotas {
            let algorithm = quota.algorithm();
            let label = quota.label();
            let (limit, window) = label.split_once('/').unwrap_or((&label, "1s"));
            let _ = writeln!(
                self.0,
                "      - {{limit: {limit}, window: {window}, algorithm: {algorithm}, name: {}}}",
                serde_json::json!(quota_name)
            );
        }
        if is_shadow {
            self.0.push_str("    mode: shadow\n");
        }
    }

    pub(super) fn comment(&mut self, text: &str) {
        // A line of its own, whatever a name holds.
        let _ = writeln!(self.0, "  # {}", text.replace(char::is_control, "?"));
    }

    pub(super) fn finish(mut self, is_empty: bool) -> String {
        if is_empty {
            self.0 = self.0.replace("policies:\n", "policies: {}\n");
        }
        self.0
    }
}
