//! `apply --confirm-within`: the changes are undone unless somebody confirms them.

use super::{POLICY, State, has, said, stage};

pub fn unconfirmed_it_undoes_itself() {
    let stage = stage();
    let text = stage.teiji(&format!("apply {POLICY} --confirm-within 2s"), 1);
    has(&text, &["nobody confirmed within 2s", "what was done has been undone"]);
    assert_eq!(stage.state(), State::Original);

    // A signal to end undoes the changes too.
    let child = stage.waiting(POLICY, "60s");
    stage.sh(&format!("kill -TERM {}", child.id().unwrap()));
    has(&said(&child.wait().unwrap(), "apply", 1), &["interrupted", "undone"]);
    assert_eq!(stage.state(), State::Original);
    has(&stage.teiji("confirm", 1), &["nothing to confirm"]);
}

pub fn confirmed_it_stays() {
    let stage = stage();
    let child = stage.waiting(POLICY, "60s");
    assert_eq!(stage.state(), State::Applied);
    has(&stage.teiji("status", 0), &["waits for `teiji confirm`"]);
    has(&stage.teiji("confirm", 0), &["the changes stay"]);
    said(&child.wait().unwrap(), "apply", 0);
    assert_eq!(stage.state(), State::Applied);
    // A second apply changes nothing.
    has(&stage.teiji(&format!("apply {POLICY}"), 0), &["nothing to change"]);
    stage.teiji("rollback", 0);
    assert_eq!(stage.state(), State::Original);
}

pub fn killed_while_it_waits_the_next_command_undoes() {
    let stage = stage();
    for next in ["rollback --unfinished", "rollback"] {
        let child = stage.waiting(POLICY, "60s");
        let pid = child.id().unwrap();
        stage.sh(&format!("kill -9 {pid}"));
        child.wait().unwrap();
        assert_eq!(stage.state(), State::Applied);
        has(&stage.teiji(next, 0), &[&format!("pid {pid}"), "its changes were undone"]);
        assert_eq!(stage.state(), State::Original);
    }
    // An apply first undoes those changes and then makes its own.
    let child = stage.waiting(POLICY, "60s");
    stage.sh(&format!("kill -9 {}", child.id().unwrap()));
    child.wait().unwrap();
    has(&stage.teiji(&format!("apply {POLICY}"), 0), &["its changes were undone", "done: "]);
    assert_eq!(stage.state(), State::Applied);
    stage.teiji("rollback", 0);
    assert_eq!(stage.state(), State::Original);
}
