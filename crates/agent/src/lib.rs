//! teiji's runtime: joins the BPF programs (`teiji-bpf`), access to the host (`teiji-host`) and the pure crates
//! (`teiji-analysis`, `teiji-control`). Contains no algorithm of its own.
//!
//! | module | does |
//! | --- | --- |
//! | [`apply`] | carries out a plan, journalled so that it can be undone whatever happens |
//! | `companion` | a process that keeps a few privileges beside one that has given them up |
//! | [`daemon`] | `teiji agent`: keeps deadlines and the policy in force, runs traces, answers clients |
//! | [`backend`] | the settings of this host, from files to BPF maps |
//! | [`observation`] | hosts as files: this one, and others |
//! | [`output`] | reports and recordings as files that appear only when complete, even after privileges were given up |
//! | [`policy`] | reads policies, plans the changes that they need on this host |
//! | [`service`] | what teiji can do, in one interface for the command line, an API and tests |
//! | [`trace`] | a trace from start to report, live or from a recording |
//! | `requirement` | what teiji needs of this host, and whether it is present |
//! | `recorder` | writes a recording so that an unfinished one is never taken for a complete one |
//! | `poll_interval` | how often the kernel's record buffer is emptied |
#![deny(unsafe_code)]

pub mod apply;
pub mod backend;
mod companion;
pub mod daemon;
pub mod observation;
pub mod output;
pub mod policy;
mod poll_interval;
mod recorder;
mod requirement;
pub mod service;
pub mod trace;

pub use requirement::requirements;
pub use teiji_host::vms;
