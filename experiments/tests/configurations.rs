//! Guests with unusual numbers of vCPUs, several queues, or a NIC other than a tap served by vhost-net, in one boot of the lab.
//! Needs root; takes minutes if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

#[path = "configurations/data_planes.rs"]
mod data_planes;
#[path = "configurations/vcpus_and_queues.rs"]
mod vcpus_and_queues;

use std::path::PathBuf;
use std::process::ExitCode;
use teiji_experiments::load;
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, GuestSpec};

static LAB: Shared<Lab> = Shared::new("the lab", || {
    Lab::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("configurations")).unwrap()
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        vcpus_and_queues::two_sockets_of_three_cores_are_followed_on_each_vcpu,
        vcpus_and_queues::five_vcpus_and_four_queues_are_followed_on_each,
        data_planes::taps_that_the_vmm_serves_are_followed,
        data_planes::interrupts_of_a_disk_are_not_taken_for_those_of_the_tap,
        data_planes::macvtaps_are_followed,
        data_planes::taps_with_napi_are_followed,
        data_planes::what_vhost_discards_is_dropped_at_the_tap,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

/// A guest with an echo server.
fn guest<'l>(lab: &'l Lab, spec: &GuestSpec) -> (Guest<'l>, Child) {
    let guest = lab.host.guest(spec).unwrap();
    let server = load::echo_server(&lab.host, &guest).unwrap();
    (guest, server)
}
