//! Traces that the agent runs for somebody: they go on without the terminal that asked for them.
//!
//! Each is a process of its own, `teiji trace`, which gives up its privileges as any trace does. What is known of it is in
//! files of the folder `traces` of the state directory, so a trace is found again if the agent is killed meanwhile:
//!
//! | file | has |
//! | --- | --- |
//! | `N.json` | what was asked for, and the process with its boot: another one may have its id and start time after a boot |
//! | `N.teiji.*.partial` | the recording while the trace runs; removed if it is killed ([`crate::output`]) |
//! | `N.teiji` | the complete recording |
//! | `N.log` | what the trace has said |
//!
//! A trace begins only when its `N.json` is there: until then it waits for a byte from the agent, and ends if that one does.
//! So no trace runs that cannot be listed and ended, even if the agent is killed while it starts one.
//!
//! If its `N.json` is damaged, its process is found by its command line, which has the name of its recording: it is listed, can be
//! ended and removed, and counts, all the same.
//!
//! A trace ends, and completes its recording, when the file system of the recordings is nearly full: that of the state directory,
//! which is needed to change settings.
//!
//! A number is not used again while any file of it is there: an agent that is killed while it starts a trace leaves its log.
//!
//! A trace is told to end by SIGTERM, however often: `--of-agent` has it complete its recording nevertheless. It has a process
//! group of its own, so that Ctrl-C in the terminal of an agent reaches the agent alone.
//!
//! An agent that ends ends its traces; one that is killed does not, and the next one finds them.
//!
//! Who asks may be the front, which is not trusted: a request has no path and no option, each of its values is bounded and
//! checked here, and the number of traces is bounded, too.

use super::child::start_child;
use crate::output::{Output, Rights};
use crate::recorder::nearly_full;
use crate::service::select::select;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use teiji_host::{Root, kernel, process_with, task};
use teiji_model::flow::{Direction, Flow, Matching};
use teiji_model::resource::Task;
use teiji_model::status::TraceStatus;

/// Below the state directory.
const FOLDER: &str = "traces";
/// Most traces that run at a time, and that are kept.
const MAX_RUNNING: usize = 4;
const MAX_KEPT: usize = 64;
/// Most VMs of a trace, and the longest name and filter, bytes.
const MAX_VMS: usize = 64;
const MAX_NAME: usize = 256;
const MAX_FLOW: usize = 4096;
/// The longest trace, and how long one is that does not say.
const MAX_DURATION: Duration = Duration::from_secs(7 * 86_400);
const DEFAULT_DURATION: Duration = Duration::from_secs(3600);
/// What is shown of what a trace has said last, bytes.
const MAX_SAID: usize = 1024;
/// How long traces may take to complete their recordings when the agent ends.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A trace that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceOrder {
    /// VMs by name or as `pid:N`; all if empty.
    pub vms: Vec<String>,
    /// The filter.
    pub flow: String,
    /// Which direction.
    pub direction: Direction,
    /// How responses are matched.
    pub matching: Matching,
    /// How long, s; an hour if absent, a week at most.
    pub seconds: Option<u64>,
}

impl TraceOrder {
    /// The arguments of `teiji trace`, except for the files.
    fn arguments(&self) -> Result<Vec<String>, String> {
        if self.vms.len() > MAX_VMS {
            return Err(format!("at most {MAX_VMS} VMs can be traced at once"));
        }
        if self.vms.iter().any(|name| name.is_empty() || name.len() > MAX_NAME || name.contains('\0')) {
            return Err("a name of a VM is empty or too long".into());
        }
        if self.flow.len() > MAX_FLOW {
            return Err("the filter is too long".into());
        }
        Flow::parse(&self.flow).map_err(|e| format!("cannot read the filter: {e}"))?;
        let seconds = self.seconds.map_or(DEFAULT_DURATION, Duration::from_secs);
        if seconds.is_zero() || seconds > MAX_DURATION {
            return Err("a trace takes at least a second and at most a week".into());
        }
        let direction = match self.direction {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Both => "both",
        };
        // As one word each, so that no value is taken for an option.
        let mut all: Vec<String> = self.vms.iter().map(|name| format!("--vm={name}")).collect();
        all.push(format!("--flow={}", self.flow));
        all.push(format!("--direction={direction}"));
        all.push(format!("--match={}", self.matching));
        all.push(format!("--for={}s", seconds.as_secs()));
        Ok(all)
    }
}

