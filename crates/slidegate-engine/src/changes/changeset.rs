//! The changeset: all runtime changes of operators, and the audit log.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::operation_id::OperationId;
use super::timestamp::Timestamp;

/// Maximum number of changes. Each change rebuilds the effective configuration, and every node reads the whole changeset.
pub(crate) const MAX_CHANGES: usize = 5000;

/// Part of a policy that a change sets. A change replaces earlier changes of the same subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Subject {
    pub policy: String,
    #[serde(flatten)]
    pub part: Part,
}

/// Part of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(tag = "of", content = "name", rename_all = "lowercase")]
pub enum Part {
    /// Mode of the policy: enforce, shadow or off.
    Mode,
    /// Quotas of the policy.
    Quotas,
    /// Quotas of a tier.
    Tier(String),
    /// Quotas or tier of one key.
    Key(String),
    /// Counts of all keys.
    Keys,
}

impl Part {
    /// Returns the kind and the name of the part for the log. `hash_key` hides the key.
    pub fn kind_and_name(&self, hash_key: impl Fn(&str) -> String) -> (&'static str, Option<String>) {
        match self {
            Self::Mode => ("mode", None),
            Self::Quotas => ("quotas", None),
            Self::Tier(tier) => ("tier", Some(tier.clone())),
            Self::Key(key) => ("key", Some(hash_key(key))),
            Self::Keys => ("keys", None),
        }
    }
}

/// Runtime change of a policy that overrides the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Identity of the change, assigned by [`Changeset::put`].
    #[serde(default)]
    #[schema(value_type = String)]
    pub id: OperationId,
    #[serde(flatten)]
    pub subject: Subject,
    #[serde(flatten)]
    pub setting: Setting,
    /// Expiry of the change; absent if it stays until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Name of the token that made the change.
    pub by: String,
    pub at: Timestamp,
    /// Reason, as given by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// New value of the subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Setting {
    /// `enforce`, `shadow` or `off`.
    Mode(String),
    /// Quotas in the notation of the request, which the responses repeat.
    Quotas(Vec<Value>),
    /// Tier of a key.
    Tier(String),
}

impl Change {
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.until.is_some_and(|until| until.0 <= now_ms)
    }

    /// Returns the setting and the expiry for the audit log, which has its own fields for the rest.
    pub fn to_json(&self) -> Value {
        let mut json = match &self.setting {
            Setting::Mode(mode) => json!({ "mode": mode }),
            Setting::Quotas(quotas) => json!({ "quotas": quotas }),
            Setting::Tier(tier) => json!({ "tier": tier }),
        };
        if let Some(until) = self.until {
            json["until"] = json!(until);
        }
        json
    }
}

/// Entry of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Identity of the entry: that of the change, if the entry records one.
    #[serde(default)]
    #[schema(value_type = String)]
    pub id: OperationId,
    pub at: Timestamp,
    pub by: String,
    pub action: AuditAction,
    #[serde(flatten)]
    pub subject: Subject,
    /// Value before the action; null if neither a change nor the file had one.
    pub before: Value,
    /// Value after the action.
    pub after: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Kind of an audit entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Action)]
pub enum AuditAction {
    Set,
    Remove,
    Refund,
    Reset,
    Block,
    /// Expiry of a change, without an operator.
    Expire,
}

/// Removal of a change, which covers all changes of the subject that are not newer and do not expire later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Removal {
    pub(super) id: OperationId,
    #[serde(flatten)]
    pub(super) subject: Subject,
    /// Expiry of the expired change; absent after a `DELETE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Timestamp>,
    /// Creation time, on the clock of [`OperationId`].
    pub(super) made_ms: u64,
}

/// All changes, and the audit log. Nodes share it as one document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changeset {
    /// Number of writes. Builds that cannot merge adopt the document with the larger number; nothing else reads it.
    #[serde(default)]
    pub(super) generation: u64,
    /// Changes in the order of their identities. The last unexpired change of a subject is in force.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// Records of removed and expired changes, which keep a merge from restoring them.
    #[serde(default)]
    pub(super) removals: Vec<Removal>,
    /// Audit log, latest entry first.
    #[serde(default)]
    pub audit: VecDeque<AuditEntry>,
}

impl Changeset {
    /// Returns the change of a subject that is in force.
    pub fn find(&self, subject: &Subject, now_ms: u64) -> Option<&Change> {
        let is_found = |change: &&Change| change.subject == *subject && !change.is_expired(now_ms);
        self.changes.iter().rev().find(is_found)
    }

    /// Adds a change and returns its identity. It replaces changes of the same subject, except those that expire later:
    /// they are in force again when this one expires. Fails if there are [`MAX_CHANGES`] already.
    pub fn put(&mut self, change: Change, now_ms: u64) -> Result<OperationId, String> {
        let id = self.next_id(now_ms);
        self.changes.push(Change { id, ..change });
        self.normalize();
        if self.changes.len() > MAX_CHANGES {
            return Err(format!("the limit of {MAX_CHANGES} changes is reached; remove one first"));
        }
        Ok(id)
    }

    /// Removes all changes of a subject. Returns the identity of the removal, or `None` if no change was in force.
    pub fn remove(&mut self, subject: &Subject, now_ms: u64) -> Option<OperationId> {
        self.find(subject, now_ms)?;
        let id = self.next_id(now_ms);
        self.removals.push(Removal { id, subject: subject.clone(), until: None, made_ms: id.ms });
        self.normalize();
        Some(id)
    }

    /// Adds an entry to the audit log.
    pub fn record(&mut self, entry: AuditEntry) {
        self.audit.push_front(entry);
        self.normalize();
    }

    /// Returns the earliest expiry of a change after `now_ms`.
    pub fn next_expiry_ms(&self, now_ms: u64) -> Option<u64> {
        self.changes.iter().filter_map(|change| Some(change.until?.0)).filter(|end| *end > now_ms).min()
    }
}
