//! Runs `teiji trace` in the lab, as a user does, and reads its results.
//!
//! ```text
//! start ──► attached (it prints "tracing") ──► load ──► stop (SIGINT) ──► report, recording
//! ```

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;
use teiji_analysis::{Analyzer, Options};
use teiji_lab::{Child, LabHost, Spec};
use teiji_model::event::Event;
use teiji_model::recording::Reader;
use teiji_model::report::{Joined, PassthroughRequest, Report};
use teiji_model::stream::Item;

/// The longest time until the probes are attached or a report is written, in an emulated lab.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The probes of a worker's signal: its beginning, the write to the ring, its end.
const SIGNAL_PROBES: [&str; 3] = ["on_signal", "on_written", "on_signalled"];

/// A running lab host with the built programs in `/mnt/bin`.
pub struct Lab {
    /// The host.
    pub host: LabHost,
    /// The folder on this machine that the lab host has as `/mnt/out`.
    pub out: PathBuf,
}

impl Lab {
    /// Boots the lab host. Results are written to `out`.
    ///
    /// # Errors
    /// If the programs are missing and cannot be built, or the lab does not boot.
    pub fn boot(out: &Path) -> Result<Lab> {
        Lab::boot_as(out, Spec::default())
    }

    /// Boots a lab host with other hardware. Results are written to `out`.
    ///
    /// # Errors
    /// As [`Lab::boot`].
    pub fn boot_as(out: &Path, spec: Spec) -> Result<Lab> {
        let bin = crate::programs::folder()?;
        // Whoever compiles in this folder meanwhile would change what is measured anyway.
        let spec = Spec { bin_dir: Some(bin), bin_is_final: true, out_dir: Some(out.to_owned()), ..spec };
        Ok(Lab { host: LabHost::boot(&spec)?, out: out.to_owned() })
    }

    /// How time passes in the lab, for a summary.
    pub fn mode(&self) -> &'static str {
        if self.host.accelerated() { "wall" } else { "wall-emulated" }
    }

    /// Copies a file of the lab host to `out`; returns its path.
    ///
    /// # Errors
    /// If the file does not exist.
    pub fn fetch(&self, path: &str) -> Result<PathBuf> {
        let name = Path::new(path).file_name().context("no file's name")?;
        self.host.run(&format!("cp -- {path} /mnt/out/"))?.ok()?;
        Ok(self.out.join(name))
    }
}

/// A running `teiji trace`.
pub struct Trace<'l> {
    lab: &'l Lab,
    child: Child,
    stem: String,
    records: bool,
}

/// Result of a trace.
#[derive(Debug)]
pub struct Traced {
    /// The report.
    pub report: Report,
    /// teiji's exit code.
    pub code: i32,
    /// Messages that teiji printed beside the report.
    pub printed: String,
    /// Peak resident memory until teiji was stopped, kB; 0 if it ended by itself.
    pub peak_kb: u64,
    /// How many runs of the probes of signals the kernel has skipped until just before teiji was told to stop, by its own count; `None`
    /// if it ended by itself. If other traces ran, theirs are counted as well.
    pub skipped_runs: Option<u64>,
    /// The recording, on this machine.
    pub recording: Option<PathBuf>,
}

impl<'l> Trace<'l> {
    /// Starts a trace with these arguments and waits until its probes are attached. `stem` is the name of its files
    /// without extension.
    ///
    /// # Errors
    /// If teiji ends before that.
    pub fn start(lab: &'l Lab, stem: &str, arguments: &str, record: bool) -> Result<Trace<'l>> {
        let record_to = if record { format!("--record /tmp/{stem}.teiji") } else { String::new() };
        let command = format!(
            "rm -f /tmp/{stem}.*; exec /mnt/bin/teiji trace {arguments} {record_to} --json --out /tmp/{stem}.json 2>&1"
        );
        let child = lab.host.spawn(&command)?;
        child
            .wait_for("tracing,", START_TIMEOUT)
            .with_context(|| format!("the trace {stem} did not start"))?;
        Ok(Trace { lab, child, stem: stem.into(), records: record })
    }

    /// teiji's process id in the lab host.
    ///
    /// # Errors
    /// If the lab host does not answer.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.id()?)
    }

