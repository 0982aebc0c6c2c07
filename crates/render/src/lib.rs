//! Shows what teiji has found, plans and holds: as text, as a web page, as JSON, and as a trace for the Perfetto
//! viewer.
//!
//! Everything that is shown is passed as an argument: this crate reads nothing and makes no decisions, so the same
//! input gives the same output on any machine.
//!
//! | module | holds |
//! | --- | --- |
//! | [`html`] | reports as one web page |
//! | [`json`] | the formats of `--json`, except that of reports |
//! | [`perfetto`] | requests as a trace for the Perfetto viewer |
//! | [`table`] | columns |
//! | [`terminal`] | what a terminal can show; makes untrusted text safe |
//! | [`top`] | the picture of a trace that goes on, for a terminal |
//! | [`text`] | reports, plans, hosts as text |
//! | [`units`] | durations, sizes and shares as people write them |
#![forbid(unsafe_code)]

pub mod html;
pub mod json;
pub mod perfetto;
pub mod table;
pub mod terminal;
pub mod text;
pub mod top;
pub mod units;
