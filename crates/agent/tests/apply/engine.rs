//! What each operation does and says.

use crate::common::{cpus, task};
use crate::sim::{Settings, Sim, plan, with};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use teiji_agent::apply::store::{HELD, Store, TRANSACTION};
use teiji_agent::apply::{Applied, Error, Failure, Message, Options, Progress, Rollback};
use teiji_model::plan::{Held, Plan};
use teiji_model::resource::{Resource, ResourceError, Value};

const POLL: Resource = Resource::HaltPoll;

fn ns(ns: u64) -> Value {
    Value::Nanoseconds(ns)
}

fn threads() -> Resource {
    Resource::ThreadCpus(task(1))
}

fn before() -> Settings {
    BTreeMap::from([(POLL, ns(1)), (threads(), Value::Cpus(cpus("0-3")))])
}

fn both() -> [(Resource, Value); 2] {
    [(POLL, ns(2)), (threads(), Value::Cpus(cpus("2")))]
}

/// A host where [`both`] have been applied.
fn applied() -> Sim {
    let sim = Sim::new(before());
    sim.apply(&plan(&before(), &both())).unwrap();
    sim
}

/// A host on which the process was killed when [`both`] were applied, waiting for the confirmation.
fn abandoned() -> Sim {
    let sim = Sim::new(before());
    let begun = (1..).find(|n| {
        let copy = sim.copy();
        let mut waiting = false;
        copy.killed_at(*n, |s| {
            s.apply_within(&plan(&before(), &both()), 60, &mut |p| {
                waiting |= matches!(p, Progress::Waiting { .. })
            })
        });
        waiting
    });
    assert!(
        sim.killed_at(begun.unwrap(), |s| s.apply_within(&plan(&before(), &both()), 60, &mut |_| {}))
            .is_none()
    );
    assert!(sim.has(TRANSACTION));
    sim
}

#[test]
fn applied_twice_changes_nothing() {
    let sim = applied();
    let files = sim.0.files.borrow().clone();
    assert_eq!(sim.apply(&Plan::default()).unwrap(), Applied::default());
    assert_eq!(*sim.0.files.borrow(), files);
}

#[test]
fn what_is_held_keeps_its_original() {
    let sim = applied();
    sim.apply(&plan(&sim.settings(), &[(POLL, ns(3))])).unwrap();
    let hold = sim.held().settings[&POLL].clone();
    assert_eq!((hold.original, hold.value, hold.reason.as_str()), (ns(1), ns(3), "vm.sip1"));
    assert!(hold.since >= 1_800_001_000);
    // Back to what it was: not held any more.
    sim.apply(&plan(&sim.settings(), &[(POLL, ns(1))])).unwrap();
    assert!(!sim.held().settings.contains_key(&POLL));
}

#[test]
fn a_plan_that_is_out_of_date_is_refused() {
    let sim = Sim::new(before());
    sim.set(POLL, ns(9));
    let error = sim.apply(&plan(&before(), &both())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kvm.halt_poll_ns (sip1) was changed meanwhile from 1 ns to 9 ns, so nothing was changed: plan again"
    );
    sim.0.settings.borrow_mut().remove(&POLL);
    let error = sim.apply(&plan(&before(), &both())).unwrap_err();
    assert!(matches!(error, Error::Unreadable { why: ResourceError::Gone(_), .. }), "{error}");
    assert!(sim.is_clean());
}

#[test]
fn untrusted_names_are_escaped() {
    let group = Resource::Group(task(1));
    let sim = Sim::new(BTreeMap::from([(group.clone(), Value::Group("/now\x1b[2J".into()))]));
    let planned = plan(
        &BTreeMap::from([(group.clone(), Value::Group("/x\x1b".into()))]),
        &[(group, Value::Group("/y".into()))],
    );
    let text = sim.apply(&planned).unwrap_err().to_string();
    assert!(text.contains("from /x\\u{1b} to /now\\u{1b}[2J"), "{text}");
    assert!(!text.chars().any(char::is_control), "{text}");
    let stopped = Message::Stopped { what: "memory".into(), why: "no room in /x\x1b[2J".into() }.to_string();
    assert!(stopped.contains("/x\\u{1b}[2J") && !stopped.chars().any(char::is_control), "{stopped}");
}

