//! `docs/report-json.md` names every field of a report.
#![allow(clippy::unwrap_used)]

mod common;

use serde_json::Value;
use std::collections::BTreeSet;
use teiji_model::finding::Cause;
use teiji_model::report::{Report, SCHEMA};

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
fn every_cause_is_documented() {
    let docs = include_str!("../../../docs/report-json.md");
    for cause in Cause::ALL {
        assert!(docs.contains(&format!("| `{}` | ", cause.name())), "{}", cause.name());
    }
    let schema = format!("`schema` is its version, now {SCHEMA}:");
    assert!(docs.contains(&schema), "{schema}");
}

/// A report of schema 2: its verdict contained what the first finding contains now.
#[test]
fn a_report_of_before_is_still_read() {
    let mut old = serde_json::to_value(common::contended()).unwrap();
    old["schema"] = 2.into();
    let vm = &mut old["vms"][0];
    vm.as_object_mut().unwrap().remove("findings");
    let verdict = vm["verdict"].as_object_mut().unwrap();
    for (key, value) in [("stage", "tap_queue".into()), ("state", "ready".into()), ("share", 0.92.into())] {
        verdict.insert(key.into(), value);
    }
    verdict
        .insert("behind".into(), serde_json::json!([{"tid": 812, "name": "stress-ng-cpu", "share": 0.71}]));
    let report: Report = serde_json::from_value(old).unwrap();
    assert!(report.vms[0].findings.is_empty() && report.vms[0].blamed_stage().is_none());
    assert_eq!(report.vms[0].verdict, common::contended().vms[0].verdict);
}

#[test]
fn every_reason_is_documented() {
    let docs = include_str!("../../../docs/report-json.md");
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