/// `N.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    order: TraceOrder,
    process: Task,
    /// The boot that the process is of; empty if an agent has written it that did not keep it.
    #[serde(default)]
    boot: String,
    /// Seconds since 1970.
    started: u64,
}

impl Kept {
    /// The process of the trace, while it runs.
    fn process(&self) -> Option<Task> {
        let same_boot = self.boot.is_empty() || kernel::boot_id().is_ok_and(|now| now == self.boot);
        Some(self.process).filter(|process| same_boot && task(&Root::default(), process.id) == Some(*process))
    }
}

/// A trace whose `N.json` is there.
enum Known {
    Kept(Kept),
    /// The file cannot be read, for this reason.
    Damaged(String),
}

/// The traces of a state directory.
pub struct Traces {
    folder: PathBuf,
    /// What is started: this program, except in tests.
    program: PathBuf,
    /// Whether no more are started. Held while one is started, so that two do not get the same number.
    ended: Mutex<bool>,
}

impl Traces {
    /// Those of this state directory, which need not be there yet.
    pub fn of(state: &Path) -> Traces {
        let program = kernel::own_program().to_owned();
        Traces { folder: state.join(FOLDER), program, ended: Mutex::new(false) }
    }

    fn path(&self, number: u32, ending: &str) -> PathBuf {
        self.folder.join(format!("{number}.{ending}"))
    }

