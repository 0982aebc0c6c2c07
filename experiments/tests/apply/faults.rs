//! Faults other than a kill of teiji.

use super::{POLICY, START_TIMEOUT, State, fixture, has, printed};
use teiji_experiments::apply::kills::{self, Vanishings};
use teiji_experiments::apply::test_host::{STATE, TEIJI};
use teiji_experiments::apply::{SHORT, seed};

const FULL_DISK: &str = "/root/tiny";

/// `plan` knows the VMs' threads, but only the kernel knows how much deadline bandwidth other processes have taken.
pub fn a_step_that_the_kernel_refuses_undoes_all() {
    let fixture = fixture();
    let policy = "[host]\nhalt_poll = \"30us\"\n[vm.vm1]\nweight = 50\nclass = \"deadline\"\nruntime = \"4ms\"\n\
                  period = \"10ms\"\n";
    fixture.test_host.lab.host.put("/root/deadline.toml", policy.as_bytes()).unwrap();
    let others = "for n in 1 2 3 4 5; do chrt -d --sched-runtime 600000000 --sched-deadline 1000000000 \
                  --sched-period 1000000000 0 sh -c 'echo up; exec sleep 1000' & done; wait";
    let others = fixture.test_host.lab.host.spawn(others).unwrap();
    others.wait_for(&"up\n".repeat(5), START_TIMEOUT).unwrap();
    has(&fixture.teiji("plan /root/deadline.toml", 0), &["scheduling of thread", "steps to take"]);
    let text = fixture.teiji("apply /root/deadline.toml", 1);
    has(&text, &["cannot change scheduling of thread", "of vm1", "EBUSY", "what was done has been undone"]);
    assert_eq!(fixture.state(), State::Original);
    others.kill().unwrap();
    others.wait().unwrap();
    // Without the other processes it succeeds.
    fixture.teiji("apply /root/deadline.toml", 0);
    fixture.teiji("rollback", 0);
    assert_eq!(fixture.state(), State::Original);
}

pub fn a_vm_that_vanishes_is_missed() {
    let fixture = fixture();
    let seed = seed();
    eprintln!("seed {seed}");
    let rounds = kills::vanish(fixture.test_host, SHORT.vanish, seed).unwrap();
    for round in &rounds {
        assert!(round.well(), "seed {seed}: {round:#?}");
    }
    let v = Vanishings::of(&rounds);
    eprintln!("{v:?}");
    assert_eq!(v.undone + v.recovered, SHORT.vanish, "seed {seed}: {rounds:#?}");
    assert!(v.undone > 0 && v.recovered > 0 && v.said_gone > 0, "seed {seed}: {rounds:#?}");

    // After everything was applied and teiji itself was killed: each thread of the VM is reported as gone, by name.
    let vm = fixture.test_host.stand_in().unwrap();
    let child = fixture.waiting("/root/standin.toml", "600s");
    fixture.sh(&format!("kill -9 {} {}", child.id().unwrap(), vm.id().unwrap()));
    child.wait().unwrap();
    vm.wait().unwrap();
    let text = fixture.teiji("rollback", 0);
    has(&text, &["vCPU 0 of standin) is gone", "vCPU 1 of standin) is gone", "confirmation was undone"]);
    assert_eq!(fixture.state(), State::Original);
}

/// With every amount of room on the disk from none to enough.
pub fn a_full_disk_undoes_or_changes_nothing() {
    let fixture = fixture();
    let state = format!("--state {FULL_DISK}/state");
    let mut refused = [0, 0];
    let mut kb = 4;
    loop {
        fixture.sh(&format!("mkdir -p {FULL_DISK} && mount -t tmpfs -o size={kb}k tiny {FULL_DISK}"));
        let output = fixture.test_host.teiji(&format!("apply {POLICY} {state}")).unwrap();
        if output.code == 0 {
            break;
        }
        has(&printed(&output, "apply", 1), &["No space left", FULL_DISK]);
        assert_eq!(fixture.state(), State::Original, "{kb} kB");
        let left = fixture.sh(&format!("ls {FULL_DISK}/state"));
        assert!(!left.contains("transaction"), "{kb} kB: {left}");
        fixture.sh(&format!("umount {FULL_DISK}"));
        refused[usize::from(output.text().contains("1/"))] += 1;
        kb += 4;
        assert!(kb < 200, "there is never enough room");
    }
    // Some applies failed before the first step and some after it.
    assert!(refused[0] > 0 && refused[1] > 0, "{refused:?}");
    assert_eq!(fixture.state(), State::Applied);

    // Room for a rollback: none at first, then one page more each time.
    let mut failed = 0;
    let fill = format!("cat /dev/zero >{FULL_DISK}/filler 2>/dev/null; stat -c %s {FULL_DISK}/filler");
    fixture.sh(&format!("mount -o remount,size={}k {FULL_DISK}", kb + 64));
    let mut filler: u64 = fixture.sh(&fill).parse().unwrap();
    loop {
        let output = fixture.test_host.teiji(&format!("rollback {state}")).unwrap();
        let now = fixture.state();
        if output.code == 0 {
            assert_eq!(now, State::Original);
            break;
        }
        failed += 1;
        let text = printed(&output, "rollback", 1);
        has(&text, &["No space left", FULL_DISK]);
        let done = text.contains("all settings are as asked for");
        assert_eq!(now, if done { State::Original } else { State::Applied }, "{text}");
        filler = filler.checked_sub(4096).expect("there is never enough room");
        fixture.sh(&format!("truncate -s {filler} {FULL_DISK}/filler"));
    }
    assert!(failed > 0, "the disk was not full");
    has(&fixture.teiji(&format!("status {state}"), 0), &["holds nothing"]);
    fixture.sh(&format!("umount {FULL_DISK}"));
}

