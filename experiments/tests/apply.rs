//! `teiji apply` on a real KVM host: whatever happens, every setting ends as it was or as the policy asks. All tests
//! use one lab host. Needs root; takes minutes if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

#[path = "apply/confirm.rs"]
mod confirm;
#[path = "apply/faults.rs"]
mod faults;

use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use teiji_experiments::apply::kills;
use teiji_experiments::apply::test_host::{self, TEIJI, TestHost};
use teiji_experiments::apply::{SHORT, seed};
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, Output};

const POLICY: &str = "/root/policy.toml";
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The host, and its two valid states.
struct Fixture {
    test_host: &'static TestHost<'static>,
    original: Map<String, Value>,
    applied: Map<String, Value>,
}

/// Which of the two states the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Original,
    Applied,
}

impl Fixture {
    /// The host's state. Panics with the differences if it is neither of the two.
    fn state(&self) -> State {
        let found = self.test_host.snapshot().unwrap();
        if found == self.original {
            return State::Original;
        }
        let differs = |other: &Map<String, Value>| -> Vec<String> {
            let names: std::collections::BTreeSet<&String> = found.keys().chain(other.keys()).collect();
            names
                .into_iter()
                .filter(|n| found.get(*n) != other.get(*n))
                .map(|n| format!("{n}: {:?}", found.get(n)))
                .collect()
        };
        let (a, b) = (differs(&self.original), differs(&self.applied));
        assert!(
            b.is_empty(),
            "between the two states; differs from what it was in {a:#?}, from the policy in {b:#?}"
        );
        State::Applied
    }

    /// Runs teiji, which must exit with `code`; returns its output and its messages.
    fn teiji(&self, arguments: &str, code: i32) -> String {
        let output = self.test_host.teiji(arguments).unwrap();
        printed(&output, arguments, code)
    }

    fn sh(&self, script: &str) -> String {
        self.test_host.lab.host.run(script).unwrap().ok().unwrap()
    }

    /// Starts an apply with confirmation, and returns when it waits for it.
    fn waiting(&self, policy: &str, within: &str) -> Child {
        let command = format!("exec {TEIJI} apply {policy} --confirm-within {within} 2>&1");
        let child = self.test_host.lab.host.spawn(&command).unwrap();
        child.wait_for("applied; ", START_TIMEOUT).unwrap();
        child
    }
}

fn printed(output: &Output, what: &str, code: i32) -> String {
    let text = format!("{}\n{}", output.text(), output.err_text());
    assert_eq!(output.code, code, "{what}: {text}");
    text
}

/// Checks that a message contains `words`.
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

static LAB: Shared<Lab> = Shared::new("the lab", || {
    test_host::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("apply")).unwrap()
});
static GUEST: Shared<Guest<'static>> = Shared::new("the VM", || LAB.host.guest(&test_host::guest()).unwrap());
static TEST_HOST: Shared<TestHost<'static>> =
    Shared::new("the prepared host", || TestHost::prepare(&LAB, &GUEST).unwrap());
static FIXTURE: Shared<Fixture> = Shared::new("the two states of the host", || {
    let test_host = &*TEST_HOST;
    clear(test_host);
    let original = test_host.snapshot().unwrap();
    test_host.teiji(&format!("apply {POLICY}")).unwrap().ok().unwrap();
    // The driver checks separately that this is what the policy asks for.
    let applied = test_host.snapshot().unwrap();
    test_host.teiji("rollback").unwrap().ok().unwrap();
    let fixture = Fixture { test_host, original, applied };
    assert_eq!(fixture.state(), State::Original);
    fixture
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        killed_at_random_moments,
        faults::a_step_that_the_kernel_refuses_undoes_all,
        faults::a_vm_that_vanishes_is_missed,
        faults::a_full_disk_undoes_or_changes_nothing,
        faults::one_at_a_time_changes_settings,
        faults::without_root_it_says_what_it_needs,
        faults::what_others_change_is_told_and_left_alone,
        confirm::unconfirmed_it_undoes_itself,
        confirm::confirmed_it_stays,
        confirm::killed_while_it_waits_its_time_goes_on,
        the_vm_still_works_after_all_of_it,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

/// Ends what a failed test may have left running, and reverts its changes.
fn clear(test_host: &TestHost<'_>) {
    for command in ["rollback --unfinished", "rollback --force"] {
        test_host.teiji(command).unwrap();
    }
}

/// The host in its original state, for a test.
fn fixture() -> &'static Fixture {
    clear(FIXTURE.test_host);
    assert_eq!(FIXTURE.state(), State::Original, "an earlier test has left something");
    &FIXTURE
}

fn the_vm_still_works_after_all_of_it() {
    GUEST.run("true").unwrap().ok().unwrap();
}

fn killed_at_random_moments() {
    clear(&TEST_HOST);
    let seed = seed();
    eprintln!("seed {seed}");
    let kills = kills::run(&TEST_HOST, SHORT.kills, seed).unwrap();
    eprintln!("{}", kills.markdown());
    for (kind, c) in kills.counts() {
        assert_eq!((c.kills, c.well), (SHORT.kills, c.rounds), "{kind}, seed {seed}: {}", kills.failures());
        // Otherwise the kills prove nothing.
        assert!(
            c.at_work * 2 > c.kills && c.between > 0 && c.recovery_kills > 0,
            "{kind}, seed {seed}: {c:?}"
        );
    }
}
