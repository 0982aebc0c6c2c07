//! The command line.

mod amount;
mod guest;
mod matching;

use amount::{parse_duration, parse_size};
use clap::{Parser, Subcommand, ValueEnum};
pub use guest::GuestAddress;
use guest::parse_guest_address;
use matching::MatchingParser;
use std::path::PathBuf;
use std::time::Duration;
use teiji_model::flow::{Direction, Matching};

/// Finds where the response time of virtual machines is spent, and changes the host to reduce it.
#[derive(Debug, Parser)]
#[command(name = "teiji", version, about, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Look for VMs below this directory instead of / (nothing can be traced there).
    #[arg(long, global = true, hide = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this host supports, what is missing, and what does not work without it.
    Doctor(Print),
    /// List the VMs of this host with their threads and NICs.
    Vms(Print),
    /// Find out why VMs are slow or stopped, from the kernel's counters: without probes, unless --level asks for them, and without looking at packets. The exit code
    /// is 1 if something is wrong, or cannot be told.
    Diagnose(Diagnose),
    /// Show where VMs are on the host's NUMA nodes, measure what the distance costs, and advise where they should be.
    #[command(subcommand)]
    Numa(Numa),
    /// Follow the packets of VMs and report where their time is spent.
    Trace(Trace),
    /// Trace and show the results live in the terminal. Keys: q quit, up/down select, p pause, s sort. Prints the report at
    /// the end.
    Top(Top),
    /// List the traces that the agent runs (`trace --detach`), show their reports, end and remove them.
    Traces(Traces),
    /// Report on a recording made by `trace --record`; needs no root.
    Replay(Replay),
    /// Show what a policy would change; changes nothing.
    Plan(Plan),
    /// Write the state of this host, for `plan --host` on any machine.
    Observe(State),
    /// Carry out a policy: all of it, or nothing.
    Apply(Apply),
    /// Keep what `apply --confirm-within` has changed.
    Confirm(State),
    /// Restore everything that teiji has changed; after that no policy is in force.
    Rollback(Rollback),
    /// Show what the agent does, what teiji holds, since when, and what someone else has changed since. Changes nothing. The
    /// exit code is 1 if something is not as teiji left it, or cannot be told.
    Status(Status),
    /// Run the daemon that keeps the applied policy and the deadlines of channels; systemd should start it.
    Agent(State),
    /// The part of `agent` that clients talk to, without privileges; the agent starts it.
    #[command(hide = true)]
    Front,
    /// Check a policy, or print the schema of policies.
    #[command(subcommand)]
    Policy(Policy),
    /// Print the completions for a shell.
    Completions(Completions),
    /// Print the manual page, or write one for each subcommand.
    Man(Man),
}

/// The format of a list.
#[derive(Debug, clap::Args)]
pub struct Print {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `diagnose`.
#[derive(Debug, clap::Args)]
pub struct Diagnose {
    /// A VM by its name or as pid:N; may be given several times [default: all VMs].
    #[arg(long = "vm", value_name = "VM")]
    pub vms: Vec<String>,
    /// Observation time, such as 5s; below 2s the confidence is lower.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub length: Duration,
    /// How often the counters are read, such as 100ms; longer observations are read less often, 240 times at most.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    pub every: Duration,
    /// What is read: the kernel's own counters only, or also what probes count.
    #[arg(long, value_enum, default_value = "free")]
    pub level: Level,
    /// Observe again and again, until Ctrl-C; one that is cut short is not shown. With --json one document a line.
    #[arg(long)]
    pub watch: bool,
    /// Also write the counters to this file, for --replay: those of all VMs of the host, whatever --vm selects.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Show the observations in a file that --record wrote; needs no root if the file may be read. --vm selects any VM of that host.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["length", "every", "level", "watch", "record"])]
    pub replay: Option<PathBuf>,
    /// Accept a file that is still being written (NAME.*.partial) or was cut off.
    #[arg(long, requires = "replay")]
    pub unfinished: bool,
    /// The format of the result.
    #[command(flatten)]
    pub print: Print,
}

/// What a diagnosis reads: the more, the more it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// The kernel's own counters: where the time of threads goes. No probe.
    Free,
    /// Also probes that count guest entries, exits by reason, halts, and the work of vhost. Needs BTF and the kvm module. What they
    /// cost was not measured yet.
    Census,
}

