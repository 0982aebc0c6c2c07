//! State directories as teiji 0.1.0 left them (`tests/former`, each with what the host was like then): held settings, and
//! transactions whose process ended while it applied, committed, was about to wait for a confirmation or rolled back.

use crate::common::cpus;
use crate::sim::{Settings, Sim};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use teiji_agent::apply::store::{HELD, TRANSACTION};
use teiji_agent::apply::{Message, Rollback};
use teiji_model::observation::{Observation, SCHEMA};
use teiji_model::plan::{Held, Hold};
use teiji_model::policy::Policy;
use teiji_model::resource::{Resource, Value};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/former").join(name)
}

fn host(name: &str) -> Settings {
    let text = std::fs::read(folder(name).join("host.json")).unwrap();
    serde_json::from_slice::<Vec<(Resource, Value)>>(&text).unwrap().into_iter().collect()
}

/// A host on which that state was left.
fn left(name: &str) -> Sim {
    let sim = Sim::new(host(name));
    *sim.0.online.borrow_mut() = cpus("0-3");
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        if file != "host.json" {
            sim.0.files.borrow_mut().insert(file, std::fs::read(entry.path()).unwrap());
        }
    }
    sim
}

fn rolled_back(sim: &Sim) {
    assert_eq!(sim.engine().rollback(&Rollback::default()).unwrap().messages, []);
    assert_eq!((sim.settings(), sim.held()), (host("before"), Held::default()));
    assert!(sim.is_clean());
}

#[test]
fn what_it_held_is_put_back() {
    let sim = left("held");
    assert_eq!(sim.held().settings.len(), 16);
    assert!(sim.engine().status().unwrap().held.iter().all(|held| !held.changed));
    rolled_back(&sim);
}

#[test]
fn what_it_held_is_written_in_the_present_form() {
    let sim = left("held");
    let polls = [(Resource::HaltPoll, Value::Nanoseconds(77))];
    sim.apply(&crate::sim::plan(&sim.settings(), &polls)).unwrap();
    let held = String::from_utf8(sim.0.files.borrow()[HELD].clone()).unwrap();
    assert!(held.starts_with("{\"version\":2,"), "{held}");
    rolled_back(&sim);
}

#[test]
fn what_it_had_begun_is_undone() {
    for name in ["applying", "awaiting"] {
        let sim = left(name);
        let messages = sim.engine().recover(Duration::ZERO).unwrap();
        assert!(matches!(messages[..], [Message::Undone { .. }]), "{name}: {messages:?}");
        assert_eq!((sim.settings(), sim.held()), (host("before"), Held::default()), "{name}");
    }
}

#[test]
fn what_it_had_applied_can_be_confirmed() {
    let sim = left("awaiting");
    // It was ended while it wrote the last line, which whole is this.
    let mut journal = sim.0.files.borrow()[TRANSACTION].clone();
    let torn = journal.iter().rposition(|b| *b == b'\n').unwrap() + 1;
    assert_eq!(&journal[torn..], b"{\"applied\":true,");
    journal.extend(b"\"until\":1060000}\n");
    sim.0.files.borrow_mut().insert(TRANSACTION.into(), journal);
    assert_eq!(sim.engine().confirm().unwrap(), []);
    assert_eq!(sim.held().settings.len(), 16);
    rolled_back(&sim);
}

#[test]
fn what_it_had_committed_stays() {
    let sim = left("committing");
    let messages = sim.engine().recover(Duration::ZERO).unwrap();
    assert!(matches!(messages[..], [Message::Committed { .. }]), "{messages:?}");
    assert_eq!((sim.settings(), sim.held().settings.len()), (host("held"), 16));
    rolled_back(&sim);
}

#[test]
fn its_rollback_is_completed() {
    let sim = left("rolling-back");
    assert_ne!(sim.settings(), host("before"));
    let messages = sim.engine().recover(Duration::ZERO).unwrap();
    assert!(matches!(messages[..], [Message::RolledBack { .. }]), "{messages:?}");
    assert_eq!((sim.settings(), sim.held()), (host("before"), Held::default()));
}

#[test]
fn its_observation_is_read_and_its_sentences_are_kept() {
    let text = std::fs::read_to_string(folder("observation.json")).unwrap();
    let observation = Observation::parse(&text).unwrap();
    assert_eq!((observation.schema, observation.observed.vms.len()), (SCHEMA, 2));
    assert_eq!(observation.held.settings.len(), 16);
    let settings = &observation.observed.settings;
    assert!(settings.iter().count() > 20 && settings.errors().count() == 0);
    assert_eq!(settings.get(&Resource::IrqCpus(30)), Some(&Value::Cpus(cpus("0-3"))));
    let [one, other] = &observation.unseen[..] else { panic!("{:?}", observation.unseen) };
    assert!(one == "one thing" && other.contains("kvm is not loaded"), "{other}");
    let again = serde_json::to_string(&observation).unwrap();
    assert_eq!(Observation::parse(&again), Ok(observation));
}

/// In form 1 the kind of a control group was also that of its weight and quota.
#[test]
fn its_warning_about_libvirt_holds_for_a_weight() {
    let text = std::fs::read_to_string(folder("observation.json")).unwrap();
    let manager =
        r#""managers": [{"name": "libvirt", "advice": "use virsh schedinfo", "touches": ["group"]}]"#;
    let former = Observation::parse(&text.replace("\"managers\": []", manager)).unwrap();
    let weight = former.observed.settings.all().find(|r| matches!(r, Resource::GroupWeight(_))).unwrap();
    let hold = Hold {
        whose: "sip1".into(),
        original: Value::Weight(77),
        value: former.observed.settings[weight].clone(),
        since: 0,
        reason: "vm.sip1.weight".into(),
    };
    let held = Held { settings: BTreeMap::from([(weight.clone(), hold)]) };
    let plan = teiji_control::plan::plan(&Policy::default(), &former.observed, &held).unwrap();
    assert_eq!(plan.steps.len(), 1, "only a weight changes");
    assert_eq!(plan.warnings, ["libvirt: use virsh schedinfo"]);
}