pub fn one_at_a_time_changes_settings() {
    let fixture = fixture();
    fixture.teiji(&format!("apply {POLICY}"), 0);
    // The lock as a teiji has it that is changing settings.
    let holder =
        fixture.test_host.lab.host.spawn(&format!("exec flock --no-fork {STATE}/lock sleep 600")).unwrap();
    fixture.sh(&format!("until ! flock -n {STATE}/lock true; do sleep 0.01; done"));
    for second in [&format!("apply {POLICY}"), "rollback", "rollback --unfinished"] {
        has(&fixture.teiji(second, 1), &["another teiji", "nothing was done"]);
    }
    // Reading works meanwhile.
    fixture.teiji("status", 0);
    has(&fixture.teiji(&format!("plan {POLICY}"), 0), &["nothing to change"]);
    assert_eq!(fixture.state(), State::Applied);
    fixture.sh(&format!(
        "kill {}; while ! flock -n {STATE}/lock true; do sleep 0.01; done",
        holder.id().unwrap()
    ));
    drop(holder);
    fixture.teiji("rollback", 0);

    // Two applies at the same instant: one succeeds; the other is refused, finds its plan out of date, or finds nothing
    // to do.
    let race = format!(
        "for n in 1 2; do ({TEIJI} apply {POLICY} >/root/race.$n 2>&1; echo $? >>/root/race.$n) & done; wait; \
         tail -qn1 /root/race.1 /root/race.2 | sort | tr '\\n' ' '; cat /root/race.1 /root/race.2"
    );
    let (mut races, mut refused) = (0, 0);
    // On a busy machine one may end before the other begins.
    while races < 6 || (refused == 0 && races < 60) {
        races += 1;
        let text = fixture.sh(&race);
        if text.starts_with("0 1 ") {
            assert!(text.contains("another teiji") || text.contains("plan again"), "{text}");
            refused += 1;
        } else {
            assert!(text.starts_with("0 0 ") && text.contains("nothing to change"), "{text}");
        }
        assert_eq!(fixture.state(), State::Applied);
        fixture.teiji("rollback", 0);
        assert_eq!(fixture.state(), State::Original);
    }
    assert!(refused > 0, "the two never ran at the same time");
}

pub fn without_root_it_says_what_it_needs() {
    let fixture = fixture();
    fixture.sh(&format!(
        "cp {POLICY} /tmp/policy.toml; printf '[host]\\nhalt_poll = \"50us\"\\n' >/tmp/host.toml"
    ));
    let nobody = |arguments: &str, code: i32| {
        let command = format!(
            "cd /; setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all {TEIJI} {arguments}"
        );
        printed(&fixture.test_host.lab.host.run(&command).unwrap(), arguments, code)
    };
    // What the kernel shows to all users can be planned. The VM belongs to root.
    has(&nobody("plan /tmp/host.toml", 0), &["kvm.halt_poll_ns", "1 step to take"]);
    has(&nobody("plan /tmp/policy.toml", 1), &["no VM `vm1`", "nothing is changed"]);
    for change in ["apply /tmp/host.toml", "rollback", "confirm"] {
        has(&nobody(change, 1), &["root is needed"]);
    }
    assert_eq!(fixture.state(), State::Original);
}

pub fn what_others_change_is_told_and_left_alone() {
    let fixture = fixture();
    const HALT_POLL: &str = "/sys/module/kvm/parameters/halt_poll_ns";
    fixture.teiji(&format!("apply {POLICY}"), 0);
    has(&fixture.teiji("status", 0), &["teiji holds"]);
    fixture.sh(&format!("echo 77777 >{HALT_POLL}"));
    has(&fixture.teiji("status", 1), &["changed by someone else to 77.8 µs"]);
    let text = fixture.teiji("rollback", 1);
    has(&text, &["kvm.halt_poll_ns", "from 50.0 µs to 77.8 µs, and was left alone", "--force"]);
    let mut found = fixture.test_host.snapshot().unwrap();
    assert_eq!(found["halt_poll"], "77777");
    found.insert("halt_poll".into(), fixture.original["halt_poll"].clone());
    assert_eq!(found, fixture.original, "everything else is restored");
    fixture.teiji("rollback --force", 0);
    assert_eq!(fixture.state(), State::Original);
}
