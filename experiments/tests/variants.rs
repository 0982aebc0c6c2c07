//! teiji with guests that are not the simplest case, in one boot of the lab. Needs root; takes minutes if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

#[path = "variants/planes.rs"]
mod planes;
#[path = "variants/topologies.rs"]
mod topologies;

use std::path::PathBuf;
use std::process::ExitCode;
use teiji_experiments::load;
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, GuestSpec};

static LAB: Shared<Lab> = Shared::new("the lab", || {
    Lab::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("variants")).unwrap()
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        topologies::two_sockets_of_three_cores_are_followed_on_each_vcpu,
        topologies::five_vcpus_and_four_queues_are_followed_on_each,
        planes::taps_that_the_vmm_serves_are_followed,
        planes::interrupts_of_a_disk_are_not_taken_for_those_of_the_tap,
        planes::macvtaps_are_followed,
        planes::taps_with_napi_are_followed,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

/// A guest with an echo server.
fn guest<'l>(lab: &'l Lab, spec: &GuestSpec) -> (Guest<'l>, Child) {
    let guest = lab.host.guest(spec).unwrap();
    let server = load::echo_server(&lab.host, &guest).unwrap();
    (guest, server)
}
