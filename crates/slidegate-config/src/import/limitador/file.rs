//! Parses a limits file of Limitador.

use slidegate::MAX_LIMIT;

use super::Limit;
use crate::Problem;
use crate::bounded_integer::BoundedInteger;
use crate::fields::containers::ListOf;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, FieldList, Fields, Kind};
use crate::fields::foreign::{AnyNode, TEXT, WholeNumber};
use crate::fields::scalars::Text;
use crate::fields::tree::{self, Tags};

const MAX_SECONDS: u64 = 366 * 24 * 60 * 60;

const NAMESPACE: Field<Text> = Field::foreign("namespace", TEXT).required();
const MAX_VALUE: Field<WholeNumber<0, MAX_LIMIT>> = Field::foreign("max_value", WholeNumber).required();
const SECONDS: Field<WholeNumber<1, MAX_SECONDS>> = Field::foreign("seconds", WholeNumber).required();
const CONDITIONS: Field<ListOf<Text>> =
    Field::foreign("conditions", ListOf { item: TEXT, noun: "conditions", max_items: None });
const VARIABLES: Field<ListOf<Text>> =
    Field::foreign("variables", ListOf { item: TEXT, noun: "variables", max_items: None });
const NAME: Field<Text> = Field::foreign("name", TEXT);
const ID: Field<Text> = Field::foreign("id", TEXT);
/// Algorithm, which some versions of Limitador have.
const POLICY: Field<Text> = Field::foreign("policy", TEXT);

const LIMIT: FieldList = &[&NAMESPACE, &MAX_VALUE, &SECONDS, &CONDITIONS, &VARIABLES, &NAME, &ID, &POLICY];

/// A limit is a mapping, which [`limit`] reads.
const LIMITS: ListOf<AnyNode> = ListOf { item: AnyNode, noun: "limits", max_items: None };

/// Limits of a file.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) valid: Vec<Limit>,
    /// Problems of the valid limits of Limitador that cannot be converted.
    pub(super) left_out: Vec<Problem>,
}

/// Parses the text of a file. Returns all problems, those of limits that cannot be converted included, if it is invalid.
pub(super) fn parse(text: &str) -> Result<Limits, Vec<Problem>> {
    let root = tree::parse(text, Tags::Core).map_err(|problem| vec![problem])?;
    let Some(root) = root.filter(|root| !root.is_null()) else { return Ok(Limits::default()) };
    let mut diagnostics = Diagnostics::new(false);
    let mut limits = Limits::default();
    let list = LIMITS.read(&root, "", &mut diagnostics);
    for (index, item) in list.into_iter().flat_map(|list| list.items).enumerate() {
        if let Some(fields) = Fields::open(&item.value, &item.path, LIMIT, &mut diagnostics) {
            let limit = limit(index, &fields, &mut limits.left_out, &mut diagnostics);
            limits.valid.extend(limit);
        }
    }
    let mut problems = diagnostics.into_problems();
    if problems.is_empty() {
        return Ok(limits);
    }
    problems.extend(limits.left_out);
    Err(problems)
}

/// Reads a limit. Adds the parts that cannot be converted to `left_out`.
fn limit(
    index: usize,
    fields: &Fields<'_>,
    left_out: &mut Vec<Problem>,
    diagnostics: &mut Diagnostics,
) -> Option<Limit> {
    let count = left_out.len();
    let mut leave_out = |line, path: String, message: String| left_out.push(Problem::at(line, path, message));
    let namespace = fields.get(&NAMESPACE, diagnostics);
    let max_value = fields.get(&MAX_VALUE, diagnostics).map(BoundedInteger::checked);
    let seconds = fields.get(&SECONDS, diagnostics).map(BoundedInteger::checked);
    for (name, number) in [("max_value", &max_value), ("seconds", &seconds)] {
        if let Some(Err(message)) = number {
            leave_out(fields.line_of(name), fields.path_of(name), message.clone());
        }
    }
    if let Some(policy) = fields.get(&POLICY, diagnostics) {
        let message = format!("{policy:?} cannot be converted; choose one with --algorithm");
        leave_out(fields.line_of("policy"), fields.path_of("policy"), message);
    }
    let mut conditions = Vec::new();
    for item in fields.get(&CONDITIONS, diagnostics).into_iter().flat_map(|list| list.items) {
        match parse_equality(&item.value) {
            Some((descriptor, value)) => conditions.push((descriptor.to_owned(), value.to_owned())),
            None => {
                let message =
                    format!("{:?} cannot be converted; only descriptor == \"value\" can", item.value);
                leave_out(item.line, item.path, message);
            }
        }
    }
    let mut variables = Vec::new();
    for item in fields.get(&VARIABLES, diagnostics).into_iter().flat_map(|list| list.items) {
        let descriptor = descriptor_of(&item.value);
        if is_plain(descriptor) {
            variables.push(descriptor.to_owned());
        } else {
            let message = format!("{:?} cannot be converted; only the name of a descriptor can", item.value);
            leave_out(item.line, item.path, message);
        }
    }
    let [name, id] = [&NAME, &ID].map(|field| fields.get(field, diagnostics));
    if left_out.len() > count {
        return None;
    }
    Some(Limit {
        index,
        line: fields.line_of("namespace"),
        namespace: namespace?,
        max_value: max_value?.ok()?,
        seconds: seconds?.ok()?,
        conditions,
        variables,
        name: name.or(id),
    })
}

/// Parses `descriptor == "value"`, with a descriptor in any form of [`descriptor_of`].
fn parse_equality(condition: &str) -> Option<(&str, &str)> {
    let (descriptor, value) = condition.split_once("==")?;
    let value = value.trim();
    let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let value = value.strip_prefix(quote)?.strip_suffix(quote)?;
    let descriptor = descriptor_of(descriptor.trim());
    (is_plain(descriptor) && !value.contains(['"', '\''])).then_some((descriptor, value))
}

/// Returns whether a text is the name of a descriptor, and not another expression.
fn is_plain(descriptor: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || "_-.:/".contains(character);
    !descriptor.is_empty() && descriptor.chars().all(is_name)
}

/// Returns the name `x` from `descriptors[0]['x']`, `descriptors[0].x` or `x`, the forms of Limitador's versions.
fn descriptor_of(expression: &str) -> &str {
    let Some(rest) = expression.strip_prefix("descriptors[0]") else { return expression };
    let bracketed = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bracketed.map_or_else(|| rest.trim_start_matches('.'), |quoted| quoted.trim_matches(['"', '\'']))
}
