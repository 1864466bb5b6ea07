//! JSON Schema and reference of the file, from the declarations of its fields.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use crate::fields::field::{AnyField, FieldList, mapping_schema};
use crate::file::FIELDS;
use crate::sections::quota::QuotaKind;

/// Returns the JSON Schema of `slidegate.yaml`.
pub fn schema() -> Json {
    let mut schema = mapping_schema(FIELDS);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "slidegate.yaml".into();
    schema["description"] = "Configuration of slidegate serve. Every field is optional.".into();
    schema["type"] = json!(["object", "null"]);
    schema["$defs"] = json!({"quota": QuotaKind::definition()});
    schema
}

/// Returns the reference of all fields, in Markdown.
pub fn reference() -> String {
    let mut text = String::new();
    let (sections, plain): (Vec<_>, Vec<_>) =
        FIELDS.iter().partition(|field| !field.children().fields.is_empty());
    table(&mut text, "", &plain);
    for field in sections {
        let _ = write!(text, "\n## `{}`\n\n{}\n", field.name(), introduction(*field));
        let mut rows = Vec::new();
        collect(&mut rows, "", field.children().step, field.children().fields);
        let _ = write!(text, "\n{TABLE_HEAD}");
        for (path, field) in rows {
            row(&mut text, &path, field);
        }
    }
    text
}

const TABLE_HEAD: &str = "| field | description | value | default |\n|---|---|---|---|\n";

type Row = (String, &'static dyn AnyField);

fn collect(rows: &mut Vec<Row>, path: &str, step: &str, fields: FieldList) {
    for field in fields {
        let path = format!("{path}{step}.{}", field.name());
        rows.push((path.trim_start_matches('.').to_owned(), *field));
        let children = field.children();
        // The fields of a quota are listed once, for the quotas of a policy.
        let is_quota = children.fields.iter().any(|field| field.name() == "window");
        if !is_quota || path.ends_with(".POLICY.quotas") {
            collect(rows, &path, children.step, children.fields);
        }
    }
}

fn table(text: &mut String, path: &str, fields: &[&&'static dyn AnyField]) {
    text.push_str(TABLE_HEAD);
    for field in fields {
        row(text, &format!("{path}{}", field.name()), **field);
    }
}

fn row(text: &mut String, path: &str, field: &dyn AnyField) {
    let default = match (field.default(), field.is_required()) {
        (Some(default), _) => format!("`{default}`"),
        (None, true) => "required".to_owned(),
        (None, false) => field.described_default().unwrap_or_default().to_owned(),
    };
    let [description, value] =
        [field.description().to_owned(), field.expected()].map(|text| text.replace('|', "\\|"));
    let _ = writeln!(text, "| `{path}` | {description} | {value} | {default} |");
}

/// Returns the first paragraph of a section.
fn introduction(field: &dyn AnyField) -> String {
    let expected = field.expected();
    let value = if expected == "a mapping" { String::new() } else { format!(" Value: {expected}.") };
    let default = field.default().map(|default| format!(" Default: `{default}`.")).unwrap_or_default();
    format!("{}{value}{default}", field.description())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn declared_defaults_are_the_defaults_in_effect() {
        let written = |section: &str| {
            let field = FIELDS.iter().find(|field| field.name() == section).unwrap();
            let fields = field.children().fields.iter();
            let lines =
                fields.filter_map(|field| Some(format!("  {}: {}\n", field.name(), field.default()?)));
            let text = format!("{section}:\n{}", lines.collect::<String>());
            Config::parse(&text).unwrap_or_else(|problems| panic!("{text}{problems:?}"))
        };
        let empty = Config::default();
        assert_eq!(written("limits").limits, empty.limits);
        assert_eq!(written("log").log, empty.log);
        let mut degrade = written("degrade").degrade;
        assert_eq!(degrade.budget, Some(slidegate::resilience::FailureRule::default().budget));
        assert_eq!(degrade.nodes, Some(1));
        (degrade.budget, degrade.nodes) = (None, None);
        assert!(degrade.has_same_defaults(&empty.degrade));
        let top =
            |name: &str| FIELDS.iter().find(|field| field.name() == name).and_then(|field| field.default());
        assert_eq!(top("http"), Some(crate::Address::default().as_str()));
        assert_eq!(top("grpc"), Some(crate::Listen::grpc().to_string().as_str()));
        assert_eq!(top("admin"), Some(crate::Listen::admin().to_string().as_str()));
    }
}
