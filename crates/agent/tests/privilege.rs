//! Privileges that were given up cannot be had back: each way is really tried. Needs root. Without the harness, as what is
//! tried is a program's own process, with one thread.
//!
//! ```text
//! this program ── "nobody" or "agent": gives up, writes what was prepared ──exec──► "regain": tries, prints what it got
//! ```
#![allow(clippy::unwrap_used)]

use nix::unistd::{Uid, geteuid, getuid, setresuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_capabilities_secure_bits,
};
use std::fs::{File, Permissions, copy, create_dir, read_to_string, set_permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use teiji_agent::output::{Output, Rights};
use teiji_host::privilege;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("nobody") => confined(&args[2..], privilege::become_nobody),
        Some("agent") => confined(&args[2..], || privilege::give_up().and_then(|()| privilege::confirm())),
        Some("front") => front_without_setuid(),
        Some("regain") => regain(Path::new(&args[2])),
        _ => check(),
    }
}

/// Gives up, finishes the file that it had begun, and executes `program` with what follows it.
fn confined(args: &[String], give_up: impl FnOnce() -> Result<(), privilege::Error>) {
    let [program, rest @ ..] = args else { panic!("a program is missing") };
    let output = Output::create(&Path::new(&rest[1]).join("theirs/report"), Rights::GivenUp).unwrap();
    give_up().unwrap();
    output.file().write_all(b"whole").unwrap();
    output.persist().unwrap();
    panic!("{}", Command::new(program).args(rest).exec());
}

/// Tries everything, and prints a line for each thing that it got.
fn regain(dir: &Path) {
    let status = read_to_string("/proc/self/status").unwrap();
    for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"] {
        let line = status.lines().find(|l| l.starts_with(field)).unwrap();
        println!("{}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    println!("uid {} {}", getuid(), geteuid());
    let got = |what: &str, done: bool| println!("{what} {}", if done { "got" } else { "refused" });
    let all = CapabilitySet::from_bits_retain((1 << 41) - 1);
    let sets = CapabilitySets { effective: all, permitted: all, inheritable: CapabilitySet::empty() };
    got("raise", set_capabilities(None, sets).is_ok());
    let permitted = capabilities(None).unwrap().permitted;
    let each = (0..41).map(|n| CapabilitySet::from_bits_retain(1 << n));
    let inherits =
        |one| set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: one });
    got("inherit", each.map(inherits).any(|done| done.is_ok()));
    got("securebits", set_capabilities_secure_bits(rustix::thread::CapabilitiesSecureBits::empty()).is_ok());
    let root = Uid::from_raw(0);
    got("root", setresuid(root, root, root).is_ok() && geteuid().is_root());
    got("roots-file", File::open(dir.join("roots")).is_ok());
    got("roots-folder", File::create(dir.join("new")).is_ok());
    got("somebodys-file", File::open(dir.join("theirs/secret")).is_ok());
    got("signal", nix::sys::signal::kill(nix::unistd::Pid::from_raw(1), None).is_ok());
    got("environment", std::fs::read("/proc/1/environ").is_ok());
    got("namespace", nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).is_ok());
    let other = Uid::from_raw(1235);
    got("other-user", setresuid(other, other, other).is_ok());
}

/// As a front of an agent that may not change users: it must serve nobody. Its standard input and output are sockets.
fn front_without_setuid() {
    let now = capabilities(None).unwrap();
    let kept = now.permitted - CapabilitySet::SETUID;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).unwrap();
    eprintln!("front: {:?}", teiji_agent::daemon::front::run().map_err(|e| e.to_string()));
}

fn message(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// A folder that everybody may pass, and where setuid programs count.
fn folder() -> tempfile::TempDir {
    let everybody = |dir: &Path| {
        let open = |p: &Path| p.metadata().is_ok_and(|m| m.permissions().mode() & 1 != 0);
        dir.ancestors().all(open)
    };
    let folders = [PathBuf::from(env!("CARGO_TARGET_TMPDIR")), std::env::temp_dir(), "/var/tmp".into()];
    for folder in folders.iter().filter(|p| everybody(p)) {
        let dir = tempfile::tempdir_in(folder).unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let setuid = program(dir.path(), "probe", 0o4755);
        let alone = Command::new(&setuid).args(["regain", "/"]).uid(1234).output();
        if alone.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("uid 1234 0\n")) {
            return dir;
        }
    }
    panic!("no place for setuid programs: mount one of {folders:?} without nosuid");
}