/// What to do about NUMA nodes.
#[derive(Debug, Subcommand)]
pub enum Numa {
    /// Show the nodes of the host, and of each VM the memory by node, where its threads run, and how much of its memory is remote
    /// from them. Reading a VMM's memory may delay it: the kernel holds its memory map lock meanwhile.
    Show(NumaShow),
    /// Say which VMs should be on which nodes, all together, and what each move would gain. Changes nothing. The exit code is 1 if a VM
    /// should be moved.
    Advise(NumaAdvise),
    /// Measure what accesses to memory cost between the nodes of this host: latency, bandwidth, and the time of programs that write to
    /// memory of their own (P) and of the kernel's (Q). Uses one CPU and some memory for up to a minute.
    Bench(NumaBench),
}

/// Arguments of `numa show`.
#[derive(Debug, clap::Args)]
pub struct NumaShow {
    /// A VM by its name or as pid:N; may be given several times [default: all VMs].
    #[arg(long = "vm", value_name = "VM")]
    pub vms: Vec<String>,
    /// How long to observe on which nodes threads run, such as 500ms or 10s.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    pub length: Duration,
    /// The format of the result.
    #[command(flatten)]
    pub print: Print,
}

/// Arguments of `numa advise`.
#[derive(Debug, clap::Args)]
pub struct NumaAdvise {
    /// How long to observe what VMs use, such as 10s or 1m.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    pub length: Duration,
    /// Also move VMs away from the CPUs that their threads are pinned to, and memory from the nodes that a policy binds it to; otherwise
    /// these are taken for the operator's will.
    #[arg(long)]
    pub ignore_pins: bool,
    /// The format of the result.
    #[command(flatten)]
    pub print: Print,
}

/// Arguments of `numa bench`.
#[derive(Debug, clap::Args)]
pub struct NumaBench {
    /// Size of the buffer that P and Q write to, such as 32M; may be given several times [default: 16M, 32M, and four times the
    /// largest cache].
    #[arg(long = "size", value_name = "SIZE", value_parser = parse_size)]
    pub sizes: Vec<usize>,
    /// Distance of their writes in bytes, a multiple of 4; may be given several times [default: 64, 4].
    #[arg(long = "stride", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(4..))]
    pub strides: Vec<u64>,
    /// How often they go over the buffer.
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub passes: u32,
    /// The format of the result.
    #[command(flatten)]
    pub print: Print,
}

