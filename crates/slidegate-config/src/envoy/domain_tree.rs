//! Text form of a configuration.

use std::fmt;

use super::domains::{Domains, Node};
use super::rule::{Amount, MetricValues, Rule};

/// Displays domains and descriptors as a tree, with the limit of each.
pub struct DomainTree<'a>(pub &'a Domains);

impl fmt::Display for DomainTree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in self.0.names() {
            writeln!(f, "domain {name}")?;
            if let Some(domain) = self.0.by_name.get(name) {
                write_children(f, domain, 1)?;
            }
        }
        Ok(())
    }
}

fn write_children(f: &mut fmt::Formatter<'_>, node: &Node, depth: usize) -> fmt::Result {
    for (name, node) in node.sorted() {
        write!(f, "{:indent$}{name}", "", indent = 2 * depth)?;
        match &node.rule {
            Some(rule) => write!(f, ": {}", RuleSummary(rule))?,
            None if node.children.is_empty() => f.write_str(": no limit")?,
            None => {}
        }
        if node.shared_value.is_some() {
            f.write_str(", all values share a counter (share_threshold)")?;
        }
        if node.has_value_metric {
            f.write_str(", separate metrics for its values (value_to_metric)")?;
        }
        f.write_str("\n")?;
        write_children(f, node, depth + 1)?;
    }
    Ok(())
}

/// Displays a rule in one line.
struct RuleSummary<'a>(&'a Rule);

impl fmt::Display for RuleSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        match &rule.amount {
            Amount::Unlimited => f.write_str("unlimited")?,
            Amount::Zero(unit) => write!(f, "0 per {}, always denied", unit.name())?,
            Amount::Limited(limited) => {
                write!(f, "{} per {}", limited.requests_per_unit, limited.unit.name())?;
                write!(f, " ({})", limited.policy.quotas()[0].algorithm())?;
            }
        }
        if !rule.name.is_empty() {
            write!(f, ", name {:?}", rule.name)?;
        }
        if !rule.replaces.is_empty() {
            write!(f, ", replaces {:?}", rule.replaces)?;
        }
        if rule.is_shadow {
            f.write_str(", never denies (shadow_mode)")?;
        }
        if rule.is_quota {
            f.write_str(", denies only if all limits in quota mode deny (quota_mode)")?;
        }
        if rule.metric_values == MetricValues::All {
            f.write_str(", separate metrics for all values (detailed_metric)")?;
        }
        if rule.metadata.is_some() {
            f.write_str(", with metadata")?;
        }
        Ok(())
    }
}
