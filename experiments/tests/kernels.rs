//! Every BPF program on every kernel of the lab's list, the output of `teiji doctor` on the oldest, and UDP requests to a guest
//! on those that no other test traces. One boot for each kernel.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use teiji_experiments::load;
use teiji_experiments::path::SHORT;
use teiji_experiments::path::accuracy::{self, CASES};
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Kernel, Spec};

/// Instructions of one program after which the verifier gives up (BPF_COMPLEXITY_LIMIT_INSNS).
const VERIFIER_LIMIT: u64 = 1_000_000;

/// Only one lab host at a time: each ends when the next one is needed, whichever tests are selected.
static NEWEST: Shared<Lab> = Shared::new("the newest kernel", || boot(Kernel::Newest));
static STABLE: Shared<Lab> = Shared::new("the stable kernel", || {
    NEWEST.if_made(|lab| lab.host.end());
    boot(Kernel::Stable)
});
static OLDSTABLE: Shared<Lab> = Shared::new("the oldstable kernel", || {
    [&NEWEST, &STABLE].iter().for_each(|former| former.if_made(|lab| lab.host.end()));
    boot(Kernel::Oldstable)
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        every_program_loads_on_the_newest_kernel,
        every_program_loads_on_the_stable_kernel,
        requests_are_followed_on_the_stable_kernel,
        every_program_loads_on_the_oldstable_kernel,
        requests_are_followed_on_the_oldstable_kernel,
    ];
    harness::run(&tests, || {
        for lab in [&NEWEST, &STABLE, &OLDSTABLE] {
            lab.if_made(|lab| lab.host.end());
        }
    })
}

fn boot(kernel: Kernel) -> Lab {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    Lab::boot_as(&out, Spec { kernel, mem_mb: 3072, ..Spec::default() }).unwrap()
}

fn every_program_loads_on_the_newest_kernel() {
    every_program_loads_on(&NEWEST, Kernel::Newest, [6, 16]);
}

fn every_program_loads_on_the_stable_kernel() {
    every_program_loads_on(&STABLE, Kernel::Stable, [6, 12]);
}

fn every_program_loads_on_the_oldstable_kernel() {
    every_program_loads_on(&OLDSTABLE, Kernel::Oldstable, [6, 1]);
}

fn requests_are_followed_on_the_stable_kernel() {
    requests_are_followed(&STABLE);
}

fn requests_are_followed_on_the_oldstable_kernel() {
    requests_are_followed(&OLDSTABLE);
}

/// At least 99 % of the answered requests are followed, with the times of the captures around them. The guest has the host's
/// kernel.
fn requests_are_followed(lab: &Lab) {
    let guest = lab.host.guest(&load::placed("vm1")).unwrap();
    let server = load::echo_server(&lab.host, &guest).unwrap();
    let a = accuracy::run(lab, &guest, &CASES[0], &SHORT).unwrap();
    eprintln!("{}: {}", lab.host.kernel(), serde_json::to_string(&a).unwrap());
    assert!(a.answered >= 270, "{} answered", a.answered);
    a.check(0.99, 0).unwrap();
    drop(server);
}

/// `least` is the minimum version of the kernel.
fn every_program_loads_on(lab: &Lab, kernel: Kernel, least: [u32; 2]) {
    let version = lab.host.kernel().to_owned();
    assert!(at_least(&version, least), "{version} is {}", kernel.name());
    // BPF qdiscs exist since Linux 6.16.
    let has_bpf_qdiscs = kernel == Kernel::Newest;
    assert_eq!(at_least(&version, [6, 16]), has_bpf_qdiscs, "{version} is {}", kernel.name());
    the_verifier_accepts_every_program(lab, &version, has_bpf_qdiscs);
    // Asking takes a minute, so only on the oldest kernel here; on the newest `lab.rs` asks.
    if kernel == Kernel::Oldstable {
        doctor_says_what_the_kernel_lacks(lab);
    }
}

fn at_least(version: &str, least: [u32; 2]) -> bool {
    let numbers: Vec<u32> = version.split('.').take(2).map(|n| n.parse().unwrap()).collect();
    numbers.as_slice() >= least.as_slice()
}

fn the_verifier_accepts_every_program(lab: &Lab, version: &str, has_bpf_qdiscs: bool) {
    let printed = lab.host.run("/mnt/bin/verify").unwrap().ok().unwrap();
    let all: Value = serde_json::from_str(&printed).unwrap();
    eprintln!("instructions that the verifier of {version} walked: {printed}");
    // A distribution's kernel has its variables in its table of symbols.
    assert_eq!(all["preempt_count"], true, "{printed}");
    let mut expected = vec![("path_trace", 39)];
    if has_bpf_qdiscs {
        expected.push(("qdisc_edf", 5));
    } else {
        let why = all["qdisc_edf"]["refused"].as_str().unwrap();
        assert!(why.contains("lacks BPF qdiscs") && why.contains("Linux 6.16"), "{why}");
    }
    for (object, count) in expected {
        let programs = all[object]["programs"].as_object().unwrap_or_else(|| panic!("{object}: {printed}"));
        assert_eq!(all[object]["absent"], Value::Array(Vec::new()), "{object}");
        assert_eq!(programs.len(), count, "{object}: {printed}");
        for (name, walked) in programs {
            // A tenth of the limit, so that a kernel with a more thorough verifier still accepts the program.
            assert!(
                (1..VERIFIER_LIMIT / 10).contains(&walked.as_u64().unwrap()),
                "{object} {name}: {walked}"
            );
        }
    }
}

fn doctor_says_what_the_kernel_lacks(lab: &Lab) {
    let printed = lab.host.run("/mnt/bin/teiji doctor --json").unwrap().ok().unwrap();
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["works"], true, "{printed}");
    let capabilities = report["capabilities"].as_array().unwrap();
    let qdiscs =
        capabilities.iter().find(|c| c["name"] == "BPF qdiscs").unwrap_or_else(|| panic!("{printed}"));
    assert_eq!(qdiscs["present"], false, "{qdiscs}");
    assert!(
        qdiscs["consequence"].as_str().unwrap().contains("HFSC keeps the deadlines of channels"),
        "{qdiscs}"
    );
    assert!(qdiscs["remedy"].as_str().unwrap().contains("Linux 6.16"), "{qdiscs}");
    let probes =
        capabilities.iter().find(|c| c["name"] == "packet probes").unwrap_or_else(|| panic!("{printed}"));
    assert_eq!(probes["present"], true, "{probes}");
    let missing: Vec<&str> = capabilities
        .iter()
        .filter(|c| c["present"] == false)
        .map(|c| c["name"].as_str().unwrap_or_default())
        .collect();
    // An emulated machine cannot change the frequency of its CPUs.
    assert_eq!(missing, ["CPU frequency governors", "BPF qdiscs"]);
}
