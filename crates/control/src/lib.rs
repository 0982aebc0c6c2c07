//! Decides what to change: pure functions of the policy and of the host as it was observed. Touches no machine,
//! reads no clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`admission`] | whether a link can keep the deadlines of its channels, and what each is guaranteed |
//! | [`plan`] | the policy against the host: ordered steps, or why there is no such plan |
//! | [`suggest`] | the policy lines that a trace's findings call for, fitted to a host |
#![forbid(unsafe_code)]

pub mod admission;
pub mod plan;
mod spare;
pub mod suggest;