/// A copy of this program.
fn program(dir: &Path, name: &str, mode: u32) -> PathBuf {
    let path = dir.join(name);
    copy(std::env::current_exe().unwrap(), &path).unwrap();
    set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn check() {
    assert!(geteuid().is_root(), "needs root");
    let folder = folder();
    let dir = folder.path();
    std::fs::write(dir.join("roots"), "secret").unwrap();
    set_permissions(dir.join("roots"), Permissions::from_mode(0o600)).unwrap();
    create_dir(dir.join("theirs")).unwrap();
    std::fs::write(dir.join("theirs/secret"), "secret").unwrap();
    for (name, mode) in [("theirs/secret", 0o600), ("theirs", 0o755)] {
        chown(dir.join(name), Some(1234), Some(1234)).unwrap();
        set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let plain = program(dir, "plain", 0o755);
    let setuid = program(dir, "setuid", 0o4755);
    let with_file_caps = program(dir, "file-capabilities", 0o755);
    // Without the effective bit, with which a program does not start at all if it does not get all of them.
    message(Command::new("setcap").arg("cap_dac_override,cap_kill=p").arg(&with_file_caps));
    // They do give something to whoever has given up nothing.
    let try_of = |program: &Path| message(Command::new(program).arg("regain").arg(dir).uid(1234));
    assert!(try_of(&setuid).contains("roots-file got"));
    assert!(try_of(&with_file_caps).contains("CapPrm: 0000000000000022\n"));

    let (here, there) = UnixStream::pair().unwrap();
    let listener = UnixListener::bind(dir.join("socket")).unwrap();
    let mut front = Command::new(&plain)
        .arg("front")
        .stdin(Stdio::from(OwnedFd::from(there)))
        .stdout(Stdio::from(OwnedFd::from(listener)))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that serves ends when the agent does.
    drop(here);
    let mut said = String::new();
    front.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    front.wait().unwrap();
    assert!(said.contains("cannot stop being root") && said.contains("CAP_SETUID"), "{said}");
    std::fs::remove_file(dir.join("socket")).unwrap();

    for way in ["nobody", "agent"] {
        for program in [&plain, &setuid, &with_file_caps] {
            let begin = Command::new(&plain).arg(way).arg(program).arg("regain").arg(dir).output().unwrap();
            let text =
                String::from_utf8_lossy(&begin.stdout).into_owned() + &String::from_utf8_lossy(&begin.stderr);
            let what = format!("{way}, {}:\n{text}", program.display());
            assert!(begin.status.success(), "{what}");
            let mut left: Vec<&str> = text.lines().filter(|l| l.ends_with(" got")).collect();
            if way == "agent" {
                // The pins are root's, so the agent stays that user, and has what is his by name.
                left.retain(|l| {
                    !["root got", "roots-file got", "roots-folder got", "signal got"].contains(l)
                });
            }
            assert_eq!(left, [""; 0], "{what}");
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert!(text.contains(&format!("{set}: 0000000000000000\n")), "{what}");
            }
            assert!(text.contains("NoNewPrivs: 1\n"), "{what}");
            assert!(text.contains(if way == "nobody" { "uid 65534 65534\n" } else { "uid 0 0\n" }), "{what}");
            // What was prepared could be finished, in a folder that is not root's.
            let report = dir.join("theirs/report");
            assert_eq!(read_to_string(&report).unwrap(), "whole");
            std::fs::remove_file(report).unwrap();
            assert_eq!(std::fs::read_dir(dir.join("theirs")).unwrap().count(), 1, "{what}");
        }
        println!("{way}: nothing can be had back");
    }
}
