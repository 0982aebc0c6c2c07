//! A resource that is switched off, such as the cpufreq policy of CPUs that are offline: it has no value, and nothing
//! else waits for it.

use crate::sim::{Settings, Sim, plan};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use teiji_agent::apply::{Engine, Error, Message, Options, Progress, Rollback, SettingsBackend};
use teiji_model::plan::Held;
use teiji_model::resource::{Resource, ResourceError, Value};

const POLICY: Resource = Resource::Governor(0);
const POLL: Resource = Resource::HaltPoll;

/// The host, and whether its cpufreq policy is offline.
#[derive(Clone)]
struct Host(Sim, Rc<Cell<bool>>);

impl Host {
    fn new() -> (Settings, Host) {
        let before = BTreeMap::from([(POLICY, word("schedutil")), (POLL, Value::Nanoseconds(1))]);
        (before.clone(), Host(Sim::new(before), Rc::default()))
    }

    fn engine(&self) -> Engine<Host, Sim, Sim> {
        Engine::with(self.clone(), self.0.clone(), self.0.clone(), "this boot")
    }

    fn check(&self, setting: &Resource) -> Result<(), ResourceError> {
        match *setting == POLICY && self.1.get() {
            true => Err(ResourceError::Offline("its CPUs are offline (EBUSY)".into())),
            false => Ok(()),
        }
    }

    fn apply(&self, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), Error> {
        let wanted = [(POLICY, word("performance")), (POLL, Value::Nanoseconds(2))];
        let plan = plan(&self.0.settings(), &wanted);
        self.engine().apply(&plan, &Options::default(), progress, &AtomicBool::new(false)).map(drop)
    }
}

impl SettingsBackend for Host {
    fn read(&self, setting: &Resource) -> Result<Value, ResourceError> {
        self.check(setting)?;
        SettingsBackend::read(&self.0, setting)
    }

    fn write(&self, setting: &Resource, value: &Value) -> Result<(), ResourceError> {
        self.check(setting)?;
        SettingsBackend::write(&self.0, setting, value)
    }

    fn remove_leftovers(&self) {
        self.0.remove_leftovers();
    }
}

fn word(word: &str) -> Value {
    Value::Word(word.into())
}

/// The CPU is online again, and a rollback restores what was left.
fn returns(host: &Host, before: &Settings) {
    host.1.set(false);
    assert_eq!(host.engine().rollback(&Rollback::default()).unwrap().messages, []);
    assert_eq!((&host.0.settings(), host.0.held()), (before, Held::default()));
}

#[test]
fn a_rollback_leaves_it_held_and_does_not_block_what_follows() {
    let (before, host) = Host::new();
    host.apply(&mut |_| {}).unwrap();
    host.1.set(true);
    let done = host.engine().rollback(&Rollback::default()).unwrap();
    let [message @ Message::Offline { .. }] = &done.messages[..] else { panic!("{:?}", done.messages) };
    let text = message.to_string();
    assert!(text.contains("governor") && text.contains("EBUSY") && text.contains("stays held"), "{text}");
    assert_eq!(done.restored, 1, "the other one");
    assert!(host.0.is_clean());
    assert_eq!(host.0.held().settings.keys().collect::<Vec<_>>(), [&POLICY]);
    // What comes next is not about the policy.
    let other = plan(&before, &[(POLL, Value::Nanoseconds(3))]);
    host.engine().apply(&other, &Options::default(), &mut |_| {}, &AtomicBool::new(false)).unwrap();
    returns(&host, &before);
}

#[test]
fn an_apply_that_fails_keeps_it_held() {
    let (before, host) = Host::new();
    host.0.0.refused.borrow_mut().push(Value::Nanoseconds(2));
    let switch = Rc::clone(&host.1);
    let failed = host.apply(&mut |progress| {
        if progress == Progress::Undoing {
            switch.set(true);
        }
    });
    let Err(Error::Undone { messages, .. }) = failed else { panic!("{failed:?}") };
    assert!(matches!(messages[..], [Message::Offline { .. }]), "{messages:?}");
    assert!(host.0.is_clean());
    assert_eq!(host.0.held().settings[&POLICY].original, word("schedutil"));
    assert_eq!(host.0.settings()[&POLICY], word("performance"));
    returns(&host, &before);
}

#[test]
fn an_apply_that_was_killed_does_not_block_what_follows() {
    let mut left = 0;
    for n in 1.. {
        let (before, host) = Host::new();
        if host.0.killed_at(n, |_| host.apply(&mut |_| {})).is_some() {
            break;
        }
        host.1.set(true);
        host.engine().recover(Duration::ZERO).unwrap();
        assert!(host.0.is_clean(), "killed at {n}");
        left += usize::from(host.0.settings()[&POLICY] == word("performance"));
        returns(&host, &before);
    }
    assert!(left > 0);
}