    /// Waits until teiji has printed a line with this text.
    ///
    /// # Errors
    /// If it has not in time.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<()> {
        self.child
            .wait_for(text, limit)
            .with_context(|| format!("the trace {} did not say {text:?}", self.stem))?;
        Ok(())
    }

    /// Waits until teiji has ended.
    ///
    /// # Errors
    /// If it has not in time.
    pub fn wait_end(&self) -> Result<()> {
        // A command in the lab has a limit by the lab's stopwatch: what slows the whole lab down does not count.
        let ends = format!("while [ -d /proc/{} ]; do sleep 0.1; done", self.pid()?);
        let ended = self.lab.host.run_for(&ends, START_TIMEOUT);
        ended.with_context(|| format!("the trace {} did not end", self.stem))?.ok()?;
        Ok(())
    }

    /// A field of teiji's `/proc/<pid>/status`, such as `VmHWM`.
    ///
    /// # Errors
    /// If teiji has ended.
    pub fn status(&self, field: &str) -> Result<String> {
        let pid = self.pid()?;
        let line = self.lab.host.run(&format!("grep '^{field}:' /proc/{pid}/status"))?.ok()?;
        Ok(line.split(':').nth(1).unwrap_or_default().trim().to_owned())
    }

    /// How many runs of these programs the kernel has skipped until now, by its own count.
    ///
    /// # Errors
    /// If bpftool fails, or there is none of these programs.
    pub fn skipped_runs(&self, programs: &[&str]) -> Result<u64> {
        let printed = self.lab.host.run("bpftool --json prog show")?.ok()?;
        let all: Vec<serde_json::Value> = serde_json::from_str(&printed).context("read bpftool's list")?;
        let wanted = |p: &&serde_json::Value| programs.iter().any(|name| p["name"] == *name);
        let skipped = |p: &serde_json::Value| p["recursion_misses"].as_u64().unwrap_or(0);
        let found: Vec<_> = all.iter().filter(wanted).collect();
        ensure!(!found.is_empty(), "there is none of the programs {programs:?}");
        Ok(found.into_iter().map(skipped).sum())
    }

    /// Ends teiji with SIGINT, as Ctrl-C does, and reads its report.
    ///
    /// # Errors
    /// If there is no report.
    pub fn stop(self) -> Result<Traced> {
        // In this time teiji takes in what is in the kernel's buffer and in the window of the analysis.
        std::thread::sleep(Duration::from_millis(300));
        let peak = self.status("VmHWM")?;
        let peak_kb = peak.split(' ').next().and_then(|n| n.parse().ok()).context("VmHWM is no number")?;
        let skipped_runs = self.skipped_runs(&SIGNAL_PROBES)?;
        self.lab.host.run(&format!("kill -INT {}", self.pid()?))?.ok()?;
        self.finish(peak_kb, Some(skipped_runs))
    }

    /// Waits until teiji ends by itself, and reads its report.
    ///
    /// # Errors
    /// If there is no report.
    pub fn wait(self) -> Result<Traced> {
        self.finish(0, None)
    }

    fn finish(self, peak_kb: u64, skipped_runs: Option<u64>) -> Result<Traced> {
        self.wait_end()?;
        let Trace { lab, child, stem, records } = self;
        let output = child.wait()?;
        let printed = output.text();
        let json = lab
            .host
            .get(&format!("/tmp/{stem}.json"))
            .with_context(|| format!("the trace {stem} left no report; it said: {printed}"))?;
        let report =
            serde_json::from_slice(&json).with_context(|| format!("the report of {stem} is not one"))?;
        let recording = if records { lab.fetch(&format!("/tmp/{stem}.teiji")).ok() } else { None };
        Ok(Traced { report, code: output.code, printed, peak_kb, skipped_runs, recording })
    }
}

/// A report as it is after it was printed as JSON and read again: the last digit of a share may change by that.
pub fn printed(report: &Report) -> Report {
    let text = serde_json::to_string(report).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_else(|_| report.clone())
}

/// All events and changes of a recording, in the order in which they were recorded.
///
/// # Errors
/// If the recording cannot be read.
pub fn items(recording: &Path) -> Result<Vec<Item>> {
    let what = || format!("cannot read the recording {}", recording.display());
    let mut reader =
        Reader::new(BufReader::new(File::open(recording).with_context(what)?)).with_context(what)?;
    let mut all = Vec::new();
    while let Some(item) = reader.next().with_context(what)? {
        all.push(item);
    }
    Ok(all)
}

/// All events of a recording, in the order in which they were recorded.
///
/// # Errors
/// If the recording cannot be read.
pub fn events(recording: &Path) -> Result<Vec<Event>> {
    Ok(items(recording)?.iter().filter_map(Item::event).cloned().collect())
}

/// All requests of a recording by NICs that were given to VMs, by start time, and its report.
///
/// # Errors
/// If the recording cannot be read.
pub fn passthrough(recording: &Path) -> Result<(Vec<PassthroughRequest>, Report)> {
    let what = || format!("cannot read the recording {}", recording.display());
    let mut reader =
        Reader::new(BufReader::new(File::open(recording).with_context(what)?)).with_context(what)?;
    let mut analyzer = Analyzer::new(reader.meta(), Options { passthrough: true, ..Options::default() });
    while let Some(item) = reader.next().with_context(what)? {
        analyzer.take(item, &mut |_| {});
    }
    let counters = reader.counters().cloned().unwrap_or_default();
    analyzer.end(&counters, &mut |_| {});
    let mut all = analyzer.passthrough();
    all.sort_by_key(|request| request.start);
    Ok((all, analyzer.finish(counters, &mut |_| {})))
}

/// All requests of a recording, by start time, and its report.
///
/// # Errors
/// If the recording cannot be read.
pub fn requests(recording: &Path) -> Result<(Vec<Joined>, Report)> {
    let what = || format!("cannot read the recording {}", recording.display());
    let mut reader =
        Reader::new(BufReader::new(File::open(recording).with_context(what)?)).with_context(what)?;
    let mut analyzer = Analyzer::new(reader.meta(), Options::default());
    let mut all = Vec::new();
    while let Some(item) = reader.next().with_context(what)? {
        analyzer.take(item, &mut |joined| all.push(joined.clone()));
    }
    let counters = reader.counters().cloned().unwrap_or_default();
    let report = analyzer.finish(counters, &mut |joined| all.push(joined.clone()));
    all.sort_by_key(|j| j.request.start);
    Ok((all, report))
}
