//! Documents are as `docs/schema/` says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema")
}

/// The schemas that `docs/schema/` holds, as documents name them.
pub fn known() -> BTreeSet<String> {
    let files = fs::read_dir(directory()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names
        .map(|name| {
            let (name, version) = name
                .strip_suffix(".json")
                .unwrap()
                .rsplit_once('-')
                .unwrap();
            format!("pgstrata.{name}/{version}")
        })
        .collect()
}

/// What the program printed: one document whose first key is `schema`, and that is as its schema file says.
pub fn document(text: &str) -> Value {
    let start = text.trim_start_matches(|c: char| c == '{' || c.is_whitespace());
    assert!(
        start.starts_with("\"schema\": \"pgstrata."),
        "the first key is not the schema: {text}"
    );
    let document = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    require(&document);
    document
}

/// The document is as its schema file says, which there is.
pub fn require(document: &Value) {
    let name = document["schema"].as_str().unwrap();
    let file = name.strip_prefix("pgstrata.").unwrap().replace('/', "-");
    let path = directory().join(format!("{file}.json"));
    let schema = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let schema: Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["$id"], name);
    let mut complaints = Vec::new();
    compare(&schema, &schema, document, "", &mut complaints);
    assert!(complaints.is_empty(), "{complaints:#?}\n{document:#}");
}

/// As much of JSON Schema as the document needs.
fn compare(root: &Value, schema: &Value, found: &Value, at: &str, complaints: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        return compare(root, target, found, at, complaints);
    }
    let is = |name: &str| match name {
        "null" => found.is_null(),
        "boolean" => found.is_boolean(),
        "string" => found.is_string(),
        "number" => found.is_number(),
        "integer" => found.is_i64() || found.is_u64(),
        "array" => found.is_array(),
        "object" => found.is_object(),
        other => panic!("the schema has type {other}"),
    };
    let fits = match &schema["type"] {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().any(|name| is(name.as_str().unwrap())),
        Value::Null => true,
        other => panic!("the schema has type {other}"),
    };
    if !fits {
        complaints.push(format!("{at} is {found}, expected {}", schema["type"]));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(found)
    {
        complaints.push(format!("{at} is {found}, expected one of {allowed:?}"));
    }
    if let Some(expected) = schema.get("const")
        && expected != found
    {
        complaints.push(format!("{at} is {found}, expected {expected}"));
    }
    for (number, item) in found.as_array().into_iter().flatten().enumerate() {
        compare(
            root,
            &schema["items"],
            item,
            &format!("{at}/{number}"),
            complaints,
        );
    }
    let Some(fields) = found.as_object() else {
        return;
    };
    if schema["additionalProperties"].is_object() {
        for (name, value) in fields {
            let of_all = &schema["additionalProperties"];
            compare(root, of_all, value, &format!("{at}/{name}"), complaints);
        }
        return;
    }
    // What another schema describes.
    let Some(known) = schema["properties"].as_object() else {
        return;
    };
    for (name, value) in fields {
        match known.get(name) {
            Some(schema) => compare(root, schema, value, &format!("{at}/{name}"), complaints),
            None => complaints.push(format!("{at}/{name} is not in the schema")),
        }
    }
    for name in schema["required"].as_array().unwrap() {
        if !fields.contains_key(name.as_str().unwrap()) {
            complaints.push(format!("{at}/{name} is missing"));
        }
    }
}
