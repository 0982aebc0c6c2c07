//! `apply --confirm-within`: the changes are undone unless somebody confirms them.

use super::{POLICY, State, fixture, has, printed};

pub fn unconfirmed_it_undoes_itself() {
    let fixture = fixture();
    let text = fixture.teiji(&format!("apply {POLICY} --confirm-within 2s"), 1);
    has(&text, &["nobody confirmed within 2s", "what was done has been undone"]);
    assert_eq!(fixture.state(), State::Original);

    // A signal to end undoes the changes too.
    let child = fixture.waiting(POLICY, "60s");
    fixture.sh(&format!("kill -TERM {}", child.id().unwrap()));
    has(&printed(&child.wait().unwrap(), "apply", 1), &["interrupted", "undone"]);
    assert_eq!(fixture.state(), State::Original);
    has(&fixture.teiji("confirm", 1), &["nothing to confirm"]);
}

pub fn confirmed_it_stays() {
    let fixture = fixture();
    let child = fixture.waiting(POLICY, "60s");
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

pub fn killed_while_it_waits_the_next_command_undoes() {
    let fixture = fixture();
    for next in ["rollback --unfinished", "rollback"] {
        let child = fixture.waiting(POLICY, "60s");
        let pid = child.id().unwrap();
        fixture.sh(&format!("kill -9 {pid}"));
        child.wait().unwrap();
        assert_eq!(fixture.state(), State::Applied);
        has(&fixture.teiji(next, 0), &[&format!("pid {pid}"), "its changes were undone"]);
        assert_eq!(fixture.state(), State::Original);
    }
    // An apply first undoes those changes and then makes its own.
    let child = fixture.waiting(POLICY, "60s");
    fixture.sh(&format!("kill -9 {}", child.id().unwrap()));
    child.wait().unwrap();
    has(&fixture.teiji(&format!("apply {POLICY}"), 0), &["its changes were undone", "done: "]);
    assert_eq!(fixture.state(), State::Applied);
    fixture.teiji("rollback", 0);
    assert_eq!(fixture.state(), State::Original);
}