/// Arguments of `trace`.
#[derive(Debug, clap::Args)]
pub struct Trace {
    /// What to trace.
    #[command(flatten)]
    pub watched: Watched,
    /// Print the report so far each time this long has passed; with --json one document a line.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub every: Option<Duration>,
    /// Have the agent trace, for an hour unless --for says otherwise; `teiji traces` shows it. The terminal may be closed.
    #[arg(long, conflicts_with_all = ["taps", "guest", "guest_tcp", "guest_vsock_port", "every", "record", "buffer", "format", "json", "out", "suggest"])]
    pub detach: bool,
    /// Begin only when a byte comes on the standard input, and let no further signal cut the end short: how the agent starts
    /// its traces.
    #[arg(long, hide = true)]
    pub of_agent: bool,
    /// Where teiji stores its state.
    #[command(flatten)]
    pub state: State,
    /// Store the events in this file, for `replay`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// How to print the report.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// What to trace, and for how long.
#[derive(Debug, clap::Args)]
pub struct Watched {
    /// A VM by its name or as pid:N; may be given several times [default: all VMs].
    #[arg(long = "vm", value_name = "VM")]
    pub vms: Vec<String>,
    /// A tap (not a macvtap) to follow on the host's side only: reception, bridge, tap, link; may be given several
    /// times. Use --vm for the whole path, also with vhost=off.
    #[arg(long = "tap", value_name = "DEVICE", conflicts_with = "vms")]
    pub taps: Vec<String>,
    /// Which packets to follow, such as 'udp port 5060' [default: all].
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    pub flow: String,
    /// Which direction to follow, seen from the guest; requests need both.
    #[arg(long, value_enum, default_value_t)]
    pub direction: DirectionArg,
    /// How responses are matched with their requests [default: dns if --flow selects udp and port 53, tcp if it
    /// selects tcp, otherwise echo].
    #[arg(long = "match", value_name = "HOW", value_parser = MatchingParser)]
    pub matching: Option<Matching>,
    /// How long to trace, such as 500ms, 10s or 2m [default: until Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Divide the stage `guest`: ask `teiji-guest serve` in each traced VM, over vsock unless --guest-tcp says otherwise. VMs
    /// that do not answer are seen from the host only. Requests of UDP services, of TCP (by their first segment) and ping are
    /// divided; those of VMs on macvtap are not.
    #[arg(long)]
    pub guest: bool,
    /// Port of vsock, if `teiji-guest serve --vsock-port` has another one; implies --guest [default: 7413].
    #[arg(long, value_name = "N")]
    pub guest_vsock_port: Option<u32>,
    /// Ask the guest of a VM, by its name or as pid:N, over TCP: where its `teiji-guest serve --tcp` listens, such as
    /// `sip1=10.77.0.11:7413` or `sip1=[fd00::11]:7413`. Implies --guest; may be given several times. Use a network that only the
    /// host and its guests are on: nothing is encrypted there. This connection is not followed.
    #[arg(long, value_name = "VM=ADDRESS[:PORT]", value_parser = parse_guest_address, requires = "guest_token")]
    pub guest_tcp: Vec<GuestAddress>,
    /// File with the token that `teiji-guest serve --token-file` has; only its owner may be able to read it. May be given for
    /// each VM of --guest-tcp, and once without a VM for all others: who has the token of a guest can ask it, and report in
    /// its place.
    #[arg(long, value_name = "[VM=]FILE", requires = "guest_tcp")]
    pub guest_token: Vec<String>,
    /// Size of the kernel's event buffer, such as 16M; raise it if events are lost.
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = parse_size)]
    pub buffer: usize,
}

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// What to trace.
    #[command(flatten)]
    pub watched: Watched,
    /// Length of an interval: how often the screen is updated.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub interval: Duration,
}

/// Arguments of `traces`.
#[derive(Debug, clap::Args)]
pub struct Traces {
    /// What to do [default: list them].
    #[command(subcommand)]
    pub what: Option<OfTraces>,
    /// Where teiji stores its state.
    #[command(flatten)]
    pub state: State,
    /// The format of the list.
    #[command(flatten)]
    pub print: Print,
}

/// What to do with a trace of the agent.
#[derive(Debug, Subcommand)]
pub enum OfTraces {
    /// Print the report of a trace; so far, if it still runs.
    Show {
        /// Its number.
        number: u32,
        /// How to print the report.
        #[command(flatten)]
        report: ReportArgs,
    },
    /// End a trace; its recording is completed.
    Stop {
        /// Its number.
        number: u32,
    },
    /// Remove a trace that has ended, with its recording.
    Remove {
        /// Its number.
        number: u32,
    },
}

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The recording; --format html shows several side by side.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Accept a recording that is still being written (NAME.*.partial) or was cut off: report what there is.
    #[arg(long)]
    pub unfinished: bool,
    /// Also show the threads of the first request received this long after the trace began, or later, such as 3.2s;
    /// needs a recording made with --guest.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub at: Option<Duration>,
    /// A label for each recording in the report, in their order [default: the file's name].
    #[arg(long = "label", value_name = "TEXT")]
    pub labels: Vec<String>,
    /// How to print the report.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// The format of a report.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Format of the report.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Write the report to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print a policy that would help, for `plan` and `apply`; the report goes to standard error.
    #[arg(long, conflicts_with_all = ["format", "json", "out"])]
    pub suggest: bool,
}

