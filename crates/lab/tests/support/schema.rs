//! The result file against its schema: as much of JSON Schema as that uses.

use serde_json::Value;

/// The schema in the repository.
pub(crate) fn schema() -> Value {
    let text = include_str!("../../schema/result.schema.json");
    serde_json::from_str(text).unwrap()
}

/// What is wrong with a document, place first; nothing if it is valid.
pub(crate) fn complaints(root: &Value, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(root, root, document, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let Some(rules) = schema.as_object() else {
        return;
    };
    for (rule, wanted) in rules {
        let fine = match rule.as_str() {
            "$ref" => {
                let path = wanted.as_str().unwrap().trim_start_matches('#');
                check(root, root.pointer(path).unwrap(), value, at, found);
                true
            }
            "type" => is_a(value, wanted.as_str().unwrap()),
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|v| v >= wanted.as_f64().unwrap()),
            "minItems" => length(value).is_none_or(|n| n >= wanted.as_u64().unwrap()),
            "maxItems" => length(value).is_none_or(|n| n <= wanted.as_u64().unwrap()),
            "anyOf" => wanted.as_array().unwrap().iter().any(|one| {
                let mut inner = Vec::new();
                check(root, one, value, at, &mut inner);
                inner.is_empty()
            }),
            "required" => wanted
                .as_array()
                .unwrap()
                .iter()
                .all(|key| value.get(key.as_str().unwrap()).is_some()),
            "items" | "prefixItems" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    let inner = if rule == "items" {
                        wanted
                    } else {
                        &wanted[index]
                    };
                    check(root, inner, item, &format!("{at}[{index}]"), found);
                }
                true
            }
            "properties" | "additionalProperties" => {
                members(root, (rule, schema), value, at, found);
                true
            }
            "title" | "description" | "$schema" | "$id" | "$defs" => true,
            other => panic!("the validator does not know \"{other}\""),
        };
        if !fine {
            found.push(format!("{at}: {rule} {wanted}"));
        }
    }
}

fn members(
    root: &Value,
    (rule, schema): (&str, &Value),
    value: &Value,
    at: &str,
    found: &mut Vec<String>,
) {
    let wanted = &schema[rule];
    for (key, member) in value.as_object().into_iter().flatten() {
        let known = schema.get("properties").and_then(|p| p.get(key));
        match (rule, known) {
            ("properties", Some(inner)) => {
                check(root, inner, member, &format!("{at}.{key}"), found)
            }
            ("additionalProperties", None) if wanted == &Value::Bool(false) => {
                found.push(format!("{at}: \"{key}\" is not in the schema"));
            }
            ("additionalProperties", None) => {
                check(root, wanted, member, &format!("{at}.{key}"), found);
            }
            _ => {}
        }
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the validator does not know type \"{other}\""),
    }
}

fn length(value: &Value) -> Option<u64> {
    value.as_array().map(|a| u64::try_from(a.len()).unwrap())
}
