//! What experiments share, and the experiments themselves.
//!
//! An experiment is a claim that runs: one folder each, with a README (claim, paper, method, how to read it), what
//! runs it, and the paper's figures to set its own against. It needs the lab ([`teiji_lab`]), uses the built `teiji`
//! as its users do, by the command line, and writes `target/experiments/<name>/`.
//!
//! | module | does |
//! | --- | --- |
//! | [`programs`] | finds the built programs, builds them if they are missing |
//! | [`summary`] | writes `summary.json`, and copies a run that is to be kept |
//! | [`numbers`] | quantiles and the like |
//! | [`plot`] | SVG |
//! | [`pcap`] | reads captures, and pairs requests with responses in them, independently of teiji |
//! | [`tracing`] | runs `teiji trace` in the lab; reads reports and recordings |
//! | [`load`] | echo servers, SIP servers, callers, hogs |
//! | [`admission`], [`apply`], [`edf_cost`], [`edf_delay`], [`overhead`], [`path`] | the experiments of those names |

#[path = "../admission/mod.rs"]
pub mod admission;
#[path = "../apply/mod.rs"]
pub mod apply;
#[path = "../edf-cost/mod.rs"]
pub mod edf_cost;
#[path = "../edf-delay/mod.rs"]
pub mod edf_delay;
pub mod load;
pub mod numbers;
#[path = "../overhead/mod.rs"]
pub mod overhead;
#[path = "../path/mod.rs"]
pub mod path;
pub mod pcap;
pub mod plot;
pub mod programs;
pub mod summary;
pub mod tracing;

/// Says on standard error how far a run has come.
pub fn say(what: &str) {
    eprintln!("      {what}");
}
