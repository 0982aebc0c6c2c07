//! teiji's runtime: joins the kernel's side (`teiji-bpf`), the host's (`teiji-host`) and the thinking
//! (`teiji-analysis`, `teiji-control`). Holds no algorithm of its own.
//!
//! | module | does |
//! | --- | --- |
//! | [`apply`] | carries out a plan, journalled so that it can be undone whatever happens |
//! | [`keeper`] | keeps deadlines going: `teiji agent` |
//! | [`machine`] | the settings of this host, from files to BPF maps |
//! | [`observation`] | hosts as files: this one, and others |
//! | [`output`] | reports and recordings as files that appear whole, written after privileges were given up |
//! | [`policy`] | reads policies, plans what they mean on this host |
//! | [`service`] | what teiji can do, in one interface for the command line, an API and tests |
//! | [`trace`] | a trace from start to report, live or from a recording |
//! | [`capabilities`] | what this host can do |
#![deny(unsafe_code)]

pub mod apply;
mod capability;
pub mod keeper;
pub mod machine;
pub mod observation;
pub mod output;
mod pace;
pub mod policy;
mod recorder;
pub mod service;
pub mod trace;

pub use capability::capabilities;
pub use teiji_host::vms;