/// The scope of a session is removed when its user logs out; the VM is still where teiji has moved it.
#[test]
fn what_has_lost_its_former_place_is_not_gone() {
    let (group, place) = (Resource::Group(task(1)), |path: &str| Value::Group(path.into()));
    let before = BTreeMap::from([(group.clone(), place("/user.slice/session-3.scope"))]);
    let sim = Sim::new(before.clone());
    sim.apply(&plan(&before, &[(group.clone(), place("/teiji/vm-1"))])).unwrap();
    sim.0.absent.borrow_mut().push(before[&group].clone());
    for _ in 0..2 {
        let error = sim.engine().rollback(&Rollback::default()).unwrap_err();
        assert!(matches!(&error, Error::Unrestored { failed, .. } if failed.len() == 1), "{error}");
        assert_eq!(sim.held().settings.len(), 1);
    }
    // What the message advises.
    sim.set(group.clone(), place("/user.slice"));
    let messages = sim.engine().recover(Duration::ZERO).unwrap();
    assert!(matches!(messages[..], [Message::RolledBack { .. }, Message::Foreign { .. }]), "{messages:?}");
    assert!(sim.is_clean());
}

#[test]
fn a_signal_undoes() {
    let sim = Sim::new(before());
    for at in [0, 1, 2] {
        let stop = AtomicBool::new(false);
        let options = Options { confirm_within: Some(Duration::from_secs(9)), ..Options::default() };
        let mut undoing = false;
        let error = sim.engine().apply(
            &plan(&before(), &both()),
            &options,
            &mut |progress| match progress {
                Progress::Step { index, .. } if index == at => stop.store(true, Ordering::SeqCst),
                Progress::Waiting { .. } => stop.store(true, Ordering::SeqCst),
                Progress::Undoing => undoing = true,
                Progress::Step { .. } => {}
            },
            &stop,
        );
        assert_eq!(error.unwrap_err().to_string(), "it was interrupted; what was done has been undone");
        assert!(undoing);
        assert_eq!((sim.settings(), sim.held()), (before(), Held::default()));
        assert!(sim.is_clean());
    }
}

#[test]
fn a_confirmation_in_time_commits() {
    let sim = Sim::new(before());
    let mut left = Vec::new();
    let applied = sim.apply_within(&plan(&before(), &both()), 60, &mut |progress| {
        let Progress::Waiting { left: l } = progress else { return };
        left.push(l);
        if left.len() == 3 {
            assert_eq!(sim.engine().confirm().unwrap(), []);
        }
    });
    assert_eq!(applied.unwrap().changed, 2);
    assert_eq!((left.len(), left[0] > left[2]), (3, true));
    assert_eq!(sim.settings(), with(&before(), &both()));
    assert!(sim.is_clean());
}

#[test]
fn confirm_says_what_it_could_not_confirm() {
    let sim = Sim::new(before());
    assert!(matches!(sim.engine().confirm(), Err(Error::NothingToConfirm)));
    // While it is applying.
    let mut message = String::new();
    sim.apply_within(&plan(&before(), &both()), 1, &mut |progress| {
        if let Progress::Step { index: 1, .. } = progress {
            message = sim.engine().confirm().unwrap_err().to_string();
        }
    })
    .unwrap_err();
    assert!(message.contains("does not wait for a confirmation (yet)"), "{message}");
}

#[test]
fn an_abandoned_apply_can_be_confirmed_in_time_and_as_it_was_applied() {
    let sim = abandoned();
    assert_eq!(sim.engine().confirm().unwrap(), []);
    assert_eq!((sim.settings(), sim.held().settings.len()), (with(&before(), &both()), 2));

    let sim = abandoned();
    sim.wait(61);
    let error = sim.engine().confirm().unwrap_err();
    let text = "too late to confirm: the changes have been undone; nobody confirmed the apply (pid ";
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(sim.settings(), before());

    let sim = abandoned();
    sim.set(threads(), Value::Cpus(cpus("0-3")));
    assert!(matches!(sim.engine().confirm(), Err(Error::TooLate(_))));
    assert_eq!((sim.settings(), sim.held()), (before(), Held::default()));
}

#[test]
fn what_others_changed_meanwhile_is_left_alone() {
    let sim = abandoned();
    sim.wait(60);
    sim.set(POLL, ns(77));
    let messages = sim.engine().recover(Duration::ZERO).unwrap();
    let [Message::NotConfirmed { .. }, Message::Foreign { what, ours, found }] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((what.as_str(), ours, found), ("kvm.halt_poll_ns (sip1)", &ns(2), &ns(77)));
    assert_eq!(sim.settings(), with(&before(), &[(POLL, ns(77))]));
    assert!(sim.is_clean());

    // A set of CPUs that is less than what was applied and read back is someone else's as well.
    let sim = Sim::new(before());
    let wide = [(threads(), Value::Cpus(cpus("1-2")))];
    let error = sim.apply_within(&plan(&before(), &wide), 1, &mut |progress| {
        if let Progress::Waiting { .. } = progress {
            sim.set(threads(), Value::Cpus(cpus("1")));
        }
    });
    assert!(
        error.unwrap_err().to_string().contains("changed by someone else from 1-2 to 1, and was left alone")
    );
}

