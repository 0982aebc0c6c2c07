//! Decides what to change: pure functions of the policy and of the observed host. This crate does no I/O and reads no
//! clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`admission`] | whether a link can keep the deadlines of its channels, and the delay that each is guaranteed |
//! | [`plan`] | compares the policy with the host: ordered steps, or why there is no plan |
//! | [`placement`] | where VMs should be on a host with NUMA nodes |
//! | [`suggest`] | the policy lines that a trace's findings call for, fitted to a host |
//! | `housekeeping` | whether real-time threads leave a CPU to the host |
#![forbid(unsafe_code)]

pub mod admission;
mod housekeeping;
pub mod placement;
pub mod plan;
pub mod suggest;
