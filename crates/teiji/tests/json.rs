//! `docs/report-json.md` names every field of a report.
#![allow(clippy::unwrap_used)]

mod common;

use serde_json::Value;
use std::collections::BTreeSet;
use teiji_model::report::Report;

fn keys(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            all.insert(key.clone());
            keys(value, all);
        }),
        Value::Array(values) => values.iter().for_each(|v| keys(v, all)),
        _ => {}
    }
}

#[test]
fn every_field_is_documented() {
    let docs = include_str!("../../../docs/report-json.md");
    let mut all = BTreeSet::new();
    keys(&serde_json::to_value(common::contended()).unwrap(), &mut all);
    let missing: Vec<&String> = all.iter().filter(|key| !docs.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_stage_and_every_reason_is_documented() {
    let docs = include_str!("../../../docs/report-json.md");
    for stage in teiji_model::stage::Stage::ALL {
        assert!(docs.contains(&format!("| `{}` | ", stage.name())), "{}", stage.name());
    }
    for reason in teiji_model::report::Reason::ALL {
        let blame = serde_json::to_value(reason.blame()).unwrap();
        let row = format!("| `{}` | {} | {} |", reason.name(), blame.as_str().unwrap(), reason.text());
        assert!(docs.contains(&row), "{row}");
    }
}

#[test]
fn a_report_survives_json() {
    let report = common::contended();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}
