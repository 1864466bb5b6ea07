//! A configuration as people read it.

use std::fmt;

use super::domains::{Domains, Node};
use super::rule::{Amount, Apart, Rule};

/// Displayed as a tree: domains, descriptors below them, and what each of them is limited to.
pub(crate) struct Tree<'a>(pub(crate) &'a Domains);

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in self.0.names() {
            writeln!(f, "domain {name}")?;
            if let Some(domain) = self.0.by_name.get(name) {
                below(f, domain, 1)?;
            }
        }
        Ok(())
    }
}

fn below(f: &mut fmt::Formatter<'_>, node: &Node, depth: usize) -> fmt::Result {
    for (name, node) in node.sorted() {
        write!(f, "{:indent$}{name}", "", indent = 2 * depth)?;
        match &node.rule {
            Some(rule) => write!(f, ": {}", Told(rule))?,
            None if node.below.is_empty() => f.write_str(": no limit")?,
            None => {}
        }
        if node.shared_value.is_some() {
            f.write_str(", all values together")?;
        }
        if node.tells_value {
            f.write_str(", its values counted apart in metrics (value_to_metric)")?;
        }
        f.write_str("\n")?;
        below(f, node, depth + 1)?;
    }
    Ok(())
}

struct Told<'a>(&'a Rule);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        match &rule.amount {
            Amount::Unlimited => f.write_str("unlimited")?,
            Amount::Nothing(unit) => write!(f, "nothing per {}, so always denied", unit.name())?,
            Amount::Limited(limited) => {
                write!(f, "{} per {}", limited.requests_per_unit, limited.unit.name())?;
                write!(f, " ({})", limited.policy.quotas()[0].algorithm())?;
            }
        }
        if !rule.name.is_empty() {
            write!(f, ", called {:?}", rule.name)?;
        }
        if !rule.replaces.is_empty() {
            write!(f, ", replaces {:?}", rule.replaces)?;
        }
        if rule.is_shadow {
            f.write_str(", denies nobody (shadow_mode)")?;
        }
        if rule.is_quota {
            f.write_str(", denies only with all others (quota_mode)")?;
        }
        if rule.apart == Apart::All {
            f.write_str(", all values counted apart in metrics (detailed_metric)")?;
        }
        if rule.metadata.is_some() {
            f.write_str(", with metadata")?;
        }
        Ok(())
    }
}
