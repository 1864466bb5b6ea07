//! Builds the rule of a descriptor from its field `rate_limit`.

use slidegate::{MAX_NAME_BYTES, Policy};

use super::build::{Position, RuleBuilder};
use super::file::{
    DETAILED_METRIC, METADATA, NAME, QUOTA_MODE, RATE_LIMIT, RATE_LIMIT_FIELDS, REPLACES, REPLACES_FIELDS,
    REQUESTS_PER_UNIT, SHADOW_MODE, UNIT, UNLIMITED, non_empty,
};
use super::rule::{Amount, LimitedAmount, MetricValues, Rule, hashed_name, policy_name, quota};
use super::unit::Unit;
use crate::bounded_integer::BoundedInteger;
use crate::fields::field::Fields;

impl RuleBuilder<'_> {
    /// Builds the rule of the descriptor with these fields. Returns `None` if it has no limit, or an invalid limit.
    pub(super) fn rule(&mut self, position: &Position, descriptor: &Fields<'_>) -> Option<Rule> {
        let mut is_set = |flag| descriptor.get(flag, &mut self.diagnostics) == Some(true);
        let [is_shadow, is_quota, is_detailed] =
            [&SHADOW_MODE, &QUOTA_MODE, &DETAILED_METRIC].map(&mut is_set);
        let metadata = descriptor.get(&METADATA, &mut self.diagnostics);
        let node = descriptor.get(&RATE_LIMIT, &mut self.diagnostics)?;
        let path = descriptor.path_of("rate_limit");
        let fields = Fields::open(&node, &path, RATE_LIMIT_FIELDS, &mut self.diagnostics)?;
        let name = self.limit_name(&fields);
        let replaces = self.replaces(&fields, &name);
        let policy_name = self.policy_name(position);
        let display_name = if name.is_empty() { policy_name.clone() } else { name.clone() };
        let amount = self.amount(&fields, [&policy_name, &display_name])?;
        let index = *self.limit_count;
        *self.limit_count += 1;
        Some(Rule {
            amount,
            name,
            display_name,
            replaces,
            is_shadow,
            is_quota,
            metadata,
            metric_values: match (is_detailed, position.has_value_metric) {
                (true, _) => MetricValues::All,
                (false, true) => MetricValues::Marked,
                (false, false) => MetricValues::Configured,
            },
            policy_name,
            index,
        })
    }

    /// Returns the name of the limit, which is empty if it is absent or invalid.
    fn limit_name(&mut self, fields: &Fields<'_>) -> String {
        let name = fields.get(&NAME, &mut self.diagnostics).unwrap_or_default();
        if name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control) {
            return name;
        }
        let message = format!("a name has at most {MAX_NAME_BYTES} bytes and no control characters");
        self.report(fields, "name", message);
        String::new()
    }

    /// Returns the names of the limits that the limit `own_name` replaces.
    fn replaces(&mut self, fields: &Fields<'_>, own_name: &str) -> Vec<String> {
        let list = fields.get(&REPLACES, &mut self.diagnostics);
        let mut names = Vec::new();
        for item in list.into_iter().flat_map(|list| list.items) {
            let fields = Fields::open(&item.value, &item.path, REPLACES_FIELDS, &mut self.diagnostics);
            let Some(fields) = fields else { continue };
            let missing = "missing; give the name of another limit";
            let name = non_empty(&fields, &NAME, fields.line_of("name"), missing, &mut self.diagnostics);
            if name.as_deref() == Some(own_name) {
                let message = format!("{own_name:?} is this limit itself; give the name of another limit");
                self.report(&fields, "name", message);
            }
            names.extend(name);
        }
        names
    }

    /// Returns a unique name, because a policy is counted under its name. Dots join the parts of a path and may occur
    /// within them, so two paths can join to the same text: `a.b` below a domain, and `b` below `a`.
    fn policy_name(&mut self, position: &Position) -> String {
        let mut name = policy_name(&position.name);
        if self.policy_names.contains(&name) {
            name = hashed_name(&position.name, &position.path);
        }
        self.policy_names.insert(name.clone());
        name
    }

    /// Reads the amount; `names` are those of the policy and of its quota.
    fn amount(&mut self, fields: &Fields<'_>, names: [&str; 2]) -> Option<Amount> {
        let is_unlimited = fields.get(&UNLIMITED, &mut self.diagnostics) == Some(true);
        let unit_name = fields.get(&UNIT, &mut self.diagnostics);
        let unit = unit_name.as_deref().and_then(Unit::parse);
        let requests = fields.get(&REQUESTS_PER_UNIT, &mut self.diagnostics);
        if is_unlimited {
            if unit.is_some() {
                self.report(fields, "unit", "has no effect with unlimited; remove one of them");
            }
            return Some(Amount::Unlimited);
        }
        let requests = match requests.map(BoundedInteger::checked) {
            Some(Ok(requests)) => u32::try_from(requests).ok(),
            Some(Err(message)) => {
                self.report(fields, "requests_per_unit", message);
                None
            }
            None => (!fields.has_value(&REQUESTS_PER_UNIT)).then_some(0),
        };
        if unit.is_none() && (unit_name.is_some() || !fields.has_value(&UNIT)) {
            let found = unit_name.map_or("missing; expected".to_owned(), |name| format!("{name:?} is not"));
            self.report(fields, "unit", format!("{found} one of {}", Unit::names()));
        }
        match (requests?, unit?) {
            (0, unit) => Some(Amount::Zero(unit)),
            (requests, unit) => {
                self.limited(fields, requests, unit, names).map(|limited| Amount::Limited(Box::new(limited)))
            }
        }
    }

    fn limited(
        &mut self,
        fields: &Fields<'_>,
        requests: u32,
        unit: Unit,
        names: [&str; 2],
    ) -> Option<LimitedAmount> {
        let [name, display_name] = names;
        let policy = quota(requests, unit, self.settings.algorithm)
            .and_then(|quota| Policy::with_names(name, [(display_name, quota)]));
        match policy {
            Ok(policy) => Some(LimitedAmount { requests_per_unit: requests, unit, policy }),
            Err(error) => {
                self.diagnostics.report(fields.line, fields.path, error.to_string());
                None
            }
        }
    }

    fn report(&mut self, fields: &Fields<'_>, name: &str, message: impl Into<String>) {
        self.diagnostics.report(fields.line_of(name), fields.path_of(name), message);
    }
}
