//! Starts and ends the other tools on the machine that this runs on.
//!
//! ```text
//! start ─► its probes are attached ─► hold (SIGSTOP) ─► the loads ─► finish: go on, read the events, end
//! ```
//! While a tool is held, its probes run and what they report waits in its buffer, as teiji's events do: so the times of the
//! loads do not include reading events. trace-cmd has no process meanwhile: ftrace keeps the events.

use super::points::ALL;
use super::scripts::{self, KPROBES, Target};
use super::{Scope, Tool, Trace};
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where ftrace is controlled.
pub const TRACING: &str = "/sys/kernel/tracing";
/// What a tool prints as its result, and what it says meanwhile.
const OUTPUT: &str = "/tmp/cost.out";
const SAID: &str = "/tmp/cost.said";
/// Pages of a buffer: 64 MiB, more than all events of a run.
const PAGES: &str = "16384";
/// bpftrace writes this when its probes are attached, if the environment has it.
pub const ATTACHED: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";
/// How often it is asked whether a tool is ready, and how often at most: half an hour of this machine's clock.
const POLL: Duration = Duration::from_millis(100);
const POLLS: u32 = 18_000;
/// Bytes that a tool writes of events in the time of a poll, if nothing else happens.
const LITTLE: u64 = 16 << 10;

/// A running tool.
pub struct Rival {
    tool: Tool,
    child: Option<Child>,
}

impl Rival {
    /// Starts a tool, and holds it.
    ///
    /// # Errors
    /// If it does not work here; the error has what it said.
    pub fn start(trace: Trace, target: &Target) -> Result<Rival> {
        let mut rival = Rival { tool: trace.tool, child: None };
        let points = trace.points;
        let (mut command, ready): (Command, fn(u32) -> bool) = match trace.tool {
            Tool::Bpftrace | Tool::BpftraceMaps => {
                fs::write("/tmp/cost.bt", scripts::bpftrace(trace.tool, points, target))?;
                let mut c = Command::new("bpftrace");
                c.args(["-o", OUTPUT, "/tmp/cost.bt"])
                    .env(ATTACHED, "1")
                    .env("BPFTRACE_PERF_RB_PAGES", PAGES);
                (c, |_| said().contains(ATTACHED))
            }
            Tool::PerfRecord | Tool::PerfTrace => {
                let events = fs::OpenOptions::new().append(true).open(format!("{TRACING}/kprobe_events"));
                let mut events = events.context("cannot make kprobes")?;
                for line in scripts::kprobes(points) {
                    use std::io::Write;
                    events.write_all((line.clone() + "\n").as_bytes()).context(line)?;
                }
                let mut c = Command::new("perf");
                if trace.tool == Tool::PerfRecord {
                    c.args(["record", "-a", "-c", "1"]);
                } else {
                    c.args(["trace", "-a", "--no-syscalls"]);
                }
                c.args(["-m", "8192", "-e", &scripts::perf_events(points), "-o", OUTPUT]);
                (c, waits_for_events)
            }
            Tool::TraceCmd => {
                let only = (trace.scope == Scope::Other).then_some(target.pid);
                let done = Command::new("trace-cmd").args(scripts::trace_cmd(points, only)).output()?;
                if !done.status.success() {
                    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                    bail!("trace-cmd: {said}");
                }
                return Ok(rival);
            }
            Tool::None | Tool::Teiji | Tool::Guest => bail!("{} is no other tool", trace.name()),
        };
        let _ = fs::remove_file(OUTPUT);
        let said_to = File::create(SAID)?;
        command.stdin(Stdio::null()).stdout(said_to.try_clone()?).stderr(said_to);
        let child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
        rival.child = Some(child);
        rival.wait(ready)?;
        rival.signal(Signal::SIGSTOP)?;
        Ok(rival)
    }

