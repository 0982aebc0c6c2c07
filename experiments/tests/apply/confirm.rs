//! `apply --confirm-within`: the changes are undone unless somebody confirms them.

use super::{POLICY, State, fixture, has, printed};

pub fn unconfirmed_it_undoes_itself() {
    let fixture = fixture();
    let text = fixture.teiji(&format!("apply {POLICY} --confirm-within 2s"), 1);
    has(&text, &["nobody confirmed within 2s", "what was done has been undone"]);
    assert_eq!(fixture.state(), State::Original);

    // A signal to end undoes the changes too.
    let child = fixture.waiting(POLICY, "600s");
    fixture.sh(&format!("kill -TERM {}", child.id().unwrap()));
    has(&printed(&child.wait().unwrap(), "apply", 1), &["interrupted", "undone"]);
    assert_eq!(fixture.state(), State::Original);
    has(&fixture.teiji("confirm", 1), &["nothing to confirm"]);
}

pub fn confirmed_it_stays() {
    let fixture = fixture();
    let child = fixture.waiting(POLICY, "600s");
    assert_eq!(fixture.state(), State::Applied);
    has(&fixture.teiji("status", 0), &["waits for `teiji confirm`"]);
    has(&fixture.teiji("confirm", 0), &["the changes stay"]);
    printed(&child.wait().unwrap(), "apply", 0);
    assert_eq!(fixture.state(), State::Applied);
    // A second apply changes nothing.
    has(&fixture.teiji(&format!("apply {POLICY}"), 0), &["nothing to change"]);
    fixture.teiji("rollback", 0);
    assert_eq!(fixture.state(), State::Original);
}

/// The changes of a killed apply stay until its time is over, as they would if it lived.
pub fn killed_while_it_waits_its_time_goes_on() {
    let fixture = fixture();
    let killed = |within: &str| {
        let child = fixture.waiting(POLICY, within);
        let pid = child.id().unwrap();
        fixture.sh(&format!("kill -9 {pid}"));
        child.wait().unwrap();
        assert_eq!(fixture.state(), State::Applied);
        pid
    };
    killed("600s");
    has(&fixture.teiji("rollback --unfinished", 0), &["nothing was left unfinished"]);
    has(&fixture.teiji("status", 0), &["waits for `teiji confirm`"]);
    has(
        &fixture.teiji(&format!("apply {POLICY}"), 1),
        &["waits for its confirmation", "`teiji rollback` undoes"],
    );
    assert_eq!(fixture.state(), State::Applied);
    has(&fixture.teiji("confirm", 0), &["the changes stay"]);
    fixture.teiji("rollback", 0);
    assert_eq!(fixture.state(), State::Original);
    // A rollback undoes it at once.
    let pid = killed("600s");
    let said = format!("the apply (pid {pid}) that waited for its confirmation was undone");
    has(&fixture.teiji("rollback", 0), &[&said]);
    assert_eq!(fixture.state(), State::Original);
    // When its time is over, the next command that changes something undoes it; reading changes nothing.
    let pid = killed("20s");
    fixture.sh("sleep 21");
    has(&fixture.teiji("status", 1), &["was not confirmed in time; `teiji rollback --unfinished`"]);
    assert_eq!(fixture.state(), State::Applied);
    let said = format!("nobody confirmed the apply (pid {pid}) in time: its changes were undone");
    has(&fixture.teiji("rollback --unfinished", 0), &[&said]);
    assert_eq!(fixture.state(), State::Original);
    // An apply that is rolled back while it waits says so.
    let child = fixture.waiting(POLICY, "600s");
    fixture.teiji("rollback", 0);
    assert_eq!(fixture.state(), State::Original);
    has(&printed(&child.wait().unwrap(), "apply", 1), &["undone by another teiji"]);
}
