//! `class = "realtime"` in the lab: the threads of a VM do not keep each other from running. Needs root; takes minutes
//! if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use std::path::PathBuf;
use std::process::ExitCode;
use teiji_experiments::load::{self, VCPU_CPU};
use teiji_experiments::tracing::Lab;
use teiji_lab::GuestSpec;
use teiji_lab::harness::{self, Shared};

const POLICY: &str = "/tmp/realtime.toml";
const STATE: &str = "--state /tmp/realtime-state";
const REQUESTS: u64 = 120;

static LAB: Shared<Lab> = Shared::new("the lab", || {
    Lab::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("realtime")).unwrap()
});

fn main() -> ExitCode {
    harness::run(&teiji_lab::tests![a_busy_guest_on_one_cpu_answers_all], || {
        LAB.if_made(|lab| lab.host.end())
    })
}

/// vCPU and vhost worker share a CPU, and a busy loop in the guest keeps the vCPU from ever sleeping. With equal
/// priorities the worker would not run: no request would be answered.
fn a_busy_guest_on_one_cpu_answers_all() {
    let lab: &Lab = &LAB;
    let one_cpu = GuestSpec { vhost_cpu: Some(VCPU_CPU), ..load::placed("vm1") };
    let guest = &lab.host.guest(&one_cpu).unwrap();
    let sh = |script: &str| lab.host.run(script).unwrap().ok().unwrap();
    let server = load::echo_server(&lab.host, guest).unwrap();
    let busy = guest.spawn("exec teiji-lab hog --cpu 0 --threads 1").unwrap();
    busy.wait_for("busy", std::time::Duration::from_secs(120)).unwrap();

    let policy =
        format!("[vm.vm1]\nclass = \"realtime\"\nvcpu_cpus = \"{VCPU_CPU}\"\nworker_cpus = \"{VCPU_CPU}\"\n");
    lab.host.put(POLICY, policy.as_bytes()).unwrap();
    sh(&format!("/mnt/bin/teiji apply {POLICY} {STATE}"));
    let vms: serde_json::Value = serde_json::from_str(&sh("/mnt/bin/teiji vms --json")).unwrap();
    let tid = |of: &str| vms["vms"][0][of][0]["tid"].as_u64().unwrap();
    let (vcpu, worker) = (tid("vcpus"), tid("workers"));
    let priority = |tid: u64| sh(&format!("chrt -p {tid} | grep priority | grep -o '[0-9]*$'"));
    assert_eq!((priority(vcpu).as_str(), priority(worker).as_str()), ("10", "11"));

    let applied = load::echo(&lab.host, guest, 20.0, REQUESTS).unwrap();
    // With equal priorities some requests are not answered, which shows that the guest is busy enough for this test.
    sh(&format!("chrt -f -p 10 {worker}"));
    let alike = load::echo(&lab.host, guest, 20.0, REQUESTS).unwrap();
    sh(&format!("chrt -f -p 11 {worker}"));
    sh(&format!("/mnt/bin/teiji rollback {STATE}"));
    drop((busy, server));
    eprintln!(
        "answered: {} of {}; with one priority for both: {}",
        applied.received, applied.sent, alike.received
    );
    assert_eq!((applied.sent, applied.received), (REQUESTS, REQUESTS), "{applied:?}");
    assert!(alike.received < alike.sent, "the guest was not busy: {alike:?}");
}
