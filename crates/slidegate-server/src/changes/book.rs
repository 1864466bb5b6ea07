//! The book of changes: what is in force beside the file, and who has changed what.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::merge::Removal;
use super::moment::Moment;
use super::stamp::Stamp;

/// The most changes at a time. What is in force is worked out anew with each, and every node reads all of it.
pub(crate) const MOST_CHANGES: usize = 5000;

/// What a change is about. Whatever is changed about the same subject takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub(crate) struct Subject {
    pub(crate) policy: String,
    #[serde(flatten)]
    pub(crate) part: Part,
}

/// A part of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(tag = "of", content = "name", rename_all = "lowercase")]
pub(crate) enum Part {
    /// Whether it is enforced.
    Mode,
    /// Its quotas.
    Quotas,
    /// Those of a tier.
    Tier(String),
    /// What holds for one key.
    Key(String),
    /// What all keys have spent.
    Keys,
}

impl Part {
    /// What it is and what it is called, for the log, where keys are not written as they are.
    pub(crate) fn named(&self, hide: impl Fn(&str) -> String) -> (&'static str, Option<String>) {
        match self {
            Self::Mode => ("mode", None),
            Self::Quotas => ("quotas", None),
            Self::Tier(tier) => ("tier", Some(tier.clone())),
            Self::Key(key) => ("key", Some(hide(key))),
            Self::Keys => ("keys", None),
        }
    }
}

/// A change that is in force, or was until lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Change {
    /// Its identity; given when it is put into the book.
    #[serde(default)]
    #[schema(value_type = String)]
    pub(crate) id: Stamp,
    #[serde(flatten)]
    pub(crate) subject: Subject,
    #[serde(flatten)]
    pub(crate) what: What,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Moment>,
    /// Whose token it was.
    pub(crate) by: String,
    pub(crate) at: Moment,
    /// Why, if somebody has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// What is changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// `enforce`, `shadow` or `off`.
    Mode(String),
    /// As they were given, which is as they are shown.
    Quotas(Vec<Value>),
    /// The tier in which a key is.
    #[serde(rename = "tier")]
    InTier(String),
}

impl Change {
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.until.is_some_and(|until| until.0 <= now_ms)
    }

    /// What it says, without what the audit says anyway.
    pub(crate) fn told(&self) -> Value {
        let mut told = match &self.what {
            What::Mode(mode) => json!({ "mode": mode }),
            What::Quotas(quotas) => json!({ "quotas": quotas }),
            What::InTier(tier) => json!({ "tier": tier }),
        };
        if let Some(until) = self.until {
            told["until"] = json!(until);
        }
        told
    }
}

/// What somebody did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditEntry {
    /// Its identity: that of the change, if it is about one.
    #[serde(default)]
    #[schema(value_type = String)]
    pub(crate) id: Stamp,
    pub(crate) at: Moment,
    pub(crate) by: String,
    pub(crate) action: Action,
    #[serde(flatten)]
    pub(crate) subject: Subject,
    /// What held before; null if it was as the file has it.
    pub(crate) before: Value,
    /// What holds from then on.
    pub(crate) after: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// The kinds of what can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    Set,
    Remove,
    Refund,
    Reset,
    Block,
    /// Nobody did anything: its time was over.
    Expire,
}

/// All changes, and the log of who made them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Book {
    /// Grows with each edition. Builds that cannot merge adopt the document with the larger one; nothing else reads it.
    #[serde(default)]
    pub(super) generation: u64,
    /// Of several about one subject, the last that is not over is in force.
    #[serde(default)]
    pub(crate) changes: Vec<Change>,
    /// Keep changes that were removed or have ended from coming back.
    #[serde(default)]
    pub(super) removals: Vec<Removal>,
    /// The latest first.
    #[serde(default)]
    pub(crate) audit: VecDeque<AuditEntry>,
}

impl Book {
    /// The change about a subject that is in force.
    pub(crate) fn find(&self, subject: &Subject, now_ms: u64) -> Option<&Change> {
        let about = |change: &&Change| change.subject == *subject && !change.is_over(now_ms);
        self.changes.iter().rev().find(about)
    }

    /// Puts a change in the place of what is about the same subject, except for what lasts longer: that is in force again
    /// when this one ends. Returns the identity of the change, or an error if there are too many.
    pub(crate) fn put(&mut self, change: Change, now_ms: u64) -> Result<Stamp, String> {
        let id = self.next_stamp(now_ms);
        self.changes.push(Change { id, ..change });
        self.settle();
        if self.changes.len() > MOST_CHANGES {
            return Err(format!(
                "there are {MOST_CHANGES} changes already, and no more are kept: remove some"
            ));
        }
        Ok(id)
    }

    /// Removes all changes about a subject. Returns the identity of the removal, unless nothing was in force.
    pub(crate) fn remove(&mut self, subject: &Subject, now_ms: u64) -> Option<Stamp> {
        self.find(subject, now_ms)?;
        let id = self.next_stamp(now_ms);
        self.removals.push(Removal { id, subject: subject.clone(), until: None, made_ms: id.ms });
        self.settle();
        Some(id)
    }

    pub(crate) fn write_down(&mut self, entry: AuditEntry) {
        self.audit.push_front(entry);
        self.settle();
    }

    /// The next moment at which a change ends.
    pub(crate) fn next_end_ms(&self, now_ms: u64) -> Option<u64> {
        self.changes.iter().filter_map(|change| Some(change.until?.0)).filter(|end| *end > now_ms).min()
    }
}
