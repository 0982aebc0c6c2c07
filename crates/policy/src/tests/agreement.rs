//! Compares the table of keys with everything that is generated from it or describes it.

use super::super::keys::{HeaderNames, Key, SECTIONS, Section, ValueKind};
use super::*;
use crate::schema as made;
use proptest::prelude::*;
use serde_json::Value;

fn header(section: &Section) -> &'static str {
    match section.header_names {
        HeaderNames::One => "[host]\n",
        HeaderNames::Link => "[link.eth0]\n",
        HeaderNames::Vm => "[vm.a]\n",
        HeaderNames::Channel => "[channel.a]\n",
        HeaderNames::Vf => "[vf.eth1.3]\n",
    }
}

/// The keys that a key requires.
fn companions(section: &Section, key: &Key) -> &'static str {
    match (section.name, key.name) {
        ("host", "cpu_latency_cpus") => "cpu_latency = \"any\"\n",
        ("vm", "priority") => "class = \"realtime\"\n",
        ("vm", "runtime") => "class = \"deadline\"\nperiod = \"10ms\"\n",
        ("vm", "deadline") => "class = \"deadline\"\nruntime = \"2ms\"\nperiod = \"10ms\"\n",
        ("vm", "period") => "class = \"deadline\"\nruntime = \"2ms\"\n",
        ("channel", "deadline") => "min_rate = \"1mbit\"\n",
        ("channel", "min_rate") => "deadline = \"1ms\"\n",
        ("channel", _) => "deadline = \"1ms\"\nmin_rate = \"1mbit\"\n",
        _ => "",
    }
}

#[test]
fn every_key_of_the_table_reaches_the_policy() {
    for section in SECTIONS {
        for key in section.keys {
            let without = format!("{}{}", header(section), companions(section, key));
            let with = format!("{without}{} = {}\n", key.name, key.example);
            let policy = read(&with).unwrap_or_else(|e| panic!("{with}{e:#?}"));
            if let Ok(other) = read(&without) {
                assert_ne!(meaning(&policy), meaning(&other), "{} does nothing", key.name);
            }
            assert_eq!(
                read(&without).is_err(),
                key.required || matches!(key.name, "runtime" | "period"),
                "{with}"
            );
        }
    }
}

#[test]
fn the_words_and_bounds_of_the_table_are_accepted_and_no_more() {
    for section in SECTIONS {
        for key in
            section.keys.iter().filter(|k| !matches!(k.name, "runtime" | "deadline" | "period" | "class"))
        {
            let line = |value: String| {
                read(&format!("{}{}{} = {value}\n", header(section), companions(section, key), key.name))
            };
            let (right, wrong): (Vec<String>, Vec<String>) = match &key.kind {
                ValueKind::Amount { of, min, max, or } => (
                    [*min, *max]
                        .map(|n| format!("\"{}\"", of.write(n)))
                        .into_iter()
                        .chain(or.iter().map(|w| format!("\"{w}\"")))
                        .collect(),
                    min.checked_sub(1)
                        .into_iter()
                        .chain([max + 1])
                        .map(|n| format!("\"{}\"", of.write(n)))
                        .collect(),
                ),
                ValueKind::Integer { min, max } => (
                    [*min, *max].map(|n| n.to_string()).into(),
                    [min - 1, max + 1].map(|n| n.to_string()).into(),
                ),
                ValueKind::Word(words) => {
                    (words.iter().map(|w| format!("\"{w}\"")).collect(), vec!["\"\"".into()])
                }
                ValueKind::Cpus => (vec!["\"0-8191\"".into()], vec!["\"8192\"".into()]),
                ValueKind::Endpoint => (vec!["\"::/0\"".into()], vec!["\"::/129\"".into()]),
                ValueKind::Users => (
                    vec!["\"root\"".into(), "\"root, 64055,libvirt-qemu\"".into()],
                    vec!["\"\"".into(), "\"root,\"".into(), "\"a b\"".into(), "[\"root\"]".into()],
                ),
                ValueKind::Vm => (
                    vec!["\"sip 1\"".into(), "\"pid:12\"".into()],
                    vec!["\" \"".into(), "\"pid:0\"".into(), "\"a\\u0007\"".into(), "3".into()],
                ),
                ValueKind::Device => (
                    vec!["\"123456789012345\"".into(), "\"eth0.5\"".into()],
                    vec!["\"1234567890123456\"".into(), "\"a b\"".into(), "\"\"".into(), "\"..\"".into()],
                ),
            };
            for value in right {
                assert!(line(value.clone()).is_ok(), "{} = {value}", key.name);
            }
            for value in wrong {
                assert!(line(value.clone()).is_err(), "{} = {value}", key.name);
            }
        }
    }
}

