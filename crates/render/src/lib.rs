//! What teiji found, plans and holds, as text, as a web page, as JSON and as a trace for the Perfetto viewer.
//!
//! Everything that is shown is given: nothing is read, looked up or decided here, so the same input is the same output
//! on any machine.
//!
//! | module | holds |
//! | --- | --- |
//! | [`html`] | reports as one web page |
//! | [`json`] | what `--json` prints of everything but reports |
//! | [`perfetto`] | requests as a trace for the Perfetto viewer |
//! | [`table`] | columns |
//! | [`terminal`] | what a terminal can show; untrusted text |
//! | [`text`] | reports, plans, hosts as text |
//! | [`units`] | durations, sizes and shares as people write them |
#![forbid(unsafe_code)]

pub mod html;
pub mod json;
pub mod perfetto;
pub mod table;
pub mod terminal;
pub mod text;
pub mod units;
