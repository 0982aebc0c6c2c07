//! From TOML to a policy.
//!
//! ```text
//! texts ── parse: TOML, keys, units, contradictions within ──► Policy ── control::plan: against a host ──► Plan
//! ```
//! Whatever is wrong with a text is found here and reported with its place and what to write instead, all of it
//! at once ([`Problem`](teiji_model::policy::Problem)). What needs a host to be judged (a VM of that name, a CPU of that
//! number) is the plan's. Nothing is read but the texts that are given.
//!
//! Sections: `[host]`, `[link.NAME]`, `[vm.NAME]`, `[channel.NAME]`, `[vf.LINK.N]`; docs/policy.md describes
//! them, [`schema`] is the same for editors. Several files may speak of one thing: `layers` says which line
//! holds.
#![forbid(unsafe_code)]

mod file;
mod keys;
mod layers;
mod meaning;
mod parse;
mod schema;
mod section;
mod text;
mod value;

#[cfg(test)]
mod tests;

pub use parse::parse;
pub use schema::schema;

/// Deepest nesting of tables and arrays in a policy file.
pub const MAX_DEPTH: usize = 8;