    /// Starts a trace; returns its number.
    ///
    /// # Errors
    /// If it asks for too much, or cannot be started.
    pub(super) fn start(&self, order: &TraceOrder) -> Result<u32, String> {
        let arguments = order.arguments()?;
        are_there(&order.vms)?;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Err("the agent ends, so it starts no trace".into());
        }
        let present = self.all().map_err(|e| format!("cannot read {}: {e}", self.folder.display()))?;
        if present.iter().filter(|t| t.running).count() >= MAX_RUNNING {
            return Err(format!("{MAX_RUNNING} traces run already: `teiji traces` lists them"));
        }
        if present.len() >= MAX_KEPT {
            return Err(format!("{MAX_KEPT} traces are kept already: `teiji traces remove N` removes one"));
        }
        let names = self.names().map_err(|e| format!("cannot read {}: {e}", self.folder.display()))?;
        let number = names.iter().filter_map(|name| number_of(name)).max().unwrap_or(0);
        let number = number.checked_add(1).ok_or("no number is left")?;
        self.begin(number, order, &arguments).map_err(|e| format!("cannot start the trace: {e}"))?;
        Ok(number)
    }

    fn begin(&self, number: u32, order: &TraceOrder, arguments: &[String]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        if let Some(left) = nearly_full(&File::open(&self.folder)?) {
            return Err(io::Error::other(format!(
                "the file system of {} is nearly full ({} MB are free)",
                self.folder.display(),
                left / 1_000_000
            )));
        }
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC;
        let path = self.path(number, "log");
        let log =
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(&path)?;
        self.begin_with(number, order, arguments, log).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    fn begin_with(&self, number: u32, order: &TraceOrder, arguments: &[String], log: File) -> io::Result<()> {
        let boot = kernel::boot_id().map_err(|(_, source)| source)?;
        let mut child = start_child(
            "a trace",
            Command::new(&self.program)
                .arg("trace")
                .args(arguments)
                .arg("--of-agent")
                .arg("--record")
                .arg(self.path(number, "teiji"))
                .arg("--json")
                .arg("--out=/dev/null")
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::from(log)),
        )?;
        let process = task(&Root::default(), child.id());
        let begun = process.ok_or_else(|| io::Error::other("it ended at once")).and_then(|process| {
            let started = kernel::unix_time();
            let file = Output::create(&self.path(number, "json"), Rights::Kept)?;
            let kept = Kept { order: order.clone(), process, boot, started };
            file.file().write_all(&serde_json::to_vec(&kept)?)?;
            file.persist()?;
            // Fails only if it has ended. Then the pipe is closed: whatever else becomes of this process, it closes it, too.
            let known = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(&[0]));
            known.map_err(|_| io::Error::other("it ended at once"))
        });
        if begun.is_err() {
            let _ = child.kill();
            let _ = fs::remove_file(self.path(number, "json"));
        }
        // Somebody has to wait for it, for as long as this process lives. Without that it is a zombie once it has ended.
        let wait = move || drop(child.wait());
        if let Err(error) = std::thread::Builder::new().name("trace".into()).spawn(wait) {
            tracing::warn!("nobody waits for the end of trace {number}: {error}");
        }
        begun
    }

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        Ok(entries.map_while(Result::ok).map(|e| e.file_name().to_string_lossy().into_owned()).collect())
    }

    /// The recording of a trace that is not complete; several if agents were killed while they used the same number.
    fn partial(&self, number: u32) -> io::Result<Vec<PathBuf>> {
        let begins = format!("{number}.teiji.");
        let names = self.names()?.into_iter().filter(|name| name.starts_with(&begins));
        Ok(names.map(|name| self.folder.join(name)).collect())
    }

    /// All traces, by number.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn all(&self) -> io::Result<Vec<TraceStatus>> {
        let names = self.names()?;
        let numbers = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok());
        let mut all: Vec<TraceStatus> = numbers.filter_map(|n| self.status(n)).collect();
        all.sort_unstable_by_key(|t| t.number);
        Ok(all)
    }

    /// What is known of a trace; `None` if there is none.
    fn known(&self, number: u32) -> Option<Known> {
        let path = self.path(number, "json");
        let damaged = |why: String| Known::Damaged(format!("{} cannot be read: {why}", path.display()));
        match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => Some(damaged(e.to_string())),
            Ok(text) => {
                Some(serde_json::from_slice(&text).map_or_else(|e| damaged(e.to_string()), Known::Kept))
            }
        }
    }

    /// The process of a trace, while it runs.
    fn process(&self, number: u32, known: &Known) -> Option<Task> {
        match known {
            Known::Kept(kept) => kept.process(),
            Known::Damaged(_) => {
                let recording = self.path(number, "teiji");
                process_with(&[b"--of-agent", b"--record", recording.as_os_str().as_bytes()])
            }
        }
    }

    fn status(&self, number: u32) -> Option<TraceStatus> {
        let known = self.known(number)?;
        // Before the look for the recording, which is there when it ends.
        let running = self.process(number, &known).is_some();
        let complete = self.path(number, "teiji").exists();
        Some(match known {
            Known::Kept(kept) => TraceStatus {
                number,
                vms: kept.order.vms,
                flow: kept.order.flow,
                started: kept.started,
                running,
                complete,
                failed: (!running && !complete).then(|| self.said_last(number)),
                damaged: false,
            },
            Known::Damaged(why) => {
                let (damaged, failed) = (true, Some(why));
                TraceStatus { number, running, complete, damaged, failed, ..TraceStatus::default() }
            }
        })
    }

    /// The recording of a trace, and whether it is complete. A trace that failed or was killed has none, even while its file
    /// is still to be removed.
    ///
    /// # Errors
    /// If there is none.
    pub fn recording(&self, number: u32) -> Result<(PathBuf, bool), String> {
        // Before the look for the complete recording, which is there when the trace ends.
        let ended = self.known(number).is_some_and(|known| self.process(number, &known).is_none());
        let whole = self.path(number, "teiji");
        if whole.exists() {
            return Ok((whole, true));
        }
        let partial =
            self.partial(number).map_err(|e| format!("cannot read {}: {e}", self.folder.display()))?;
        partial.into_iter().next().filter(|_| !ended).map(|path| (path, false)).ok_or_else(|| {
            match self.said_last(number).as_str() {
                "" => {
                    format!("there is no recording of trace {number}: `teiji traces` lists those there are")
                }
                last => format!(
                    "trace {number} has left no recording: it failed or was killed; it said last: {last}"
                ),
            }
        })
    }

    /// The last line of its log; empty if it has said nothing.
    fn said_last(&self, number: u32) -> String {
        let end = || -> io::Result<Vec<u8>> {
            let file = File::open(self.path(number, "log"))?;
            let mut end = vec![0; MAX_SAID];
            let from = file.metadata()?.len().saturating_sub(MAX_SAID as u64);
            let length = file.read_at(&mut end, from)?;
            end.truncate(length);
            Ok(end)
        };
        let end = end().unwrap_or_default();
        String::from_utf8_lossy(&end).trim().lines().last().unwrap_or_default().to_owned()
    }

    /// Ends a trace, which then completes its recording.
    ///
    /// # Errors
    /// If it does not run.
    pub(super) fn stop(&self, number: u32) -> Result<(), String> {
        let known = self.known(number).ok_or_else(|| format!("there is no trace {number}"))?;
        let ended = || format!("trace {number} has ended already");
        let failed = |e: Errno| match e {
            Errno::SRCH => ended(),
            e => format!("cannot end trace {number}: {}", io::Error::from(e)),
        };
        let process = self.process(number, &known).ok_or_else(ended)?;
        let pid = i32::try_from(process.id).ok().and_then(Pid::from_raw).ok_or_else(ended)?;
        // Nor is it the trace if the id is now that of another process's thread.
        let opened = pidfd_open(pid, PidfdFlags::empty());
        let is_still = || self.process(number, &known) == Some(process);
        let opened = opened.map_err(|e| if is_still() { failed(e) } else { ended() })?;
        // If the trace has the id now, it had it when the process was opened: nobody else gets the signal, even if it ends here.
        if !is_still() {
            return Err(ended());
        }
        pidfd_send_signal(&opened, Signal::TERM).map_err(failed)
    }

    /// Ends all traces, and starts no other ones. Returns when they have completed their recordings, or after [`END_TIMEOUT`];
    /// `waiting` is called meanwhile.
    pub(super) fn end_all(&self, waiting: &mut dyn FnMut()) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        let running = || -> Vec<u32> {
            let all = self.all().unwrap_or_default();
            all.into_iter().filter(|trace| trace.running).map(|trace| trace.number).collect()
        };
        for number in running() {
            if let Err(why) = self.stop(number) {
                tracing::warn!("{why}");
            }
        }
        let begun = Instant::now();
        while !running().is_empty() {
            if begun.elapsed() > END_TIMEOUT {
                return tracing::warn!("traces go on after the agent: {:?} do not end", running());
            }
            waiting();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Removes a trace that has ended, and its recording.
    ///
    /// # Errors
    /// If it runs, or a file cannot be removed.
    pub(super) fn remove(&self, number: u32) -> Result<(), String> {
        let status = self.status(number).ok_or_else(|| format!("there is no trace {number}"))?;
        if status.running {
            return Err(format!("trace {number} runs: `teiji traces stop {number}` ends it"));
        }
        let failed = |e: io::Error| format!("cannot remove trace {number}: {e}");
        // The one that it is found by is the last to go.
        let mut all = self.partial(number).map_err(failed)?;
        all.extend(["teiji", "log", "json"].map(|ending| self.path(number, ending)));
        for path in all {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether each of these names means a VM now: who asks is told at once, not by the log of a trace that has failed.
fn are_there(names: &[String]) -> Result<(), String> {
    if names.is_empty() {
        return Ok(());
    }
    let found = Root::default().identified_vms().map_err(|e| e.to_string())?;
    select(&found, names).map(drop)
}

/// The number of the trace that a file belongs to.
fn number_of(name: &str) -> Option<u32> {
    name.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn order() -> TraceOrder {
        TraceOrder {
            vms: vec!["--out=/etc/passwd".into(), "sip1".into()],
            flow: "udp port 5060".into(),
            direction: Direction::Both,
            matching: Matching::Sip,
            seconds: Some(10),
        }
    }

    #[test]
    fn no_value_is_taken_for_an_option() {
        let arguments = order().arguments().unwrap();
        let expected = [
            "--vm=--out=/etc/passwd",
            "--vm=sip1",
            "--flow=udp port 5060",
            "--direction=both",
            "--match=sip",
            "--for=10s",
        ];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let refused = |change: &dyn Fn(&mut TraceOrder)| {
            let mut order = order();
            change(&mut order);
            order.arguments().is_err()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|o| o.vms = vec!["a".into(); 65]));
        assert!(refused(&|o| o.vms = vec!["a".repeat(257)]));
        assert!(refused(&|o| o.vms = vec![String::new()]));
        assert!(refused(&|o| o.flow = "nonsense".into()));
        assert!(refused(&|o| o.flow = " ".repeat(5000)));
        assert!(refused(&|o| o.seconds = Some(0)));
        assert!(refused(&|o| o.seconds = Some(u64::MAX)));
    }

    #[test]
    fn a_trace_that_is_not_there_is_said_so() {
        let dir = tempfile::tempdir().unwrap();
        let traces = Traces::of(dir.path());
        assert_eq!(traces.all().unwrap(), []);
        assert!(traces.stop(1).unwrap_err().contains("no trace 1"));
        assert!(traces.remove(1).is_err() && traces.recording(1).is_err());
    }

    fn with_folder() -> (tempfile::TempDir, Traces) {
        let dir = tempfile::tempdir().unwrap();
        let traces = Traces::of(dir.path());
        fs::create_dir(&traces.folder).unwrap();
        (dir, traces)
    }

    fn keep(traces: &Traces, number: u32, process: Task, boot: &str) {
        let kept = Kept { order: order(), process, boot: boot.into(), started: 7 };
        fs::write(traces.path(number, "json"), serde_json::to_vec(&kept).unwrap()).unwrap();
    }

    /// The process that removes the file of a killed trace comes later than who asks for its report.
    #[test]
    fn a_killed_trace_has_no_recording_while_its_file_is_still_there() {
        let (_dir, traces) = with_folder();
        for left in ["1.log", "1.teiji.abc.partial"] {
            fs::write(traces.folder.join(left), "tracing\n").unwrap();
        }
        let me = task(&Root::default(), std::process::id()).unwrap();
        let boot = kernel::boot_id().unwrap();
        keep(&traces, 1, me, &boot);
        assert_eq!(traces.recording(1).unwrap(), (traces.folder.join("1.teiji.abc.partial"), false));
        assert_eq!(traces.all().unwrap()[0].failed, None);
        keep(&traces, 1, Task { started: me.started + 1, ..me }, &boot);
        assert!(traces.recording(1).unwrap_err().contains("failed or was killed"));
        // Why it has failed is told with it, however much it has said.
        let said = "a line\n".repeat(10_000) + "cannot write the recording\n\n";
        fs::write(traces.path(1, "log"), said).unwrap();
        assert_eq!(traces.all().unwrap()[0].failed.as_deref(), Some("cannot write the recording"));
        fs::write(traces.path(1, "log"), "x".repeat(10_000)).unwrap();
        assert_eq!(traces.all().unwrap()[0].failed.as_ref().map(String::len), Some(MAX_SAID));
        fs::write(traces.path(1, "teiji"), "").unwrap();
        assert_eq!(traces.all().unwrap()[0].failed, None);
        assert_eq!(traces.recording(1).unwrap(), (traces.path(1, "teiji"), true));
    }

    /// An agent was killed after it had made the log of a trace and before the trace was known.
    #[test]
    fn what_is_left_of_a_start_prevents_no_later_one() {
        let (_dir, traces) = with_folder();
        for left in ["1.log", "7.teiji.abc.partial"] {
            fs::write(traces.folder.join(left), "").unwrap();
        }
        // A name that is too long for the arguments of a program: nothing is started, and nothing is left of it.
        let long = vec!["a".repeat(3 << 20)];
        let refused = traces.begin(8, &order(), &long).unwrap_err();
        assert_ne!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(!traces.path(8, "log").exists());
        assert_eq!(number_of("12.teiji.x.partial"), Some(12));
        // This program is the test, which ends at once for these arguments.
        let order = TraceOrder { vms: Vec::new(), ..order() };
        for _ in 0..2 {
            match traces.start(&order) {
                Ok(number) => assert!(number > 7),
                Err(why) => assert!(why.contains("it ended at once"), "{why}"),
            }
        }
    }

    /// Starts this script instead of a trace, as trace 1.
    fn started(script: &str) -> (tempfile::TempDir, Traces) {
        let (dir, mut traces) = with_folder();
        traces.program = dir.path().join("program");
        // Not written by this process: every child that another test starts meanwhile would have it open for writing, too, and the
        // kernel runs no such file (ETXTBSY).
        let text = dir.path().join("text");
        fs::write(&text, format!("#!/bin/sh\ncd '{}'\n{script}", dir.path().display())).unwrap();
        assert!(Command::new("cp").arg(&text).arg(&traces.program).status().unwrap().success());
        fs::set_permissions(&traces.program, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(traces.start(&TraceOrder { vms: Vec::new(), ..order() }), Ok(1));
        (dir, traces)
    }

    fn wait_for(path: &Path) -> String {
        for _ in 0..12_000 {
            if path.exists() {
                return fs::read_to_string(path).unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{} does not come", path.display())
    }

    fn process_of(traces: &Traces, number: u32) -> Task {
        traces.process(number, &traces.known(number).unwrap()).unwrap()
    }

    /// A disk may have damaged the file, or a later release has written it.
    #[test]
    fn a_trace_whose_file_is_damaged_can_be_listed_ended_and_removed() {
        let (dir, traces) = started("head -c 1 >/dev/null; echo >said; while :; do sleep 0.05; done\n");
        wait_for(&dir.path().join("said"));
        let process = process_of(&traces, 1);
        fs::write(traces.path(1, "json"), r#"{"order":{"later":1}}"#).unwrap();
        let shown = &traces.all().unwrap()[0];
        assert!(
            shown.running && shown.failed.as_ref().is_some_and(|why| why.contains("1.json cannot be read"))
        );
        assert_eq!(process_of(&traces, 1), process);
        assert!(traces.remove(1).unwrap_err().contains("runs"));
        traces.end_all(&mut || ());
        assert!(!traces.all().unwrap()[0].running);
        traces.remove(1).unwrap();
        assert_eq!(traces.names().unwrap(), Vec::<String>::new());
    }

    /// An agent that is killed in between closes the pipe without a byte.
    #[test]
    fn a_trace_is_told_to_begin_once_it_is_known() {
        let (dir, traces) = started(
            "got=$(head -c 1 | wc -c); test -e traces/1.json && known=yes; rest=$(wc -c)\n\
             echo $got $known $rest \"$@\" >said.new; mv said.new said; exec sleep 1000\n",
        );
        let said = wait_for(&dir.path().join("said"));
        assert!(said.starts_with("1 yes 0 trace ") && said.contains(" --of-agent "), "{said}");
        // Ctrl-C is not for it.
        let process = nix::unistd::Pid::from_raw(process_of(&traces, 1).id as i32);
        assert_eq!(nix::unistd::getpgid(Some(process)), Ok(process));
        traces.end_all(&mut || ());
    }

    #[test]
    fn a_vm_that_is_not_there_is_told_before_a_trace_is_started() {
        let (_dir, traces) = with_folder();
        let order = TraceOrder { vms: vec!["no VM has this name".into()], ..order() };
        let why = traces.start(&order).unwrap_err();
        assert!(why.contains("there is no VM `no VM has this name`"), "{why}");
        assert_eq!(traces.names().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_agent_that_ends_ends_its_traces_and_starts_no_more() {
        let (_dir, traces) = with_folder();
        let boot = kernel::boot_id().unwrap();
        let mut sleeping = Command::new("sleep").arg("1000").spawn().unwrap();
        keep(&traces, 1, task(&Root::default(), sleeping.id()).unwrap(), &boot);
        keep(&traces, 2, Task { id: std::process::id(), started: 1 }, &boot);
        let mut waited = 0;
        // Whoever has started it waits for it.
        let waiter = std::thread::spawn(move || sleeping.wait().unwrap());
        traces.end_all(&mut || waited += 1);
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(waiter.join().unwrap().signal(), Some(nix::libc::SIGTERM));
        assert!(traces.all().unwrap().iter().all(|trace| !trace.running));
        let order = TraceOrder { vms: Vec::new(), ..order() };
        assert!(traces.start(&order).unwrap_err().contains("the agent ends"));
    }

    /// After a boot a stranger may have the process id and the start time of a trace.
    #[test]
    fn a_process_of_another_boot_is_no_trace() {
        let (_dir, traces) = with_folder();
        let own = task(&Root::default(), std::process::id()).unwrap();
        let running = |boot: &str| {
            keep(&traces, 1, own, boot);
            traces.all().unwrap()[0].running
        };
        assert!(running(&kernel::boot_id().unwrap()));
        assert!(!running("another") && traces.stop(1).unwrap_err().contains("ended already"));
        assert!(running(""), "as it was written before");
    }

    #[test]
    fn nothing_is_left_of_a_trace_that_is_removed() {
        let (_dir, traces) = with_folder();
        keep(&traces, 1, Task { id: u32::MAX, started: 1 }, "another");
        for name in ["1.teiji.a.partial", "1.teiji.b.partial", "1.teiji", "1.log", "11.log"] {
            fs::write(traces.folder.join(name), "").unwrap();
        }
        traces.remove(1).unwrap();
        assert_eq!(traces.names().unwrap(), ["11.log"]);
    }
}
