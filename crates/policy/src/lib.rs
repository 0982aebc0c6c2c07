//! Parses TOML into a policy.
//!
//! ```text
//! texts ── parse: TOML, keys, units, contradictions ──► Policy ── control::plan: against a host ──► Plan
//! ```
//! All problems of a text are found here and reported at once, each with its place and what to write instead
//! ([`Problem`](teiji_model::policy::Problem)). Problems that depend on a host (whether it has a VM of that name or a
//! CPU of that number) are found by the plan. This crate reads only the texts that it is given.
//!
//! Sections: `[host]`, `[link.NAME]`, `[vm.NAME]`, `[channel.NAME]`, `[vf.LINK.N]`; docs/policy.md describes them,
//! [`schema()`] describes them for editors. If several files set one thing, `layers` decides which line applies.
#![forbid(unsafe_code)]

mod file;
mod interpret;
mod keys;
mod layers;
mod parse;
mod schema;
mod section;
mod text;
mod value;

#[cfg(test)]
mod tests;

pub use parse::parse;
pub use schema::schema;

/// The deepest nesting of tables and arrays in a policy file.
pub const MAX_DEPTH: usize = 8;