impl ReportArgs {
    /// The requested format.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For reading in a terminal.
    #[default]
    Text,
    /// For programs; see docs/json.md.
    Json,
    /// Every request as a trace for ui.perfetto.dev.
    Perfetto,
    /// One self-contained web page.
    Html,
}

/// The policy.
#[derive(Debug, clap::Args)]
pub struct PolicyFile {
    /// The policy: files, or directories whose *.toml files are read in the order of their names. If several files set
    /// the same thing, the last file takes precedence [default: /etc/teiji/policy.toml, then
    /// /etc/teiji/policy.d/*.toml].
    #[arg(value_name = "POLICY")]
    pub files: Vec<PathBuf>,
}

/// Where teiji stores its state.
#[derive(Clone, Debug, clap::Args)]
pub struct State {
    /// Directory with the record of what teiji has changed; also tells which agent is meant.
    #[arg(long = "state", value_name = "DIR", default_value = teiji_agent::apply::STATE_DIRECTORY)]
    pub dir: PathBuf,
    /// Folder of a BPF file system in which the deadline qdisc is pinned.
    #[arg(long, value_name = "DIR", default_value = teiji_agent::backend::PINS)]
    pub pins: PathBuf,
}

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// The policy.
    #[command(flatten)]
    pub policy: PolicyFile,
    /// Accept a policy with VMs and links that are not there now; a running agent sets them once they are.
    #[arg(long)]
    pub absent_ok: bool,
    /// Plan for the host that `teiji observe` wrote to this file, instead of this one; needs no root and reads nothing
    /// of this machine.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "pins", "root"])]
    pub host: Option<PathBuf>,
    /// Where teiji stores its state.
    #[command(flatten)]
    pub state: State,
    /// The format of the plan.
    #[command(flatten)]
    pub print: Print,
}

/// Arguments of `apply`.
#[derive(Debug, clap::Args)]
pub struct Apply {
    /// The policy.
    #[command(flatten)]
    pub policy: PolicyFile,
    /// Accept a policy with VMs and links that are not there now; a running agent sets them once they are.
    #[arg(long)]
    pub absent_ok: bool,
    /// Refused: the host in an observation cannot be changed from here.
    #[arg(long, hide = true, value_name = "FILE")]
    pub host: Option<PathBuf>,
    /// Undo everything unless it is confirmed within this time, such as 60s: by Enter on the terminal, or by
    /// `teiji confirm`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub confirm_within: Option<Duration>,
    /// How long to wait for another teiji that changes settings [default: not at all].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// Where teiji stores its state.
    #[command(flatten)]
    pub state: State,
}

/// Arguments of `rollback`.
#[derive(Debug, clap::Args)]
pub struct Rollback {
    /// Restore also settings that someone else has changed since.
    #[arg(long)]
    pub force: bool,
    /// Only clean up after a teiji that was killed: undo an apply, complete a rollback.
    #[arg(long, conflicts_with = "force")]
    pub unfinished: bool,
    /// How long to wait for another teiji that changes settings [default: not at all].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// Where teiji stores its state.
    #[command(flatten)]
    pub state: State,
}

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Where teiji stores its state.
    #[command(flatten)]
    pub state: State,
    /// The format of the status.
    #[command(flatten)]
    pub print: Print,
}

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Read a policy and report its problems; looks at nothing else of this host.
    Check(PolicyFile),
    /// Print the JSON Schema of a policy file, for editors.
    Schema,
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// Write a page for teiji and each of its subcommands into this directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// [`Direction`] on the command line.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum DirectionArg {
    /// Towards the guest.
    In,
    /// From the guest.
    Out,
    /// Both.
    #[default]
    Both,
}

impl From<DirectionArg> for Direction {
    fn from(arg: DirectionArg) -> Self {
        match arg {
            DirectionArg::In => Direction::In,
            DirectionArg::Out => Direction::Out,
            DirectionArg::Both => Direction::Both,
        }
    }
}

/// A wrong use of the command that only shows after parsing. It ends the command with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
