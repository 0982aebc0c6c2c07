//! Names in wide characters: what stands in one column of a table begins at the same column of the terminal.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use teiji_model::host::Requirement;
use teiji_model::plan::{ChannelGuarantee, Hold, KickGuarantee, LinkGuarantee, Plan, Step};
use teiji_model::policy::Source;
use teiji_model::qdisc::{DeadlineQdisc, Device, Scheduler};
use teiji_model::resource::{Resource, Value};
use teiji_model::status::{HeldStatus, LinkStatus, LinksStatus, Status};
use teiji_render::terminal::{Style, columns};
use teiji_render::text::{WIDTH, doctor, guarantees, links, plan, status, vms};

const UNICODE: Style = Style { colour: false, unicode: true };
/// Narrow, wide, half wide, with a combining mark, and too long.
const NAMES: [&str; 5] =
    ["sip1", "東京サーバー", "vm-서울", "bu\u{308}ro", "とても長い名前の仮想マシンはここで切れる"];

/// The columns at which the lines that have `what` have it.
fn at(text: &str, what: &str) -> Vec<usize> {
    text.lines().filter_map(|line| Some(columns(line.split_once(what)?.0))).collect()
}

#[track_caller]
fn aligned(text: &str, what: &str) {
    assert!(text.lines().all(|line| columns(line) <= WIDTH), "{text}");
    let at = at(text, what);
    assert!(at.len() == NAMES.len() && at.iter().all(|column| *column == at[0]), "{what} at {at:?}:\n{text}");
}

#[test]
fn devices_of_vms() {
    let mut vm = common::vm(NAMES[4], 1);
    let nic = vm.nics[0].clone();
    vm.nics = NAMES.map(|name| teiji_model::host::Nic { tap: name.into(), ..nic.clone() }).into();
    let identity = common::of_root();
    for style in [UNICODE, Style::PLAIN] {
        let text = vms::table(&[(vm.clone(), identity.clone())], &style);
        aligned(&text, "bridge br0");
        aligned(&text, "1 queue");
    }
}

#[test]
fn steps_and_what_is_held() {
    let setting = |name: &str| Resource::SegmentSize(Device { name: name.into(), index: 2 });
    let step = |name: &str| Step {
        setting: setting(name),
        whose: name.into(),
        present: Value::Bytes(65_536),
        wanted: Value::Bytes(32_768),
        reason: "link".into(),
        cost: String::new(),
    };
    let hold = |name: &str| Hold {
        whose: name.into(),
        original: Value::Bytes(65_536),
        value: Value::Bytes(32_768),
        since: 0,
        reason: "link".into(),
    };
    let held = |name: &str| HeldStatus {
        setting: setting(name),
        hold: hold(name),
        present: Ok(Value::Bytes(32_768)),
        changed: false,
    };
    let planned = Plan { steps: NAMES.map(step).into(), ..Plan::default() };
    let held = Status { held: NAMES.map(held).into(), ..Status::default() };
    let value = Value::Bytes(65_536).to_string();
    for style in [UNICODE, Style::PLAIN] {
        let text = plan::table(&planned, &style);
        aligned(&text, &format!("{value} {}", style.ascii("→")));
        let text = status::table(&held, 1, &style);
        aligned(&text, &format!("  {}", Value::Bytes(32_768)));
    }
}

#[test]
fn channels() {
    let channel = |name: &str| ChannelGuarantee {
        name: name.into(),
        rate: 2_000_000,
        burst: 3084,
        deadline: 3_000_000,
        bound: 2_000_000,
        from_kick: Some(KickGuarantee { vm: name.into(), within: 12_000_000, burst: 1000 }),
    };
    let guaranteed = LinkGuarantee {
        link: NAMES[4].into(),
        scheduler: Scheduler::Edf,
        rate: 999_000_000,
        slack: 2_100_000,
        largest: 32_786,
        reserved: 450_000_000,
        channels: NAMES.map(channel).into(),
    };
    let settings = DeadlineQdisc {
        scheduler: Scheduler::Edf,
        rate: 1_000_000_000,
        slack: 2_000_000,
        realtime_max: 0,
        channels: BTreeMap::new(),
    };
    let now = LinkStatus {
        link: NAMES[4].into(),
        index: 2,
        settings,
        stats: Default::default(),
        channels: NAMES.map(|name| (name.to_owned(), Default::default())).into(),
    };
    let now = LinksStatus { links: vec![now], ..LinksStatus::default() };
    for style in [UNICODE, Style::PLAIN] {
        aligned(&guarantees::link(&guaranteed, &style), "3.00 ms");
        // The first column of figures: there is no deadline.
        let text = links::table(&now, &style);
        aligned(&text, "-        0");
    }
}

#[test]
fn requirements() {
    let all = NAMES.map(|name| Requirement {
        name: name.chars().take(8).collect(),
        present: true,
        essential: false,
        found: "found".into(),
        consequence: String::new(),
        remedy: String::new(),
    });
    aligned(&doctor::table(&all, &UNICODE), "found");
}

#[test]
fn a_mark_stands_below_the_word_that_is_wrong() {
    for name in NAMES {
        let text = format!("vm = {{ \"{name}\" = {{ prot = 1 }} }}");
        let source = Source { name: "p.toml".into(), text };
        let problems = teiji_policy::parse(std::slice::from_ref(&source)).unwrap_err();
        let text = plan::problems(&problems, &[source]);
        assert_eq!((at(&text, "prot = 1").len(), at(&text, "prot = 1")), (1, at(&text, "^")), "{text}");
    }
}
