//! Starts and stops VMs and links, and measures how soon the agent has done what the policy asks for, and what it uses.
//! It looks at the host itself: at threads, taps and links, and at `held.json`.

use super::{Churn, Rest, SLOTS, Use};
use anyhow::{Context, Result, bail};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// After this time a change counts as not done. A busy machine may take that long; the times are judged by whoever
/// gets them.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often the host is looked at.
const POLL: Duration = Duration::from_millis(5);
/// The CPU that the policy asks for, and as `rps_cpus` shows it.
pub const CPU: usize = 1;
const MASK: u64 = 1 << CPU;

/// The policy that is kept: VMs `s0`, ... and links `l0`, ..., which come and go; VMs `rest0`, ..., so many.
pub fn policy(resting: usize) -> String {
    let vm = |name: String| format!("[vm.{name}]\nvcpu_cpus = \"{CPU}\"\nrps_cpus = \"{CPU}\"\n");
    let slots = (0..SLOTS).map(|n| vm(format!("s{n}")) + &format!("[link.l{n}]\nrps_cpus = \"{CPU}\"\n"));
    slots.chain((0..resting).map(|n| vm(format!("rest{n}")))).collect()
}

/// A VM that is started with this name and these taps.
struct Vm {
    process: Child,
    vcpus: Vec<i32>,
}

