//! The command `teiji-lab`: prepares and boots the lab; it is also the agent and the load tools inside the lab.

mod shell;

use std::{net::SocketAddrV4, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use teiji_lab::{GuestSpec, Kernel, LabHost, Mode, Spec, remote, rootfs, tools};

/// A KVM host with nested guests in an emulated machine, for tests and experiments
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the lab's root file system, if it does not exist
    Prepare,
    /// Boot the lab, run a command in the lab host, shut the lab down; exits with the command's code
    Run {
        #[command(flatten)]
        boot: Boot,
        /// Command and arguments; a single argument is run by the shell
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run a command in a guest (only in the lab host); exits with its code
    Call {
        /// Seconds to wait until the guest can be reached
        #[arg(long, default_value_t = 0)]
        wait: u64,
        /// `vsock:` and the guest's context id
        to: String,
        /// Command and arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Boot the lab and open a shell in the lab host
    Shell {
        #[command(flatten)]
        boot: Boot,
    },
    /// Send every UDP datagram back
    UdpEcho {
        #[arg(long)]
        port: u16,
        /// Microseconds of computation before each answer
        #[arg(long, default_value_t = 0)]
        work_us: u64,
    },
    /// Send numbered datagrams to an echo server and time the answers
    UdpLoad {
        /// Server, as address:port
        #[arg(long)]
        to: SocketAddrV4,
        /// Requests per second
        #[arg(long, default_value_t = 100.0)]
        rate: f64,
        /// Number of requests
        #[arg(long, default_value_t = 1000)]
        count: u64,
        /// Payload, bytes
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Greatest number of unanswered requests; 0 is no limit
        #[arg(long, default_value_t = 0)]
        outstanding: usize,
        /// Seconds to wait for answers after the last request, and for one that holds back the next (`--outstanding`)
        #[arg(long, default_value_t = 2.0)]
        linger: f64,
        /// Seconds after which an answer does not count as received, but as late
        #[arg(long, default_value_t = 3600.0)]
        in_time: f64,
        /// Port to send from; 0 is any
        #[arg(long, default_value_t = 0)]
        from_port: u16,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Send paced flows of stamped datagrams
    UdpFlows {
        /// address:port,rate=<bit/s on the wire>,size=<payload>,burst=<datagrams at once>; may be repeated
        #[arg(long = "flow", required = true)]
        flows: Vec<tools::udp_flows::Flow>,
        /// Seconds
        #[arg(long = "for")]
        length: f64,
        /// Greatest number of datagrams of each flow [default: no limit]
        #[arg(long)]
        count: Option<u64>,
    },
    /// Send bursts as fast as possible, and print how long each took
    UdpBurst {
        /// Receiver's address
        #[arg(long)]
        to: std::net::Ipv4Addr,
        /// Device by which they leave
        #[arg(long)]
        device: String,
        /// Number of senders of channels, to ports from 6000
        #[arg(long)]
        channels: u16,
        /// Number of other senders, to ports from 20000
        #[arg(long, default_value_t = 8)]
        others: u16,
        /// Payload, bytes
        #[arg(long, default_value_t = 100)]
        size: usize,
        /// Datagrams in each burst
        #[arg(long)]
        burst: u32,
        /// Number of bursts
        #[arg(long)]
        windows: u32,
        /// Iterations of an empty loop after each burst, included in its time
        #[arg(long, default_value_t = 0)]
        turns: u64,
        /// Give the kernel a deadline, µs, with each datagram; 0: none
        #[arg(long, default_value_t = 0)]
        deadline_us: u64,
    },
    /// Receive what `udp-flows` sends, and print the delays
    UdpArrivals {
        /// Ports to measure, separated by commas
        #[arg(long, value_delimiter = ',')]
        ports: Vec<u16>,
        /// Their deadlines, µs, to count late datagrams
        #[arg(long, value_delimiter = ',')]
        deadlines_us: Vec<u64>,
        /// Ports whose datagrams are not read
        #[arg(long, value_delimiter = ',')]
        sinks: Vec<u16>,
        /// Seconds without a datagram after which it ends
        #[arg(long, default_value_t = 2.0)]
        idle: f64,
    },
    /// Keep a CPU busy
    Hog {
        #[arg(long)]
        cpu: usize,
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Seconds [default: for ever]
        #[arg(long = "for")]
        length: Option<f64>,
        /// Each thread runs for so many ms and then sleeps [default: it never sleeps]
        #[arg(long, requires = "sleep")]
        run: Option<f64>,
        /// For so many ms
        #[arg(long, requires = "run")]
        sleep: Option<f64>,
    },
    /// Record packets with the kernel's time stamps, as nanosecond pcap
    Capture {
        /// Interface
        #[arg(long = "if")]
        interface: String,
        /// File to write
        #[arg(long)]
        out: PathBuf,
        /// Bytes of each packet to store
        #[arg(long, default_value_t = 128)]
        snap: u32,
        /// Seconds [default: until interrupted]
        #[arg(long = "for")]
        length: Option<f64>,
    },
    /// Set a link up (only in nested guests)
    #[command(hide = true)]
    LinkUp { interface: String },
    /// Run commands for the lab (only in lab machines)
    #[command(hide = true)]
    Agent {
        /// Serve vsock connections instead of virtio ports
        #[arg(long)]
        vsock: bool,
    },
}

/// What to boot
#[derive(Args)]
struct Boot {
    /// Kernel of the lab host and its guests
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// Number of nested guests to start, named vm1, vm2, ...
    #[arg(long, default_value_t = 0)]
    guests: u32,
    /// CPUs of the lab host
    #[arg(long, default_value_t = 4)]
    cpus: u32,
    /// Memory of the lab host, MiB
    #[arg(long, default_value_t = 6144)]
    mem: u32,
    /// vCPUs of each guest
    #[arg(long, default_value_t = 1)]
    vcpus: u32,
    /// Virtual time: the clock counts instructions (no guests)
    #[arg(long = "virtual", conflicts_with = "guests")]
    virtual_time: bool,
    /// Add an SR-IOV NIC
    #[arg(long)]
    sriov: bool,
    /// Add two NICs on one wire
    #[arg(long)]
    nic_pair: bool,
    /// Add an SR-IOV NIC whose virtual functions are given to guests, one to each
    #[arg(long, conflicts_with = "sriov")]
    vfs: bool,
    /// Folder visible read-only at /mnt/bin [default: the folder of this program]
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Folder visible at /mnt/out
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Boot {
    fn spec(&self) -> anyhow::Result<Spec> {
        let here = std::env::current_exe().context("cannot find this program")?;
        Ok(Spec {
            bin_is_final: false,
            kernel: self.kernel,
            cpus: self.cpus,
            mem_mb: self.mem,
            mode: if self.virtual_time { Mode::Virtual } else { Mode::Wall },
            bin_dir: self.bin.clone().or_else(|| here.parent().map(Into::into)),
            out_dir: self.out.clone(),
            sriov: self.sriov,
            nic_pair: self.nic_pair,
            passthrough: self.vfs,
        })
    }

    fn guest(&self, n: u32) -> GuestSpec {
        GuestSpec { vcpus: self.vcpus, vf: self.vfs, ..GuestSpec::named(&format!("vm{n}")) }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("teiji-lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Prepare => {
            let prepared = rootfs::prepare()?;
            let kernels = Kernel::ALL.map(|k| format!("{} {}", k.name(), prepared.version(k)));
            println!("{} (kernels: {})", prepared.root().display(), kernels.join(", "));
            Ok(0)
        }
        Command::Run { boot, command } => {
            let host = LabHost::boot(&boot.spec()?)?;
            let mut guests = Vec::new();
            for n in 1..=boot.guests {
                guests.push(host.guest(&boot.guest(n))?);
            }
            let code = host.run_through(&script(&command))?;
            drop(guests);
            host.power_off();
            Ok(code as u8)
        }
        Command::Call { wait, to, command } => {
            let Some(cid) = to.strip_prefix("vsock:").and_then(|c| c.parse().ok()) else {
                bail!("`{to}` is not vsock: and a number");
            };
            Ok(remote::call(cid, command, Duration::from_secs(wait))? as u8)
        }
        Command::Shell { boot } => {
            let host = LabHost::boot(&boot.spec()?)?;
            let mut guests = Vec::new();
            for n in 1..=boot.guests {
                guests.push(host.guest(&boot.guest(n))?);
            }
            let code = shell::run(&host)?;
            drop(guests);
            host.power_off();
            Ok(code as u8)
        }
        Command::UdpEcho { port, work_us } => {
            tools::udp_echo::serve(port, Duration::from_micros(work_us))?;
            Ok(0)
        }
        Command::UdpLoad { to, rate, count, size, outstanding, linger, in_time, from_port, json } => {
            let [linger, in_time] = [linger, in_time].map(Duration::from_secs_f64);
            let load =
                tools::udp_load::Load { to, rate, count, size, outstanding, linger, in_time, from_port };
            let figures = tools::udp_load::run(&load)?;
            if json {
                println!("{}", serde_json::to_string(&figures)?);
            } else {
                println!("{figures}");
            }
            Ok(0)
        }
        Command::UdpFlows { flows, length, count } => {
            let sent = tools::udp_flows::send(&flows, Duration::from_secs_f64(length), count)?;
            println!("{}", serde_json::to_string(&sent)?);
            Ok(0)
        }
        Command::UdpBurst { to, device, channels, others, size, burst, windows, turns, deadline_us } => {
            let load = tools::udp_burst::Load {
                to,
                device,
                channels,
                others,
                size,
                burst,
                windows,
                turns,
                deadline_us,
            };
            println!("{}", serde_json::to_string(&tools::udp_burst::run(&load)?)?);
            Ok(0)
        }
        Command::UdpArrivals { ports, deadlines_us, sinks, idle } => {
            let arrived =
                tools::udp_flows::receive(&ports, &deadlines_us, &sinks, Duration::from_secs_f64(idle))?;
            println!("{}", serde_json::to_string(&arrived)?);
            Ok(0)
        }
        Command::Hog { cpu, threads, length, run, sleep } => {
            let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            tools::hog::run(
                cpu,
                threads,
                length.map(Duration::from_secs_f64),
                run.map(ms).zip(sleep.map(ms)),
            )?;
            Ok(0)
        }
        Command::Capture { interface, out, snap, length } => {
            let counts = tools::capture::run(&interface, &out, snap, length.map(Duration::from_secs_f64))?;
            println!("{}", serde_json::to_string(&counts)?);
            Ok(0)
        }
        Command::LinkUp { interface } => {
            tools::link_up::run(&interface)?;
            Ok(0)
        }
        Command::Agent { vsock: false } => remote::serve_ports().map(|()| 0).map_err(Into::into),
        Command::Agent { vsock: true } => remote::serve_vsock().map(|()| 0).map_err(Into::into),
    }
}

/// A single argument is a script; several are quoted, so that they arrive unchanged.
fn script(command: &[String]) -> String {
    match command {
        [script] => script.clone(),
        all => all.iter().map(|a| format!("'{}'", a.replace('\'', r"'\''"))).collect::<Vec<_>>().join(" "),
    }
}