#[test]
fn what_is_gone_needs_no_undoing() {
    let sim = abandoned();
    sim.wait(60);
    sim.0.settings.borrow_mut().remove(&threads());
    let messages = sim.engine().recover(Duration::ZERO).unwrap();
    assert!(
        matches!(&messages[..], [Message::NotConfirmed { .. }, Message::Gone { what }] if what == "CPUs of thread 1 (sip1)")
    );
    assert_eq!(sim.settings(), BTreeMap::from([(POLL, ns(1))]));
    // Held settings of a task that is gone are forgotten at the next commit.
    let sim = applied();
    sim.0.settings.borrow_mut().remove(&threads());
    sim.apply(&plan(&sim.settings(), &[(POLL, ns(5))])).unwrap();
    assert_eq!(sim.held().settings.into_keys().collect::<Vec<_>>(), [POLL]);
}

#[test]
fn a_task_that_vanishes_meanwhile_undoes_the_rest() {
    let sim = Sim::new(before());
    let error = sim.apply_within(&plan(&before(), &both()), 1, &mut |progress| {
        if let Progress::Step { index: 1, .. } = progress {
            sim.0.settings.borrow_mut().remove(&threads());
        }
    });
    let Err(Error::Undone { why, messages }) = error else { panic!("{error:?}") };
    assert!(matches!(*why, Failure::Step { why: ResourceError::Gone(_), .. }));
    assert!(matches!(&messages[..], [Message::Gone { .. }]));
    assert_eq!(sim.settings(), BTreeMap::from([(POLL, ns(1))]));
}

#[test]
fn what_cannot_be_put_back_is_remembered_and_tried_again() {
    let sim = Sim::new(before());
    sim.0.refused.borrow_mut().extend([ns(1), Value::Cpus(cpus("2"))]);
    let error = sim.apply(&plan(&before(), &both())).unwrap_err();
    assert!(matches!(&error, Error::NotUndone { failed, .. } if failed.len() == 1), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(
        "not all settings could be restored: kvm.halt_poll_ns (sip1): EINVAL: no; /state/transaction records them"
    ));
    // Nothing else is done before that is mended.
    let error = sim.apply(&Plan::default()).unwrap_err();
    assert!(matches!(error, Error::Unrestored { .. }), "{error:?}");
    sim.0.refused.borrow_mut().clear();
    let messages = sim.engine().rollback(&Rollback::default()).unwrap().messages;
    assert!(matches!(messages[..], [Message::Undone { .. }]));
    assert_eq!(sim.settings(), before());
    assert!(sim.is_clean());
}

#[test]
fn rollback_leaves_what_others_changed_unless_forced() {
    let sim = applied();
    sim.set(POLL, ns(77));
    let done = sim.engine().rollback(&Rollback::default()).unwrap();
    assert_eq!(done.restored, 1);
    assert!(matches!(&done.messages[..], [Message::Foreign { .. }]));
    assert_eq!(sim.settings(), with(&before(), &[(POLL, ns(77))]));
    assert_eq!(sim.held().settings.into_keys().collect::<Vec<_>>(), [POLL]);
    let forced = sim.engine().rollback(&Rollback { force: true, ..Rollback::default() }).unwrap();
    assert_eq!((forced.restored, forced.messages), (1, Vec::new()));
    assert_eq!((sim.settings(), sim.held()), (before(), Held::default()));
    assert_eq!(sim.engine().rollback(&Rollback::default()).unwrap().restored, 0);
}

#[test]
fn a_rollback_that_fails_is_completed_later() {
    let sim = applied();
    sim.0.refused.borrow_mut().push(ns(1));
    let error = sim.engine().rollback(&Rollback::default()).unwrap_err();
    assert!(matches!(&error, Error::Unrestored { failed, .. } if failed.len() == 1), "{error:?}");
    assert_eq!(sim.settings(), with(&before(), &[(POLL, ns(2))]));
    sim.0.refused.borrow_mut().clear();
    assert!(matches!(sim.engine().recover(Duration::ZERO).unwrap()[..], [Message::RolledBack { .. }]));
    assert_eq!((sim.settings(), sim.held()), (before(), Held::default()));
}

#[test]
fn another_boot_forgets() {
    for sim in [abandoned(), applied()] {
        *sim.0.boot.borrow_mut() = "another".into();
        let now = sim.settings();
        assert!(sim.engine().status().unwrap().other_boot);
        assert_eq!(sim.held(), Held::default());
        assert_eq!(sim.engine().recover(Duration::ZERO).unwrap(), [Message::OtherBoot]);
        assert_eq!(sim.settings(), now);
        assert!(sim.is_clean() && !sim.has(HELD));
        assert_eq!(sim.engine().recover(Duration::ZERO).unwrap(), []);
    }
}

