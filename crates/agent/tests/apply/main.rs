//! The engine: nothing is lost whatever happens between any two of its instructions.
#![allow(clippy::unwrap_used)]

mod classes;
#[path = "../../../control/tests/common/mod.rs"]
mod common;
mod disturbed;
mod engine;
mod former;
mod in_force;
mod kill;
mod lease;
mod offline;
mod order;
mod properties;
mod real;
mod sim;
