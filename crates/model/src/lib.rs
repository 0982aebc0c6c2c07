//! The data types of teiji: what is traced, what is seen, what is reported.
//!
//! Every other crate depends on this one, and it depends on none of them. It does no I/O, reads no clock and has no
//! `unsafe`, so it works on any machine, with recordings from any other.
//!
//! | module | holds |
//! | --- | --- |
//! | [`advice`] | what people are told in addition to a report's figures |
//! | [`call`] | the messages of SIP calls in a report, and what was sent again |
//! | [`census`] | what probes have counted of the threads of VMs |
//! | [`columns`] | how many columns of a terminal a text takes |
//! | [`diagnosis`] | what the kernel's counters say of where a VM's time went, and what is wrong |
//! | [`event`] | what the kernel probes report: packets at points, interrupts, guest entries, kicks |
//! | [`stage`] | the path's stages and the states of the threads on it |
//! | [`finding`] | what makes requests slow: causes with evidence, and what shortens them |
//! | [`flow`] | the filter language of `--flow`, and what a trace is asked to watch |
//! | [`guest`] | what a host and the `teiji-guest` in one of its guests say to each other |
//! | [`host`] | virtual machines, vCPU threads, vhost workers, taps, NUMA nodes; what a kernel can do |
//! | [`policy`] | what the operator wants, with the place of each value; problems, each with place and fix |
//! | [`resource`] | what can be changed on a host, its values, and the dependencies between changes |
//! | [`cpus`] | sets of CPUs |
//! | [`numa`] | where the memory, threads and NICs of VMs are on a host with NUMA nodes |
//! | [`numa_bench`] | what accesses to memory cost between nodes |
//! | [`observation`] | the state of a host as a file, for planning on another machine |
//! | [`observed`] | the state of a host, as far as a plan needs it |
//! | [`outgoing`] | what a report says of the requests that a guest itself sends |
//! | [`over_time`] | what requests and queues did over the trace, in bounded size |
//! | [`passthrough`] | NICs that were given to VMs, and requests by them, in a report |
//! | [`operator`] | how an operator does what teiji does not do |
//! | [`placement`] | where VMs should be on a host with NUMA nodes |
//! | [`plan`] | the plan, and what teiji holds |
//! | [`qdisc`] | the root qdisc of a link: channels with deadlines, or another qdisc |
//! | [`reason`] | why a request is in no figure |
//! | [`recording`] | the file format of a recording, versioned and checked |
//! | [`report`] | what a trace found, in the shape that `--json` prints |
//! | [`snapshot`] | what a trace that goes on has found so far, and since it was last looked at |
//! | [`status`] | what teiji holds and does, and packet statistics of links with channels |
//! | [`stream`] | where events come from, their clocks, and what changes meanwhile |
//! | [`text`] | makes untrusted text safe to print; measured times as text |
//! | [`threads`] | the threads that take part in a request: when each was started, by whom, and what it did |
//! | [`units`] | times, rates and sizes as people write them |
//! | [`usage`] | the kernel's counters of VMs at an instant |
//!
//! Units: time stamps and durations are nanoseconds of the host's `CLOCK_MONOTONIC` unless a name
//! says otherwise; lengths are bytes; rates are bit/s.
#![forbid(unsafe_code)]

pub mod advice;
pub mod call;
pub mod census;
pub mod columns;
pub mod cpus;
pub mod diagnosis;
pub mod event;
pub mod finding;
pub mod flow;
pub mod guest;
pub mod host;
pub mod numa;
pub mod numa_bench;
pub mod observation;
pub mod observed;
pub mod operator;
pub mod outgoing;
pub mod over_time;
pub mod passthrough;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod qdisc;
pub mod reason;
pub mod recording;
pub mod report;
pub mod resource;

pub mod snapshot;
pub mod stage;
pub mod status;
pub mod stream;
pub mod text;
pub mod threads;
pub mod units;
pub mod usage;
