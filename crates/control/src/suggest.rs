//! The policy lines that a trace's verdict calls for.
