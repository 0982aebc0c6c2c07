//! `edf`: drives teiji_edf by lines on its standard input, in the network namespace in which it was started.
//!
//! ```text
//! link DEV key=value ...           attach, or change if attached: rate slack_us rt_rate
//! channel DEV NAME key=value ...   add or change: from to (address/prefix:port) proto deadline_us rate burst
//! remove DEV NAME                  remove a channel
//! detach DEV                       restore the former root qdisc, or the kernel's default
//! swap DEV N                       change between two sets of channels, N times
//! flip DEV N                       add channels and remove them in turn, N times
//! gso DEV BYTES                    set gso_max_size; answers the former value
//! tidy                             remove leftovers, as teiji does before it changes something
//! silence · speak                  stop the heartbeat to the kernel half; resume it
//! stats DEV · show DEV · verified  as a line of JSON
//! ```
//! Each line is answered by one line (`ok`, JSON or `error: ...`) and by a line with `#` and the number of the line.
//! The program ends when its input ends, and leaves the links as they are.
//!
//! The program does the work of both `teiji agent` and `teiji apply`. `edf PINS` keeps the qdisc in that folder of a
//! BPF file system, which it mounts if there is none; `edf PINS once LINE` executes one line and ends, without a
//! heartbeat.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use teiji_agent::apply::SettingsBackend;
use teiji_agent::backend::HostBackend;
use teiji_bpf::Verified;
use teiji_bpf::qdisc_edf::{Edf, PinnedQdisc, QdiscOwner};
use teiji_host::Root;
use teiji_model::policy::Endpoint;
use teiji_model::qdisc::{Channel, DeadlineQdisc, Device, ExistingQdisc, RATE_STEP, RootQdisc, Scheduler};
use teiji_model::resource;
use teiji_model::resource::Resource;

