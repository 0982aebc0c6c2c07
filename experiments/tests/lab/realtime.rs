//! `class = "realtime"`: the threads of a VM do not keep each other from running.

use super::{LAB, vm1};
use std::time::Duration;
use teiji_experiments::load::{self, VCPU_CPU, VHOST_CPU};

const POLICY: &str = "/tmp/realtime.toml";
const STATE: &str = "--state /tmp/realtime-state";
const REQUESTS: u64 = 120;

/// Rolls the policy back when dropped, if that has not been done: other tests use the guest after this one, also if it fails.
struct Undone {
    worker: u32,
}

impl Drop for Undone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let undo = format!("chrt -f -p 11 {}; /mnt/bin/teiji rollback {STATE}", self.worker);
        let _ = LAB.host.run(&undo);
    }
}

/// vCPU and vhost worker share a CPU, and a busy loop in the guest keeps the vCPU from ever sleeping. With equal priorities the
/// worker hardly runs, and requests are not answered.
pub fn a_busy_guest_on_one_cpu_answers_all() {
    let (host, guest) = (&LAB.host, vm1());
    let sh = |script: &str| host.run(script).unwrap().ok().unwrap();
    let busy = guest.spawn("exec teiji-lab hog --cpu 0 --threads 1").unwrap();
    busy.wait_for("busy", Duration::from_secs(120)).unwrap();

    let policy =
        format!("[vm.vm1]\nclass = \"realtime\"\nvcpu_cpus = \"{VCPU_CPU}\"\nworker_cpus = \"{VCPU_CPU}\"\n");
    host.put(POLICY, policy.as_bytes()).unwrap();
    let (vcpu, worker) = (guest.vcpu_tids()[0], guest.vhost_tids()[0]);
    let undone = Undone { worker };
    sh(&format!("/mnt/bin/teiji apply {POLICY} {STATE}"));
    let priority = |tid: u32| sh(&format!("chrt -p {tid} | grep priority | grep -o '[0-9]*$'"));
    let priorities = (priority(vcpu), priority(worker));

    // One at a time, so that a slow guest need not keep up with a rate. If the worker does not run, this exceeds its limit.
    let one_by_one = format!("{} --outstanding 1", load::echo_command(guest, 20.0, REQUESTS));
    let answered = load::figures(&sh(&one_by_one)).unwrap();
    // With equal priorities three times the time is not enough, which shows that the guest is busy enough for this test.
    sh(&format!("chrt -f -p 10 {worker}"));
    let alike = host.run(&format!("timeout {} {one_by_one}", 3.0 * answered.seconds + 10.0)).unwrap();
    sh(&format!("chrt -f -p 11 {worker}; /mnt/bin/teiji rollback {STATE}"));
    drop((undone, busy));
    eprintln!(
        "answered: {} of {} in {} s; with one priority for both, exit code {}",
        answered.received, answered.sent, answered.seconds, alike.code
    );
    assert_eq!(priorities, ("10".into(), "11".into()));
    assert_eq!((answered.sent, answered.received), (REQUESTS, REQUESTS), "{answered:?}");
    assert_eq!(alike.code, 124, "the guest was not busy: {}", alike.text());
    assert_eq!(
        (priority(vcpu), priority(worker)),
        ("0".into(), "0".into()),
        "the priorities are not what they were"
    );
    let placed = sh(&format!("taskset -cp {worker}"));
    assert!(placed.ends_with(&format!(": {VHOST_CPU}")), "the worker's CPU is not what it was: {placed}");
}
