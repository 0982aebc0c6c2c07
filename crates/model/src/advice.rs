//! What a person is told beside a report's figures.

/// What is said of one VM of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Why there is no complete request; paragraphs. Empty if there is one.
    pub absence: Vec<String>,
    /// Lines of a policy that would help, with their comments.
    pub help: Vec<String>,
}
