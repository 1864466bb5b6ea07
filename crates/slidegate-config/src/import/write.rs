//! Writer of configuration files.

use std::fmt::Write;

use slidegate::Quota;

/// Writer of a configuration file.
pub(super) struct ConfigWriter(String);

impl ConfigWriter {
    /// Begins the file with comments.
    pub(super) fn new(comments: &[&str]) -> Self {
        let mut text = String::new();
        for comment in comments {
            let _ = writeln!(text, "# {comment}");
        }
        text.push_str("policies:\n");
        Self(text)
    }

    pub(super) fn policy(&mut self, name: &str, quotas: &[(&str, Quota)], is_shadow: bool) {
        // A JSON string is a YAML string.
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
        // A line break in a name would end the comment.
        let _ = writeln!(self.0, "  # {}", text.replace(char::is_control, "?"));
    }

    pub(super) fn finish(mut self, is_empty: bool) -> String {
        if is_empty {
            self.0 = self.0.replace("policies:\n", "policies: {}\n");
        }
        self.0
    }
}
