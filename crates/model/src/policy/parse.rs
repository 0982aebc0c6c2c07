//! Reading a policy.
use super::{Policy, Problem, Source};

/// Reads a policy from its files.
///
/// # Errors
/// Everything that is wrong, in the order of files and lines; never empty.
pub fn parse(_sources: &[Source]) -> Result<Policy, Vec<Problem>> {
    todo!()
}
