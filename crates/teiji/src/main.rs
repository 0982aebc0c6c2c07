//! The teiji command.
fn main() {}
