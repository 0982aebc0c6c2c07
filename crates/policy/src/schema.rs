//! The form of a policy for editors.
//!
//! A schema cannot express everything that [`parse`](super::parse()) checks (ranges of amounts with units, which class
//! a key belongs to): text that parses is valid by the schema, but not the other way round.

use super::keys::{HeaderNames, Key, SECTIONS, Section, ValueKind};
use serde_json::{Map, Value, json};
use teiji_model::units::Quantity;

/// A JSON Schema (draft 2020-12) of a policy file: every section and key with its description, and nothing else is
/// allowed. Ends with a newline.
pub fn schema() -> String {
    let properties: Map<String, Value> = SECTIONS.iter().map(|s| (s.name.to_owned(), section(s))).collect();
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "teiji policy",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    format!("{schema:#}\n")
}

fn section(section: &Section) -> Value {
    let keys: Map<String, Value> = section.keys.iter().map(|k| (k.name.to_owned(), key(k))).collect();
    let required: Vec<&str> = section.keys.iter().filter(|k| k.required).map(|k| k.name).collect();
    let table = json!({
        "description": section.doc,
        "type": "object",
        "additionalProperties": false,
        "properties": keys,
        "required": required,
    });
    let named = |pattern: &str, below: Value| {
        json!({
            "description": format!("{}: {}", section.form, section.doc),
            "type": "object",
            "additionalProperties": false,
            "patternProperties": { pattern: below },
        })
    };
    match section.header_names {
        HeaderNames::One => table,
        HeaderNames::Link => named(DEVICE, table),
        HeaderNames::Vm | HeaderNames::Channel => named(NAME, table),
        HeaderNames::Vf => named(DEVICE, named("^(0|[1-9][0-9]{0,4})$", table)),
    }
}

fn key(key: &Key) -> Value {
    let mut value = kind(&key.kind);
    let default = match key.default {
        "" => String::new(),
        default => format!(" Default: {default}."),
    };
    value["examples"] =
        serde_json::from_str(key.example).map_or(Value::Null, |example: Value| json!([example]));
    value["description"] = format!("{}{default}", key.doc).into();
    value
}

fn kind(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Amount { of, or, .. } => {
            json!({ "type": "string", "pattern": format!("^{}$", amount(of, or)) })
        }
        ValueKind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::Cpus => json!({ "type": "string", "pattern": format!("^{CPUS}$") }),
        ValueKind::Word(words) => json!({ "type": "string", "enum": words }),
        ValueKind::Users => json!({ "type": "string", "pattern": format!("^{USERS}$") }),
        ValueKind::Endpoint => json!({ "type": "string", "minLength": 1 }),
        ValueKind::Device => json!({ "type": "string", "pattern": DEVICE }),
        ValueKind::Vm => json!({ "type": "string", "pattern": NAME }),
    }
}

/// The name of a VM or a channel.
const NAME: &str = r"^.*\S.*$";

/// The name of a network device.
const DEVICE: &str = r"^[^/:\s]{1,15}$";

/// A list of CPUs; spaces as the parser allows them.
pub(super) const CPUS: &str = r"\s*[0-9]+\s*(-\s*[0-9]+\s*)?(,\s*[0-9]+\s*(-\s*[0-9]+\s*)?)*";

/// Names or numbers of users.
const USERS: &str = r"\s*[A-Za-z0-9_.$@-]{1,255}\s*(,\s*[A-Za-z0-9_.$@-]{1,255}\s*)*";

/// The texts that [`Quantity::parse`] accepts, or one of the words.
pub(super) fn amount(of: &Quantity, or: &[&str]) -> String {
    let units: Vec<&str> = of.units.iter().map(|(name, _)| *name).collect();
    let words: String = or.iter().map(|word| format!("|{word}")).collect();
    format!(r"(\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*({})\s*{words})", units.join("|"))
}
