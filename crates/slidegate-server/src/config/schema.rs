//! The file described for editors and for readers, from the same declarations by which it is read.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::field::{Declarations, Declared, mapping_schema};
use super::file::FIELDS;
use super::quota::QuotaKind;

/// The JSON Schema of `slidegate.yaml`.
pub fn schema() -> Json {
    let mut schema = mapping_schema(FIELDS);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "slidegate.yaml".into();
    schema["description"] = "The configuration of slidegate serve. Everything may be left out.".into();
    schema["type"] = json!(["object", "null"]);
    schema["$defs"] = json!({"quota": QuotaKind::whole_schema()});
    schema
}

/// Every field, in Markdown.
pub fn reference() -> String {
    let mut text = String::new();
    let (sections, plain): (Vec<_>, Vec<_>) =
        FIELDS.iter().partition(|field| !field.within().fields.is_empty());
    table(&mut text, "", &plain);
    for field in sections {
        let _ = write!(text, "\n## `{}`\n\n{}\n", field.name(), about(*field));
        let mut rows = Vec::new();
        collect(&mut rows, "", field.within().step, field.within().fields);
        let _ = write!(text, "\n| field | | takes | if left out |\n|---|---|---|---|\n");
        for (path, field) in rows {
            row(&mut text, &path, field);
        }
    }
    text
}

type Row = (String, &'static dyn Declared);

fn collect(rows: &mut Vec<Row>, path: &str, step: &str, fields: Declarations) {
    for field in fields {
        let path = format!("{path}{step}.{}", field.name());
        rows.push((path.trim_start_matches('.').to_owned(), *field));
        let within = field.within();
        // The parts of a quota are the same wherever it stands.
        let is_quota = within.fields.iter().any(|field| field.name() == "window");
        if !is_quota || path.ends_with(".POLICY.quotas") {
            collect(rows, &path, within.step, within.fields);
        }
    }
}

fn table(text: &mut String, path: &str, fields: &[&&'static dyn Declared]) {
    let _ = write!(text, "| field | | takes | if left out |\n|---|---|---|---|\n");
    for field in fields {
        row(text, &format!("{path}{}", field.name()), **field);
    }
}

fn row(text: &mut String, path: &str, field: &dyn Declared) {
    let usual = match (field.usual(), field.is_required()) {
        (Some(usual), _) => format!("`{usual}`"),
        (None, true) => "required".to_owned(),
        (None, false) => field.otherwise().unwrap_or_default().to_owned(),
    };
    let [about, allowed] = [field.about().to_owned(), field.allowed()].map(|text| text.replace('|', "\\|"));
    let _ = writeln!(text, "| `{path}` | {about} | {allowed} | {usual} |");
}

fn about(field: &dyn Declared) -> String {
    let allowed = field.allowed();
    let takes = if allowed == "a mapping" { String::new() } else { format!(" Takes {allowed}.") };
    let usual = field.usual().map(|usual| format!(" `{usual}` if left out.")).unwrap_or_default();
    format!("{}{takes}{usual}", field.about())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// What is said to hold if a field is left out is what holds.
    #[test]
    fn defaults_are_what_they_are_said_to_be() {
        let written = |section: &str| {
            let field = FIELDS.iter().find(|field| field.name() == section).unwrap();
            let fields = field.within().fields.iter();
            let lines = fields.filter_map(|field| Some(format!("  {}: {}\n", field.name(), field.usual()?)));
            let text = format!("{section}:\n{}", lines.collect::<String>());
            Config::parse(&text).unwrap_or_else(|problems| panic!("{text}{problems:?}"))
        };
        let left_out = Config::default();
        assert_eq!(written("limits").limits, left_out.limits);
        assert_eq!(written("log").log, left_out.log);
        let mut degrade = written("degrade").degrade;
        assert_eq!(degrade.budget, Some(slidegate::resilience::FailureRule::default().budget));
        assert_eq!(degrade.nodes, Some(1));
        (degrade.budget, degrade.nodes) = (None, None);
        assert!(degrade.is_usually_like(&left_out.degrade));
        let top =
            |name: &str| FIELDS.iter().find(|field| field.name() == name).and_then(|field| field.usual());
        assert_eq!(top("http"), Some(crate::config::Address::default().as_str()));
        assert_eq!(top("grpc"), Some(crate::config::Listen::grpc().to_string().as_str()));
        assert_eq!(top("admin"), Some(crate::config::Listen::admin().to_string().as_str()));
    }
}
