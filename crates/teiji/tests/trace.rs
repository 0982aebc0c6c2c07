//! `teiji trace` as a process, of a tap without traffic on the machine that runs the test. Needs root, and a kernel
//! that supports the packet probes. Each test has its own network namespace.
#![allow(clippy::unwrap_used)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{create_dir, read_dir, read_to_string, write};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SETUP: &str =
    "mount -t sysfs sysfs /sys && ip tuntap add tap0 mode tap && ip link set tap0 up && exec \"$0\" \"$@\"";

struct Trace {
    process: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Trace {
    /// Starts a trace that writes `r.teiji` and `report.json` to a folder, and waits until its probes are attached.
    fn start(folder: &Path) -> Trace {
        let mut process = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "sh",
                "-c",
                SETUP,
                env!("CARGO_BIN_EXE_teiji"),
                "trace",
                "--tap",
                "tap0",
            ])
            .args(["--json", "--out"])
            .arg(folder.join("report.json"))
            .arg("--record")
            .arg(folder.join("r.teiji"))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut message = String::new();
        while !message.contains("tracing,") {
            assert!(log.read_line(&mut message).unwrap() > 0, "it ended: {message}");
        }
        Trace { process, log }
    }

    fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
        let code = self.process.wait().unwrap().code();
        // Nobody else reads its standard error, so it would block if it is not read here.
        std::io::copy(&mut self.log, &mut std::io::sink()).unwrap();
        code
    }

    /// The processes that it has started: those that give its files their names.
    fn children(&self) -> Vec<i32> {
        let text = read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_trace_gives_up_everything_and_writes_its_files_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("somebody");
    create_dir(&folder).unwrap();
    chown(&folder, Some(1234), Some(1234)).unwrap();
    let victim = dir.path().join("victim");
    write(&victim, "precious").unwrap();
    for name in ["r.teiji", "r.teiji.partial", "report.json"] {
        symlink(&victim, folder.join(name)).unwrap();
    }
    let trace = Trace::start(&folder);
    let tasks: Vec<_> =
        read_dir(format!("/proc/{}/task", trace.pid())).unwrap().map(Result::unwrap).collect();
    assert_eq!(tasks.len(), 1, "capabilities are of a thread");
    let status = read_to_string(tasks[0].path().join("status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    assert!(
        status.contains("NoNewPrivs:\t1\n") && status.contains("Uid:\t65534\t65534\t65534\t65534\n"),
        "{status}"
    );
    assert!(status.contains("Groups:\t \n"), "{status}");
    let helpers = trace.children();
    assert_eq!(helpers.len(), 2);
    for helper in &helpers {
        // CAP_DAC_OVERRIDE and CAP_FOWNER; the folder and the socket.
        let status = read_to_string(format!("/proc/{helper}/status")).unwrap();
        for field in ["CapPrm:\t000000000000000a", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"] {
            assert!(status.contains(field), "{status}");
        }
        assert_eq!(read_dir(format!("/proc/{helper}/fd")).unwrap().count(), 2);
    }
    assert_eq!(trace.end(Signal::SIGINT), Some(0));
    assert_eq!(read_to_string(&victim).unwrap(), "precious");
    assert_eq!(names(&folder), ["r.teiji", "r.teiji.partial", "report.json"]);
    for name in ["r.teiji", "report.json"] {
        let made = folder.join(name).symlink_metadata().unwrap();
        assert!(made.is_file() && made.len() > 100 && made.mode() & 0o7777 == 0o600, "{name}: {made:?}");
    }
    assert!(helpers.iter().all(|helper| !Path::new("/proc").join(helper.to_string()).exists()));
}

#[test]
fn a_trace_that_is_killed_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let trace = Trace::start(dir.path());
    let helpers = trace.children();
    assert_eq!((names(dir.path()).len(), helpers.len()), (2, 2));
    assert_eq!(trace.end(Signal::SIGKILL), None);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !names(dir.path()).is_empty() {
        assert!(std::time::Instant::now() < until, "{:?}", names(dir.path()));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
