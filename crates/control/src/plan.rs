//! From what is wanted and what is, the steps between.

use teiji_model::plan::{Held, Observed, Plan};
use teiji_model::policy::{Policy, Problem};

/// The steps that make the host what the policy asks for.
///
/// # Errors
/// Everything in the policy that this host cannot keep, with place and cure.
pub fn plan(_policy: &Policy, _observed: &Observed, _held: &Held) -> Result<Plan, Vec<Problem>> {
    todo!()
}
