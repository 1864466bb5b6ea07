//! Metadata of rules, for Envoy's other filters.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

/// Converts metadata of a file into the protobuf message.
pub(super) fn to_struct(fields: &serde_json::Map<String, serde_json::Value>) -> Struct {
    Struct { fields: fields.iter().map(|(name, value)| (name.clone(), value_of(value))).collect() }
}

/// Adds the fields of `from` to `into`. Existing fields stay; structs are merged.
pub(crate) fn merge(into: &mut Struct, from: &Struct) {
    for (name, value) in &from.fields {
        match (into.fields.get_mut(name).map(|existing| &mut existing.kind), &value.kind) {
            (None, _) => {
                into.fields.insert(name.clone(), value.clone());
            }
            (Some(Some(Kind::StructValue(existing))), Some(Kind::StructValue(added))) => {
                merge(existing, added);
            }
            (Some(_), _) => {}
        }
    }
}

fn value_of(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.iter().map(value_of).collect() }),
        Json::Object(fields) => Kind::StructValue(to_struct(fields)),
    };
    Value { kind: Some(kind) }
}