impl Vm {
    fn start(name: &str, taps: &[String]) -> Result<Vm> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["machine", "--name", name]);
        for tap in taps {
            command.args(["--tap", tap]);
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        let vcpus: Vec<i32> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        if vcpus.is_empty() {
            bail!("the VM {name} did not start: {:?}", process.wait());
        }
        Ok(Vm { process, vcpus })
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn waited(what: &str, done: impl Fn() -> bool) -> Result<f64> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > PATIENCE {
            bail!("{what}: not done after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn is_pinned(tid: i32) -> bool {
    sched_getaffinity(Pid::from_raw(tid))
        .is_ok_and(|set| (0..64).all(|cpu| set.is_set(cpu).unwrap_or(false) == (cpu == CPU)))
}

fn steers(device: &str) -> bool {
    let text =
        std::fs::read_to_string(format!("/sys/class/net/{device}/queues/rx-0/rps_cpus")).unwrap_or_default();
    u64::from_str_radix(&text.trim().replace(',', ""), 16) == Ok(MASK)
}

/// Whether the agent holds anything whose journal form contains one of these.
fn holds(state: &Path, any: &[String]) -> bool {
    let text = std::fs::read_to_string(state.join("held.json")).unwrap_or_default();
    // The policy itself is part of the file, and names devices as well.
    let held = text.split("\"policy\"").next().unwrap_or_default();
    any.iter().any(|one| held.contains(one))
}

fn ip(arguments: &str) -> Result<()> {
    let done = Command::new("ip").args(arguments.split(' ')).output().context("cannot run ip")?;
    if !done.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

/// Starts and stops so many VMs and links, a link after each two VMs.
///
/// # Errors
/// If one is not reconciled at all.
pub fn churn(count: usize, state: &Path) -> Result<Churn> {
    let slot = |slot: usize, state: PathBuf| -> Result<Churn> {
        let mut churn = Churn::default();
        for cycle in (slot..count).step_by(SLOTS) {
            if (cycle / SLOTS) % 3 == 2 {
                let name = format!("l{slot}");
                ip(&format!("link add {name} type dummy"))?;
                churn.starts_ms.push(waited(&format!("{name} comes"), || steers(&name))?);
                ip(&format!("link del {name}"))?;
                let named = [format!("\"{name}\"")];
                churn.stops_ms.push(waited(&format!("{name} goes"), || !holds(&state, &named))?);
            } else {
                let (name, tap) = (format!("s{slot}"), format!("t{slot}"));
                let vm = Vm::start(&name, std::slice::from_ref(&tap))?;
                let complete = || steers(&tap) && vm.vcpus.iter().all(|tid| is_pinned(*tid));
                churn.starts_ms.push(waited(&format!("{name} comes"), complete)?);
                let mut named: Vec<String> = vm.vcpus.iter().map(|tid| format!("\"id\":{tid},")).collect();
                named.push(format!("\"{tap}\""));
                drop(vm);
                churn.stops_ms.push(waited(&format!("{name} goes"), || !holds(&state, &named))?);
            }
        }
        Ok(churn)
    };
    let all: Vec<Result<Churn>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SLOTS).map(|n| scope.spawn(move || slot(n, state.to_owned()))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a slot failed"))).collect()
    });
    let mut churn = Churn::default();
    for one in all {
        let one = one?;
        churn.starts_ms.extend(one.starts_ms);
        churn.stops_ms.extend(one.stops_ms);
    }
    Ok(churn)
}

/// So long after the reconciler has used CPU time, its look at the whole host is over: at rest, it does nothing else.
const LOOKED: Duration = Duration::from_secs(10);

/// Waits until the reconciler has used CPU time, if it is to begin (`begins`), and then none for [`LOOKED`]; at most until `until`.
fn wait_for_look(agent: u32, begins: bool, until: Instant) -> Result<()> {
    let used =
        || Ok::<_, anyhow::Error>(thread_seconds(agent)?.get("reconciler").copied().unwrap_or_default());
    let (mut last, mut last_at, mut began) = (used()?, Instant::now(), !begins);
    while Instant::now() < until && !(began && last_at.elapsed() >= LOOKED) {
        std::thread::sleep(Duration::from_secs(1));
        let now = used()?;
        if now > last {
            (last, last_at, began) = (now, Instant::now(), true);
        }
    }
    Ok(())
}

/// Runs so many VMs of the policy with so many taps each, lets the agent come to rest, and measures it from the end of its last
/// look at the whole host until the end of the next, so that their number is not a matter of chance; for `seconds` at most.
///
/// # Errors
/// If the VMs cannot be started, or one does not get its settings, or loses them meanwhile.
pub fn rest(vms: usize, taps: usize, seconds: f64, agent: u32) -> Result<Rest> {
    let names = |n: usize| (0..taps).map(move |t| format!("r{n}-{t}"));
    let start = |n: usize| Vm::start(&format!("rest{n}"), &names(n).collect::<Vec<_>>());
    let running = (0..vms).map(start).collect::<Result<Vec<_>>>()?;
    let settled = || {
        running.iter().all(|vm| vm.vcpus.iter().all(|tid| is_pinned(*tid)))
            && (0..vms).flat_map(names).all(|tap| steers(&tap))
    };
    waited("the VMs have the policy's settings", settled)?;
    // The looks that follow the last start.
    wait_for_look(agent, false, Instant::now() + Duration::from_secs(300))?;
    let (before, threads_before, begun) = (cpu_seconds(agent)?, thread_seconds(agent)?, Instant::now());
    wait_for_look(agent, true, begun + Duration::from_secs_f64(seconds))?;
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu = (cpu_seconds(agent)? - before) / elapsed;
    let share = |(name, s): (String, f64)| {
        let before = threads_before.get(&name).copied().unwrap_or_default();
        (name, (s - before) / elapsed)
    };
    let threads = thread_seconds(agent)?.into_iter().map(share).collect();
    let used = Use { cpu, threads, peak_mb: peak_mb(agent)? };
    if !settled() {
        bail!("a VM at rest has lost the policy's settings");
    }
    Ok(Rest { vms: running.len(), taps: running.len() * taps, seconds: elapsed, agent: used })
}

/// The agent and the processes that it has started.
fn processes(agent: u32) -> Result<Vec<u32>> {
    let mut all = vec![agent];
    for task in std::fs::read_dir(format!("/proc/{agent}/task")).context("the agent does not run")? {
        let children = std::fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(all)
}

fn cpu_seconds(agent: u32) -> Result<f64> {
    let mut ticks = 0u64;
    for pid in processes(agent)? {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the agent does not run")?;
        let fields: Vec<&str> = stat.rsplit_once(')').context("a stat file")?.1.split_whitespace().collect();
        // utime and stime, fields 14 and 15
        ticks += fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    }
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("the clock's ticks")?;
    Ok(ticks as f64 / per_second as f64)
}

/// The CPU time of each thread of a process, by name: the first number of its `schedstat`, ns. That of a thread that has ended
/// is not known.
fn thread_seconds(pid: u32) -> Result<BTreeMap<String, f64>> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("the agent does not run")? {
        let read = |file: &str| std::fs::read_to_string(task.as_ref().ok()?.path().join(file)).ok();
        let (Some(name), Some(text)) = (read("comm"), read("schedstat")) else { continue };
        let ns: f64 = text.split(' ').next().context("schedstat")?.parse()?;
        *all.entry(name.trim().to_owned()).or_default() += ns / 1e9;
    }
    Ok(all)
}

/// Peak of the resident memory of the agent's processes together, MB.
///
/// # Errors
/// If it does not run.
pub fn peak_mb(agent: u32) -> Result<f64> {
    let mut kb = 0.0;
    for pid in processes(agent)? {
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).context("the agent does not run")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        kb += line.trim().trim_end_matches(" kB").trim().parse::<f64>()?;
    }
    Ok(kb / 1000.0)
}