/// Half of the longest safe time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// A BPF file system in the lab host.
const PINS: &str = "/tmp/bpf/driver";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let pins = words.first().map_or(PINS, String::as_str);
    let done = match &words[..] {
        [] | [_] => State::new(Path::new(pins), true).and_then(run),
        [_, once, line @ ..] if once == "once" => State::new(Path::new(pins), false).and_then(|mut state| {
            println!("{}", state.obey(&line.join(" "))?);
            Ok(())
        }),
        _ => Err(anyhow::anyhow!("usage: edf [PINS [once LINE]]")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct State {
    edf: Edf,
    backend: HostBackend,
    verified: Vec<Verified>,
    /// Root qdisc of each link before its channels, by the link's index.
    before: BTreeMap<u32, resource::Value>,
    silent: bool,
    /// For the heartbeat; none if an agent sends it.
    owner: Option<QdiscOwner>,
}

impl State {
    fn new(pins: &Path, load: bool) -> Result<State> {
        teiji_experiments::programs::mount_pins(pins)?;
        let (edf, verified) = match PinnedQdisc::open(pins)? {
            PinnedQdisc::Usable(edf) => (*edf, Vec::new()),
            PinnedQdisc::Absent if load => Edf::load(pins)?,
            PinnedQdisc::Absent => bail!("nothing is pinned in {}", pins.display()),
            PinnedQdisc::OtherMaps(_) => bail!("{} has maps of another release", pins.display()),
            PinnedQdisc::Damaged(_, why) => bail!("{} is incomplete: {why}", pins.display()),
        };
        let owner = load.then(|| QdiscOwner::acquire(pins)).transpose()?;
        let backend = HostBackend::new(Root::default(), pins, pins);
        Ok(State { edf, backend, verified, before: BTreeMap::new(), silent: false, owner })
    }

    /// The channels of a link; none if its qdisc is another one.
    fn deadlines(&self, device: &Device) -> Result<Option<DeadlineQdisc>> {
        match self.backend.read(&Resource::RootQdisc(device.clone()))? {
            resource::Value::RootQdisc(RootQdisc::Deadline(d)) => Ok(Some(*d)),
            _ => Ok(None),
        }
    }

    fn put(&self, device: &Device, d: DeadlineQdisc) -> Result<()> {
        let setting = Resource::RootQdisc(device.clone());
        let wanted = resource::Value::RootQdisc(RootQdisc::Deadline(Box::new(d)));
        self.backend.write(&setting, &wanted)?;
        let got = self.backend.read(&setting)?;
        if got != wanted {
            bail!("read back {got:?}, not {wanted:?}");
        }
        Ok(())
    }

    /// Changes a link that has channels.
    fn change(&self, dev: &str, change: impl FnOnce(&mut DeadlineQdisc) -> Result<()>) -> Result<()> {
        let device = device(dev)?;
        let mut d = self.deadlines(&device)?.with_context(|| format!("{dev} has no channels"))?;
        change(&mut d)?;
        self.put(&device, d)
    }

    fn obey(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["link", dev, settings @ ..] => {
                let device = device(dev)?;
                let present = self.backend.read(&Resource::RootQdisc(device.clone()))?;
                let had = match &present {
                    resource::Value::RootQdisc(RootQdisc::Deadline(d)) => Some((**d).clone()),
                    _ => None,
                };
                let attach = had.is_none();
                self.put(&device, link(settings, had)?)?;
                if attach {
                    self.before.insert(device.index, present);
                }
            }
            ["channel", dev, name, settings @ ..] => {
                let channel = a_channel(settings)?;
                self.change(dev, |d| {
                    d.channels.insert((*name).into(), channel);
                    Ok(())
                })?;
            }
            // The longest time without a heartbeat, ms, until the file exists, and how much was subtracted from any such time
            // at most. Time in which this program did not run either does not count: on a busy machine all of the lab host
            // stands still at times. Whoever uses the result has to bound what was subtracted.
            ["gap", stop] => {
                let (mut longest, mut before, mut stalled) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
                let mut subtracted = Duration::ZERO;
                let mut looked = Instant::now();
                while !Path::new(stop).exists() {
                    let passed = std::mem::replace(&mut looked, Instant::now()).elapsed();
                    let age = self.edf.heartbeat_age().unwrap_or(Duration::MAX);
                    if age < before {
                        stalled = Duration::ZERO;
                    }
                    if passed > Duration::from_millis(50) {
                        stalled += passed;
                    }
                    before = age;
                    longest = longest.max(age.saturating_sub(stalled));
                    subtracted = subtracted.max(stalled.min(age));
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Ok(format!("{} {}", longest.as_millis(), subtracted.as_millis()));
            }
            ["remove", dev, name] => self.change(dev, |d| {
                d.channels.remove(*name).with_context(|| format!("{dev} has none of that name"))?;
                Ok(())
            })?,
            ["detach", dev] => {
                let device = device(dev)?;
                let before = self.before.remove(&device.index).unwrap_or_else(default_qdisc);
                self.backend.write(&Resource::RootQdisc(device), &before)?;
            }
            ["swap", dev, times] => {
                let device = device(dev)?;
                for n in 0..times.parse()? {
                    self.put(&device, swapped(n % 2 == 1)?)?;
                }
            }
            ["flip", dev, times] => {
                let device = device(dev)?;
                for n in 0..times.parse()? {
                    if n % 2 == 0 {
                        self.put(&device, swapped(true)?)?;
                    } else {
                        self.backend.write(&Resource::RootQdisc(device.clone()), &default_qdisc())?;
                    }
                }
            }
            ["tidy"] => self.backend.remove_leftovers(),
            ["gso", dev, size] => {
                let setting = Resource::SegmentSize(device(dev)?);
                let before = self.backend.read(&setting)?;
                self.backend.write(&setting, &resource::Value::Bytes(size.parse()?))?;
                return Ok(before.to_string());
            }
            ["silence"] => self.silent = true,
            ["speak"] => self.silent = false,
            ["stats", dev] => return Ok(self.stats(device(dev)?.index)?.to_string()),
            ["show", dev] => return Ok(serde_json::to_string(&self.deadlines(&device(dev)?)?)?),
            ["verified"] => {
                let all: BTreeMap<&str, u32> =
                    self.verified.iter().map(|v| (v.program.as_str(), v.instructions)).collect();
                return Ok(json!(all).to_string());
            }
            _ => bail!("`{}` is no command", line.escape_debug()),
        }
        Ok("ok".into())
    }

    fn stats(&self, index: u32) -> Result<Value> {
        let link = self.edf.link_stats(index)?.context("it has no channels")?;
        let mut all = serde_json::to_value(link)?;
        all["channels"] = serde_json::to_value(self.edf.channel_stats(index)?)?;
        Ok(all)
    }
}

/// The default root qdisc of a veth.
fn default_qdisc() -> resource::Value {
    let existing = ExistingQdisc { kind: "noqueue".into(), chosen: false, options: Vec::new() };
    resource::Value::RootQdisc(RootQdisc::Existing(Box::new(existing)))
}

/// One of two sets of channels that have one name in common.
fn swapped(second: bool) -> Result<DeadlineQdisc> {
    let (lines, rate) = if second {
        (["b to=10.88.0.2/32:6001", "c to=fd88:0::/64 rate=8000"], "rate=20000000")
    } else {
        (["a to=10.88.0.2/32:6000", "b from=10.88.0.0/16"], "rate=50000000")
    };
    let mut d = link(&[rate], None)?;
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        d.channels.insert(words[0].into(), a_channel(&words[1..])?);
    }
    Ok(d)
}

fn run(mut state: State) -> Result<()> {
    let (lines, incoming) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(|l| l.ok()) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    println!("loaded");
    let heartbeat = state.owner.as_ref().map(QdiscOwner::heartbeat);
    let mut number = 0;
    loop {
        if !state.silent {
            heartbeat.iter().for_each(|heartbeat| heartbeat.send());
        }
        match incoming.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok(line) => {
                number += 1;
                let answer = state.obey(&line);
                println!("{}\n#{number}", answer.unwrap_or_else(|e| format!("error: {e:#}")));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn device(dev: &str) -> Result<Device> {
    let index = nix::net::if_::if_nametoindex(dev)
        .with_context(|| format!("there is no interface {}", dev.escape_debug()))?;
    Ok(Device { name: dev.into(), index })
}

fn pairs<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>> {
    words.iter().map(|w| w.split_once('=').with_context(|| format!("`{w}` is not key=value"))).collect()
}

fn link(words: &[&str], had: Option<DeadlineQdisc>) -> Result<DeadlineQdisc> {
    let mut d = had.unwrap_or(DeadlineQdisc {
        scheduler: Scheduler::Edf,
        rate: 0,
        slack: 2_000_000,
        realtime_max: 0,
        channels: BTreeMap::new(),
    });
    for (key, value) in pairs(words)? {
        let number: u64 = value.parse().with_context(|| format!("`{value}` is no number"))?;
        match key {
            "rate" => d.rate = number,
            "slack_us" => d.slack = number * 1000,
            "rt_rate" => d.realtime_max = number,
            _ => bail!("`{key}` is no setting of a link"),
        }
    }
    Ok(d)
}

fn end(text: &str) -> Result<Endpoint> {
    let (address, rest) = text.split_once('/').context("an end is address/prefix or address/prefix:port")?;
    let (prefix, port) = rest.split_once(':').map_or((rest, None), |(prefix, port)| (prefix, Some(port)));
    let prefix: u8 = prefix.parse()?;
    // Bits beyond the prefix are set to 0, as in the policy's parser.
    let address = match address.parse()? {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.into())).unwrap_or(0);
            Ipv4Addr::from(u32::from(a) & mask).into()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.into())).unwrap_or(0);
            Ipv6Addr::from(u128::from(a) & mask).into()
        }
    };
    Ok(Endpoint { address, prefix, port: port.map(str::parse).transpose()? })
}

fn a_channel(words: &[&str]) -> Result<Channel> {
    let mut c =
        Channel { from: None, to: None, proto: Some(17), deadline: 10_000_000, rate: 1_000_000, burst: 1600 };
    for (key, value) in pairs(words)? {
        match key {
            "from" => c.from = Some(end(value)?),
            "to" => c.to = Some(end(value)?),
            "proto" => c.proto = Some(value.parse()?),
            "deadline_us" => c.deadline = value.parse::<u64>()? * 1000,
            // Rounded up to whole bytes per second.
            "rate" => c.rate = value.parse::<u64>()?.next_multiple_of(RATE_STEP),
            "burst" => c.burst = value.parse()?,
            _ => bail!("`{key}` is no setting of a channel"),
        }
    }
    Ok(c.normal())
}