#[test]
fn the_schema_has_every_key_and_allows_no_other() {
    let text = made();
    let schema: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(text.contains("\n  \"") && text.ends_with("}\n"));
    let names = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(names(&schema["properties"]), sorted(SECTIONS.iter().map(|s| s.name.to_owned()).collect()));
    for section in SECTIONS {
        let mut table = &schema["properties"][section.name];
        while let Some(below) = table["patternProperties"].as_object() {
            assert_eq!(table["additionalProperties"], false);
            table = below.values().next().unwrap();
        }
        assert_eq!(table["additionalProperties"], false, "{}", section.name);
        assert_eq!(
            names(&table["properties"]),
            sorted(section.keys.iter().map(|k| k.name.to_owned()).collect())
        );
        let required: Vec<&str> = section.keys.iter().filter(|k| k.required).map(|k| k.name).collect();
        assert_eq!(table["required"], serde_json::json!(required));
        for key in section.keys {
            let described = &table["properties"][key.name];
            assert!(described["description"].as_str().unwrap().starts_with(key.doc), "{}", key.name);
            assert!(!described["examples"][0].is_null(), "{}", key.name);
            let wanted = if matches!(key.kind, ValueKind::Integer { .. }) { "integer" } else { "string" };
            assert_eq!(described["type"], wanted, "{}", key.name);
        }
    }
}

/// The table of a section, in the form of docs/policy.md.
fn documented(section: &Section) -> String {
    let mut out = format!(
        "## `{}`\n\n{}\n\n| key | value | without it | meaning |\n| --- | --- | --- | --- |\n",
        section.form, section.doc
    );
    for key in section.keys {
        let value = match &key.kind {
            ValueKind::Amount { of, min, max, or } => {
                let words: String = or.iter().map(|w| format!(", or `\"{w}\"`")).collect();
                format!(
                    "{}, {} to {}{words}",
                    of.noun.trim_start_matches("a "),
                    of.write(*min),
                    of.write(*max)
                )
            }
            ValueKind::Integer { min, max } => format!("number, {min} to {max}"),
            ValueKind::Cpus => "CPUs".to_owned(),
            ValueKind::Word(words) => {
                words.iter().map(|w| format!("`\"{w}\"`")).collect::<Vec<_>>().join(", ")
            }
            ValueKind::Endpoint => "address or prefix".to_owned(),
            ValueKind::Device => "device".to_owned(),
            ValueKind::Vm => "name".to_owned(),
            ValueKind::Users => "users".to_owned(),
        };
        let default = if key.required { "required" } else { key.default };
        out += &format!("| `{}` | {value}, as in `{}` | {default} | {} |\n", key.name, key.example, key.doc);
    }
    for (name, why) in section.misplaced {
        out += &format!("\n`{name}` {why}.\n");
    }
    out
}

#[test]
fn the_document_has_the_tables() {
    let doc = include_str!("../../../../docs/policy.md");
    let missing: Vec<String> =
        SECTIONS.iter().map(documented).filter(|table| !doc.contains(table.as_str())).collect();
    assert!(missing.is_empty(), "docs/policy.md lacks this text:\n{}", missing.join("\n"));
    for quantity in [&units::DURATION, &units::RATE, &units::SIZE] {
        let names = format!("`{}`", quantity.names().replace(", ", "`, `"));
        assert!(doc.contains(&names), "docs/policy.md lacks the units {names}");
    }
    for bound in [MAX_BYTES / 1024 / 1024, MAX_DEPTH] {
        assert!(doc.contains(&bound.to_string()));
    }
}

/// Texts that the schema's pattern for a key allows.
fn by_schema() -> impl Strategy<Value = (&'static Key, String)> {
    let keys: Vec<&'static Key> = SECTIONS.iter().flat_map(|s| s.keys).collect();
    let with_pattern = |key: &&Key| matches!(key.kind, ValueKind::Amount { .. } | ValueKind::Cpus);
    let keys: Vec<&'static Key> = keys.into_iter().filter(with_pattern).collect();
    prop::sample::select(keys).prop_flat_map(|key| {
        let pattern = match &key.kind {
            ValueKind::Amount { of, or, .. } => super::super::schema::amount(of, or),
            _ => super::super::schema::CPUS.to_owned(),
        };
        (Just(key), prop::string::string_regex(&pattern).unwrap())
    })
}

proptest! {
    #[test]
    fn what_the_schema_allows_is_only_refused_for_its_amount((key, text) in by_schema()) {
        if let Err(message) = key.kind.read(&toml::de::DeValue::String(text.as_str().into())) {
            let amount = ["out of range", "finer than", "too large", "no x86 kernel", "ends before"];
            prop_assert!(amount.iter().any(|a| message.contains(a)), "{}: {}", text, message);
        }
    }
}
