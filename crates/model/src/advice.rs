//! What people are told in addition to a report's figures.

/// The advice for one VM of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Why there is no complete request, in paragraphs. Empty if there is one.
    pub absence: Vec<String>,
    /// Lines of a policy that would help, with their comments.
    pub help: Vec<String>,
}
