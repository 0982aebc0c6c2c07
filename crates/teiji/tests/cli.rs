//! The command as people run it.
#![allow(clippy::unwrap_used)]

#[path = "common/host.rs"]
mod host;
#[path = "common/program.rs"]
mod program;

use host::made_up as host;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const TEIJI: &str = env!("CARGO_BIN_EXE_teiji");

fn run(args: &[&str]) -> (i32, String, String) {
    parts(Command::new(TEIJI).args(args).stdin(Stdio::null()).output().unwrap())
}

fn parts(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn on(dir: &tempfile::TempDir, args: &[&str]) -> (i32, String, String) {
    let root = dir.path().to_str().unwrap();
    run(&[args, &["--root", root]].concat())
}

#[test]
fn the_live_view_needs_a_terminal() {
    let (code, out, err) = run(&["top"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("not a terminal") && err.contains("teiji trace --every"), "{err}");
}

#[test]
fn a_filter_that_cannot_be_read_is_pointed_at() {
    let (code, out, err) = run(&["trace", "--flow", "udp prot 5060"]);
    assert_eq!((code, out.as_str()), (2, ""));
    let lines: Vec<&str> = err.lines().collect();
    let caret = lines.iter().position(|l| l.trim_start().starts_with('^')).unwrap();
    assert_eq!(lines[caret - 1].find("prot"), lines[caret].find('^'), "{err}");
}

/// The agent was killed before it had noted the trace that it has started.
#[test]
fn a_trace_that_no_agent_knows_of_does_not_begin() {
    let (code, out, err) = run(&["trace", "--of-agent"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("ended before it had noted it"), "{err}");
}

/// An operator and the agent may both ask a detached trace to end: none of them destroys its recording.
#[test]
fn signals_only_ask_a_trace_of_the_agent_to_end() {
    let mut trace = Command::new(TEIJI)
        .args(["trace", "--of-agent"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    // Until it catches all of them; it waits for its standard input then.
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", trace.id())).unwrap();
        assert!(!status.contains("State:\tZ"), "the trace has ended");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        signals.iter().all(|signal| mask & 1 << (*signal as i32 - 1) != 0)
    };
    while !caught() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for signal in signals {
        nix::sys::signal::kill(Pid::from_raw(trace.id() as i32), signal).unwrap();
    }
    drop(trace.stdin.take());
    let ended = trace.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn usage_errors_end_with_2() {
    for args in [
        &["trace", "--for", "10"][..],
        &["trace", "--for", "0s"],
        &["trace", "--match", "telepathy"],
        &["trace", "--json", "--format", "html"],
        &["trace", "--buffer", "1"],
        &["trace", "--guest-tcp", "a=10.0.0.1:7413"],
        &["trace", "--guest-token", "f"],
        &["trace", "--guest-tcp", "10.0.0.1:7413", "--guest-token", "f"],
        &["trace", "--guest-tcp", "a=example.org:7413", "--guest-token", "f"],
        &["trace", "--guest-vsock-port", "x"],
        &["trace", "--detach", "--guest-vsock-port", "7"],
        &["trace", "--detach", "--guest-tcp", "a=10.0.0.1:7413", "--guest-token", "f"],
        &["trace", "--suggest", "--json"],
        &["replay", "x", "--suggest", "--format", "text"],
        &["replay", "x", "--suggest", "--out", "y"],
        &["replay", "x", "y", "--suggest"],
        &["replay"],
        &["numa"],
        &["numa", "show", "--for", "0s"],
        &["numa", "advise", "--for", "0s"],
        &["nonsense"],
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(!err.is_empty());
    }
}

#[test]
fn vms_are_listed() {
    let dir = host(&["alpha", "evil\x1b[2J"]);
    let (code, out, _) = on(&dir, &["vms"]);
    assert_eq!(code, 0);
    assert!(out.contains("alpha  pid 700, 1 vCPU, 256 MiB"), "{out}");
    assert!(out.contains("evil\\u{1b}[2J") && !out.contains('\x1b'), "{out}");
    let (code, out, _) = on(&dir, &["vms", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, json["schema"].as_u64(), json["vms"][0]["name"].as_str()), (0, Some(1), Some("alpha")));
    assert_eq!(json["vms"][0]["vcpus"][0]["tid"], 1700);
}

#[test]
fn an_unknown_vm_is_answered_with_those_there_are() {
    let (code, _, err) = on(&host(&["alpha", "beta"]), &["trace", "--vm", "gamma"]);
    assert_eq!(code, 1);
    assert!(err.contains("no VM `gamma`; there are: alpha (pid:700), beta (pid:701)"), "{err}");
}

#[test]
fn a_name_of_two_vms_asks_for_the_pid() {
    let (code, _, err) = on(&host(&["twin", "twin"]), &["trace", "--vm", "twin"]);
    assert_eq!(code, 1);
    assert!(err.contains("--vm pid:700 or --vm pid:701"), "{err}");
}

#[test]
fn no_vm_is_said() {
    let (code, _, err) = on(&host(&[]), &["trace"]);
    assert_eq!(code, 1);
    assert!(err.contains("no VM runs on this host"), "{err}");
    let (code, out, _) = on(&host(&[]), &["vms"]);
    assert_eq!(code, 0);
    assert!(out.contains("no VM runs on this host"), "{out}");
}

/// Runs the command as nobody, if the test may do that.
fn unprivileged(args: &[&str]) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("teiji");
    program::copy(Path::new(TEIJI), &copy);
    let mut command = Command::new(&copy);
    command.args(args).current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    parts(command.output().unwrap())
}

#[test]
fn without_root_it_says_what_is_missing_and_what_still_works() {
    let dir = host(&["alpha"]);
    fs::write(dir.path().join("proc/self/status"), "CapEff:\t0000000000000000\n").unwrap();
    let (code, _, err) = unprivileged(&["trace", "--root", dir.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    for wanted in ["CAP_BPF", "CAP_PERFMON", "sudo", "`teiji replay` needs none"] {
        assert!(err.contains(wanted), "{err}");
    }
    let (code, out, _) = unprivileged(&["doctor"]);
    assert_eq!(code, 1);
    assert!(out.contains("missing  privilege"), "{out}");
    let (code, _, err) = unprivileged(&["trace"]);
    assert_eq!(code, 1);
    assert!(err.contains("without root") || err.contains("privileges"), "{err}");
}

#[test]
fn garbage_is_not_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("garbage");
    fs::write(&file, b"\x7fELF and so on").unwrap();
    for path in [file.as_path(), Path::new("/nonexistent"), Path::new("/")] {
        let (code, out, err) = run(&["replay", path.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("cannot replay") && err.contains(path.to_str().unwrap()), "{err}");
    }
}

#[test]
fn doctor_prints_json() {
    let (code, out, _) = run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, if json["works"].as_bool().unwrap() { 0 } else { 1 });
    assert!(json["capabilities"].as_array().unwrap().iter().any(|c| c["name"] == "btf"));
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(TEIJI).args(["completions", "zsh"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

/// `teiji agent 2>&1 | tee log`, and tee ends: an agent that continues is better than one that panics.
#[test]
fn a_log_that_nobody_reads_ends_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(TEIJI);
    command.args(["completions", "zsh"]).env("TEIJI_LOG", "debug").stderr(writer);
    assert_eq!(command.output().unwrap().status.code(), Some(0));
}

#[test]
fn a_full_disk_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(TEIJI).args(["completions", "bash"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"));
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, _) = run(&["completions", shell]);
        assert!(code == 0 && out.contains("replay"), "{shell}");
    }
    let (code, out, _) = run(&["man"]);
    assert!(code == 0 && out.contains(".TH teiji"), "{out}");
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    assert_eq!(run(&["man", "--out", pages.to_str().unwrap()]).0, 0);
    assert!(pages.join("teiji-trace.1").is_file());
}

/// What `teiji vms` with log level debug writes to a terminal as its standard output and to a file as its standard
/// error, or the other way round.
fn terminal_and_file(stderr_is_the_file: bool, no_colour: bool) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (file, terminal) = (dir.path().join("file"), dir.path().join("terminal"));
    let redirect = if stderr_is_the_file { "2>" } else { ">" };
    let shell = format!("{TEIJI} doctor --root /nonexistent {redirect} {}", file.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--command", &shell]).arg(&terminal);
    command.env("TERM", "xterm").env("TEIJI_LOG", "debug").env_remove("NO_COLOR");
    if no_colour {
        command.env("NO_COLOR", "1");
    }
    let ran = command.stdin(Stdio::null()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    (fs::read_to_string(terminal).unwrap(), fs::read_to_string(file).unwrap())
}

#[test]
fn only_a_terminal_gets_colours() {
    let doctor = ["doctor", "--root", "/nonexistent"];
    let log = |no_colour: &str| {
        let mut command = Command::new(TEIJI);
        command.args(doctor).env("TERM", "xterm").env("TEIJI_LOG", "debug").env("NO_COLOR", no_colour);
        parts(command.stdin(Stdio::null()).output().unwrap())
    };
    let (_, out, err) = log("");
    assert!(err.contains("teiji 0.") && out.contains("missing"), "{err}{out}");
    assert!(!err.contains('\x1b') && !out.contains('\x1b'), "{err:?}{out:?}");
    // Each stream on its own.
    for stderr_is_the_file in [true, false] {
        let (terminal, file) = terminal_and_file(stderr_is_the_file, false);
        assert!(terminal.contains("\x1b[") && !file.contains('\x1b'), "{terminal:?}{file:?}");
        let (terminal, file) = terminal_and_file(stderr_is_the_file, true);
        let message = if stderr_is_the_file { "missing" } else { "teiji 0." };
        assert!(terminal.contains(message) && !terminal.contains("\x1b["), "{terminal:?}");
        assert!(!file.is_empty() && !file.contains('\x1b'), "{file:?}");
    }
}

#[test]
fn manual_pages_and_completions_have_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = run(&["man", "--out", dir.path().to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let page = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(page("teiji-observe.1").contains("Write the state of this host"));
    assert!(page("teiji-plan.1").contains("\\-\\-host"));
    // Hidden there, because it is refused.
    assert!(!page("teiji-apply.1").contains("\\-\\-host"));
    let (_, script, _) = run(&["completions", "bash"]);
    assert!(script.contains("teiji__observe") || script.contains("teiji__subcmd__observe"), "{script}");
    assert!(script.contains("--host"), "{script}");
}