    /// Waits until its probes are attached.
    fn wait(&mut self, ready: fn(u32) -> bool) -> Result<()> {
        for _ in 0..POLLS {
            let Some(child) = &mut self.child else { return Ok(()) };
            if let Some(status) = child.try_wait()? {
                bail!("{} ended ({status}): {}", self.tool.name(), said());
            }
            if ready(child.id()) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        bail!("{} did not become ready; it said: {}", self.tool.name(), said())
    }

    /// Waits until it has written what was in its buffer: bpftrace does not read all of it if it is told to end. What comes
    /// meanwhile is little: this thread's own events.
    fn wait_until_written(&self) -> Result<()> {
        let (mut before, mut quiet) = (0, 0);
        for _ in 0..POLLS {
            std::thread::sleep(POLL);
            let now = fs::metadata(OUTPUT).map_or(0, |m| m.len());
            quiet = if now.saturating_sub(before) < LITTLE { quiet + 1 } else { 0 };
            before = now;
            if quiet == 20 {
                return Ok(());
            }
        }
        bail!("{} does not come to an end of what it writes", self.tool.name())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match &self.child {
            Some(child) => Ok(kill(Pid::from_raw(child.id() as i32), signal)?),
            None => Ok(()),
        }
    }

    /// How many events it has so far; `None` if it tells only at its end.
    ///
    /// # Errors
    /// If ftrace's counters cannot be read, or events were overwritten.
    pub fn events(&self) -> Result<Option<u64>> {
        if self.tool != Tool::TraceCmd {
            return Ok(None);
        }
        let mut events = 0;
        for cpu in fs::read_dir(format!("{TRACING}/per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let of = |name: &str| -> u64 {
                let line = stats.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
                line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
            };
            if of("overrun") + of("dropped events") > 0 {
                bail!("ftrace's buffer was too small: {stats}");
            }
            events += of("entries");
        }
        Ok(Some(events))
    }

    /// Ends it; returns how many events it has reported. bpftrace's maps are not events.
    ///
    /// # Errors
    /// If it failed or lost events.
    pub fn finish(mut self) -> Result<u64> {
        if let Some(events) = self.events()? {
            let reset = Command::new("trace-cmd").arg("reset").output()?;
            if !reset.status.success() {
                bail!("trace-cmd reset: {}", String::from_utf8_lossy(&reset.stderr));
            }
            return Ok(events);
        }
        self.signal(Signal::SIGCONT)?;
        self.wait_until_written()?;
        self.signal(Signal::SIGINT)?;
        let mut child = self.child.take().context("it has no process")?;
        let status = child.wait()?;
        let said = said();
        if self.tool == Tool::PerfRecord || self.tool == Tool::PerfTrace {
            remove_kprobes()?;
        } else if !status.success() {
            bail!("{} ended ({status}): {said}", self.tool.name());
        }
        let output = fs::read(OUTPUT).unwrap_or_default();
        let lines = output.iter().filter(|b| **b == b'\n').count() as u64;
        if said.to_lowercase().contains("lost ") || output.windows(5).any(|w| w == b"LOST ") {
            bail!("{} lost events: {said}", self.tool.name());
        }
        match self.tool {
            Tool::PerfRecord => samples(&said).with_context(|| format!("perf record said: {said}")),
            Tool::BpftraceMaps => Ok(0),
            _ => Ok(lines),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // Only if it failed: the result of a run that is given up.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            let _ = remove_kprobes();
        }
    }
}

/// What it said.
fn said() -> String {
    fs::read_to_string(SAID).unwrap_or_default().trim().to_owned()
}

/// The state of a process, as in `ps`.
fn state(pid: u32) -> Option<char> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// A shell command that succeeds if perf in this process has its buffers.
pub fn maps_events_command(pid: u32) -> String {
    format!("grep -q perf_event /proc/{pid}/maps")
}

/// perf in this process has its buffers, and waits for events: it enables them in between.
fn waits_for_events(pid: u32) -> bool {
    state(pid) == Some('S')
        && fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("perf_event"))
}

/// `[ perf record: Captured and wrote 6.2 MB cost.out (40123 samples) ]`
fn samples(said: &str) -> Option<u64> {
    said.split(" samples)").next()?.rsplit('(').next()?.parse().ok()
}

fn remove_kprobes() -> Result<()> {
    let file = format!("{TRACING}/kprobe_events");
    for line in scripts::kprobes(ALL.len()) {
        let name = line.split(' ').next().unwrap_or_default().trim_start_matches("p:");
        if fs::read_to_string(&file)?.contains(name) {
            let mut events = fs::OpenOptions::new().append(true).open(&file)?;
            std::io::Write::write_all(&mut events, format!("-:{name}\n").as_bytes())
                .with_context(|| format!("cannot remove the kprobe {name} of {KPROBES}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_samples_is_read() {
        let said = "[ perf record: Woken up 1 times to write data ]\n\
                    [ perf record: Captured and wrote 6.2 MB /tmp/cost.out (40123 samples) ]";
        assert_eq!(samples(said), Some(40123));
        assert_eq!(samples("nothing"), None);
    }
}