#[test]
fn a_second_one_is_refused_or_waits() {
    let sim = Sim::new(before());
    let lock = sim.lock().unwrap();
    let start = sim.0.now.get();
    let error = sim.engine().rollback(&Rollback::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("another teiji (pid 4711) is changing settings, so nothing was done: "),
        "{text}"
    );
    assert!(sim.0.now.get() - start < Duration::from_secs(1));
    let wait = Duration::from_secs(30);
    assert!(matches!(sim.engine().rollback(&Rollback { wait, force: false }), Err(Error::Busy(Some(4711)))));
    assert!(sim.0.now.get() - start >= wait);
    drop(lock);
    sim.engine().rollback(&Rollback::default()).unwrap();
}

#[test]
fn status_shows_and_changes_nothing() {
    let sim = applied();
    sim.set(POLL, ns(77));
    let status = sim.engine().status().unwrap();
    let shown: Vec<_> =
        status.held.iter().map(|h| (h.setting.clone(), h.present.clone(), h.changed)).collect();
    assert_eq!(shown, [(threads(), Ok(Value::Cpus(cpus("2"))), false), (POLL, Ok(ns(77)), true)]);
    assert_eq!((status.busy, status.transaction.is_some(), status.other_boot), (false, false, false));

    let sim = abandoned();
    let files = sim.0.files.borrow().clone();
    let unfinished = sim.engine().status().unwrap().transaction.unwrap();
    assert_eq!((unfinished.begun, unfinished.applied, unfinished.rollback), (2, true, false));
    assert!(unfinished.confirm_left.is_some_and(|ms| (59_000..=60_000).contains(&ms)));
    assert_eq!(*sim.0.files.borrow(), files);
    let _lock = sim.lock().unwrap();
    let status = sim.engine().status().unwrap();
    assert_eq!((status.busy, status.pid), (true, Some(4711)));
}

#[test]
fn damage_is_an_error_that_loses_nothing() {
    let whole = abandoned().0.files.borrow()[TRANSACTION].clone();
    let text = String::from_utf8(whole.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1..3], ["{\"do\":0}", "{\"do\":1}"]);
    let damaged = [
        (text[..text.find('\n').unwrap()].to_owned(), "line 1"),
        (String::new(), "line 1"),
        (text.replacen("\"forward\"", "\"sideways\"", 1), "line 1"),
        (text.replacen("{\"do\":0}", "{\"do\":1}", 1), "line 2"),
        (text.replacen("{\"do\":1}", "{\"do\":1,\"x\":1}", 1), "line 3"),
        (text.replacen("{\"do\":1}\n", "{\"do\"\n", 1), "line 3"),
        (text.clone() + "{\"do\":2}\n", "line 5"),
        (text.replacen("\"version\":2", "\"version\":3", 1), "another version of teiji (format 3"),
    ];
    for (content, says) in damaged {
        let sim = abandoned();
        sim.write(TRANSACTION, content.as_bytes()).unwrap();
        let (settings, files) = (sim.settings(), sim.0.files.borrow().clone());
        for error in [
            sim.engine().recover(Duration::ZERO).unwrap_err(),
            sim.apply(&Plan::default()).unwrap_err(),
            sim.engine().rollback(&Rollback::default()).unwrap_err(),
            sim.engine().confirm().unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains("/state/transaction") && error.contains(says), "{content:?}: {error}");
        }
        assert_eq!((sim.settings(), sim.0.files.borrow().clone()), (settings, files));
    }
    // A last line that was not written to its end says nothing.
    for torn in ["{\"do", "{\"commit\":true}"] {
        let sim = abandoned();
        sim.write(TRANSACTION, (text.clone() + torn).as_bytes()).unwrap();
        assert!(sim.engine().confirm().is_ok());
        assert_eq!(sim.settings(), with(&before(), &both()));
    }
    // What a later version writes is no damage, whatever is in it: that version can restore it.
    let sim = applied();
    let held = String::from_utf8(sim.0.files.borrow()[HELD].clone()).unwrap();
    let later =
        held.replacen("\"version\":2", "\"version\":3", 1).replacen("halt-poll", "not-yet-invented", 1);
    assert!(later.contains("\"version\":3") && later.contains("not-yet-invented"), "{later}");
    sim.write(HELD, later.as_bytes()).unwrap();
    let error = sim.engine().rollback(&Rollback::default()).unwrap_err();
    assert!(matches!(error, Error::Version { found: 3, known: 2, .. }), "{error}");
    assert!(error.to_string().contains("run `rollback` with that version first"), "{error}");

    let sim = applied();
    sim.write(HELD, b"{\"version\":1").unwrap();
    let error = sim.engine().rollback(&Rollback::default()).unwrap_err().to_string();
    assert!(error.contains("/state/held.json is damaged at line 1"), "{error}");
}
