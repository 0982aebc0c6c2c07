//! The experiments, and what they share.
//!
//! An experiment is a claim that can be run. Each has a folder with a README (claim, paper, method, how to read the
//! results), the code, and the paper's figures for comparison. It needs the lab ([`teiji_lab`]), uses the built `teiji`
//! as users do, from the command line, and writes `target/experiments/<name>/`.
//!
//! | module | does |
//! | --- | --- |
//! | [`programs`] | finds the built programs, builds them if they are missing |
//! | [`summary`] | writes `summary.json`, and copies a run that is kept |
//! | [`numbers`] | quantiles and shares |
//! | [`plot`] | SVG pictures |
//! | [`pcap`] | reads captures, and pairs their requests with responses, independently of teiji |
//! | [`tracing`] | runs `teiji trace` in the lab; reads reports and recordings |
//! | [`switches`] | who had a CPU while a thread waited for it, by the kernel's own trace points |
//! | [`verify`] | checks that a lab host's kernel accepts every BPF program |
//! | [`reporting`] | a guest that reports its part of the path |
//! | [`load`] | echo servers, SIP servers, callers, busy loops |
//! | [`admission`], [`agent`], [`apply`], [`edf_cost`], [`edf_delay`], [`overhead`], [`path`], [`sip`], [`vcpu`] | the experiments of those names |

#[path = "../admission/mod.rs"]
pub mod admission;
#[path = "../agent/mod.rs"]
pub mod agent;
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
pub mod reporting;
#[path = "../sip/mod.rs"]
pub mod sip;
pub mod summary;
pub mod switches;
pub mod tracing;
#[path = "../vcpu/mod.rs"]
pub mod vcpu;
pub mod verify;

/// Prints to standard error how far a run is.
pub fn say(what: &str) {
    eprintln!("      {what}");
}
