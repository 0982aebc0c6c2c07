//! The policy's shape for editors.

/// A JSON Schema (draft 2020-12) of a policy file.
pub fn schema() -> String {
    todo!()
}
