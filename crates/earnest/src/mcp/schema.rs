//! JSON Schemas in the plain form that every client's model API takes: an object at the root, no
//! `$ref`, no `$defs`, no `anyOf`, one type for each property.

use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The schema of what a tool takes or gives.
pub(super) fn schema_of<T: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    match schema {
        Value::Object(schema) => Arc::new(schema),
        _ => Arc::default(),
    }
}

/// Members of ours are left out rather than null, so a type beside null is that type alone; the
/// names and number formats of Rust say nothing to a client.
fn simplify(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    for name in ["title", "format", "default"] {
        members.remove(name);
    }
    // Doc comments are broken into lines for whoever reads the code.
    if let Some(Value::String(text)) = members.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            members.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(names)) = members.get_mut("enum") {
        names.retain(|name| !name.is_null());
    }
    if let Some(Value::Array(either)) = members.remove("anyOf") {
        let null = serde_json::json!({ "type": "null" });
        for inner in either.into_iter().filter(|inner| *inner != null) {
            if let Value::Object(inner) = inner {
                for (name, value) in inner {
                    members.entry(name).or_insert(value);
                }
            }
        }
    }
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = members.get_mut(name) {
            simplify(inner);
        }
    }
}
