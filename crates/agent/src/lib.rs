//! teiji's runtime: joins the kernel's side (`teiji-bpf`), the host's (`teiji-host`) and the thinking
//! (`teiji-analysis`, `teiji-control`). Holds no algorithm of its own.
//!
//! | module | does |
//! | --- | --- |
//! | [`apply`] | carries out a plan, journalled so that it can be undone whatever happens |
//! | [`keeper`] | keeps deadlines going: `teiji agent` |
//! | [`machine`] | the settings of this host, from files to BPF maps |
//! | [`observation`] | hosts as files: this one, and others |
//! | [`policy`] | reads policies, plans what they mean on this host |
//! | [`trace`] | a trace from start to report, live or from a recording |
//! | [`capabilities`] | what this host can do |
#![forbid(unsafe_code)]

pub mod apply;
mod capability;
pub mod keeper;
pub mod machine;
pub mod observation;
mod pace;
pub mod policy;
mod privilege;
mod recorder;
pub mod trace;

pub use capability::capabilities;
pub use teiji_host::vms;
