//! The older kernels of the lab's list, 6.12 and 6.1: every BPF program loads, and UDP requests to a guest are followed; on 6.1
//! also the output of `teiji doctor`. One boot for each. `lab.rs` does this on the newest kernel.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use teiji_experiments::load;
use teiji_experiments::path::accuracy::{self, CASES};
use teiji_experiments::path::{SHORT, comparable, enough};
use teiji_experiments::tracing::Lab;
use teiji_experiments::verify;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Kernel, Spec};

/// Only one lab host at a time: each ends when the next one is needed, whichever tests are selected.
static STABLE: Shared<Lab> = Shared::new("the stable kernel", || boot(Kernel::Stable));
static OLDSTABLE: Shared<Lab> = Shared::new("the oldstable kernel", || {
    STABLE.if_made(|lab| lab.host.end());
    boot(Kernel::Oldstable)
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        every_program_loads_on_the_stable_kernel,
        requests_are_followed_on_the_stable_kernel,
        every_program_loads_on_the_oldstable_kernel,
        requests_are_followed_on_the_oldstable_kernel,
    ];
    harness::run(&tests, || {
        for lab in [&STABLE, &OLDSTABLE] {
            lab.if_made(|lab| lab.host.end());
        }
    })
}

fn boot(kernel: Kernel) -> Lab {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    Lab::boot_as(&out, Spec { kernel, mem_mb: 3072, ..Spec::default() }).unwrap()
}

fn every_program_loads_on_the_stable_kernel() {
    verify::accepts_every_program(&STABLE.host, Kernel::Stable, [6, 12]).unwrap();
}

fn every_program_loads_on_the_oldstable_kernel() {
    verify::accepts_every_program(&OLDSTABLE.host, Kernel::Oldstable, [6, 1]).unwrap();
    // Asking takes a minute, so only here; on the newest kernel `lab.rs` asks.
    doctor_says_what_the_kernel_lacks(&OLDSTABLE);
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
    let make = || accuracy::run(lab, &guest, &CASES[0], &SHORT).unwrap();
    let a = comparable(make, accuracy::Agreement::few_excused).unwrap();
    eprintln!("{}: {}", lab.host.kernel(), serde_json::to_string(&a).unwrap());
    enough(a.answered as u64, a.requests as u64).unwrap();
    a.check(0.99, 0).unwrap();
    drop(server);
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
    assert_eq!(missing, ["CPU frequency governors", "BPF qdiscs", "sched_ext"]);
}
