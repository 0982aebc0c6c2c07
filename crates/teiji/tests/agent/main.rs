//! `teiji agent` as a process, with the pins of another version of the qdisc: the tests make the maps, so no kernel
//! with BPF qdiscs is needed. Needs root; each test has its own BPF file system.
#![allow(clippy::unwrap_used)]

mod front;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use teiji_agent::apply::store::LOCK;

/// Long on any machine: the tests do not depend on the exact time.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Fixture {
    dir: tempfile::TempDir,
    maps: Vec<(&'static str, MapHandle)>,
}

impl Fixture {
    /// A BPF file system with the pins of a qdisc that this many links use.
    fn new(links: u64) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let bpf = dir.path().join("bpf");
        fs::create_dir(&bpf).unwrap();
        mount(&bpf);
        let mut fixture = Fixture { dir, maps: Vec::new() };
        fs::create_dir_all(fixture.pins().join("edf")).unwrap();
        fixture.maps = pinned(&fixture.pins().join("edf"), links);
        fixture
    }

    fn pins(&self) -> PathBuf {
        self.dir.path().join("bpf/teiji")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn command(&self, verb: &str, state: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_teiji"));
        command.arg(verb).arg("--state").arg(state).arg("--pins").arg(self.pins()).env("NO_COLOR", "1");
        command
    }

    /// The number that the heartbeat writes.
    fn heartbeat(&self) -> u64 {
        number(&self.map("beat").lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap())
    }

    fn map(&self, name: &str) -> &MapHandle {
        &self.maps.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Waits for two heartbeats from now on.
    fn heartbeat_continues(&self) -> bool {
        let mut last = self.heartbeat();
        (0..2).all(|_| {
            let before = last;
            within(|| {
                last = self.heartbeat();
                last != before
            })
        })
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.dir.path().join("bpf"), nix::mount::MntFlags::MNT_DETACH);
    }
}

fn mount(at: &Path) {
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("bpf"), at, Some("bpf"), flags, None::<&str>)
        .expect("needs root and a BPF file system");
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

/// Maps that the agent uses, pinned in a folder. Those with settings are there in a version that no teiji has.
fn pinned(folder: &Path, links: u64) -> Vec<(&'static str, MapHandle)> {
    let others = ["slots", "current", "settings", "states", "matches", "channels", "labels", "registry"];
    let others = others.map(|name| (name, format!("{name}_v99"), 0));
    let shared = ["beat", "users"].map(|name| (name, name.to_owned(), libbpf_sys::BPF_F_MMAPABLE));
    let maps = others.into_iter().chain(shared).map(|(name, pin, flags)| {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: flags,
            ..Default::default()
        };
        let mut map = MapHandle::create(MapType::Array, Some(name), 4, 8, 1, &options).unwrap();
        map.pin(folder.join(pin)).unwrap();
        (name, map)
    });
    let maps: Vec<_> = maps.collect();
    let users = &maps.last().unwrap().1;
    users.update(&0u32.to_ne_bytes(), &links.to_ne_bytes(), MapFlags::ANY).unwrap();
    maps
}

fn within(mut done: impl FnMut() -> bool) -> bool {
    let until = std::time::Instant::now() + TIMEOUT;
    while std::time::Instant::now() < until {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// A running agent; it is killed when this is dropped.
struct Agent {
    process: Child,
    lines: Receiver<String>,
}

impl Agent {
    fn start(fixture: &Fixture, state: &Path) -> Agent {
        let mut process =
            fixture.command("agent", state).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (sender, lines) = channel();
        let log = BufReader::new(process.stderr.take().unwrap());
        std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Agent { process, lines }
    }

    /// The first line from now on that contains `wanted`, with the lines before it.
    fn says(&self, wanted: &str) -> String {
        let mut all = String::new();
        while let Ok(line) = self.lines.recv_timeout(TIMEOUT) {
            all += &(line + "\n");
            if all.contains(wanted) {
                return all;
            }
        }
        panic!("it did not say {wanted:?}: {all}");
    }

    fn end(&mut self) -> i32 {
        let pid = nix::unistd::Pid::from_raw(self.process.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.process.wait().unwrap().code().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A change of `held.json`.
type Damage = dyn Fn(&Path);

/// Whatever the state directory contains, deadlines are kept, and damaged files are reported and left alone.
#[test]
fn the_heartbeat_continues_whatever_the_state_is_like() {
    let damages: [(&str, &Damage); 7] = [
        ("missing", &|_| ()),
        ("damaged", &|held| fs::write(held, "{\"version\":1,\"bo").unwrap()),
        ("huge", &|held| fs::File::create(held).unwrap().set_len(1 << 40).unwrap()),
        ("a folder", &|held| fs::create_dir(held).unwrap()),
        ("a link to itself", &|held| symlink(held, held).unwrap()),
        ("a pipe", &|held| nix::unistd::mkfifo(held, nix::sys::stat::Mode::S_IRUSR).unwrap()),
        ("no folder", &|held| {
            fs::remove_dir_all(held.parent().unwrap()).unwrap();
            fs::write(held.parent().unwrap(), "").unwrap();
        }),
    ];
    for (name, damage) in damages {
        let fixture = Fixture::new(1);
        fs::create_dir(fixture.state()).unwrap();
        nix::sys::stat::fchmodat(
            nix::fcntl::AT_FDCWD,
            &fixture.state(),
            nix::sys::stat::Mode::S_IRWXU,
            nix::sys::stat::FchmodatFlags::FollowSymlink,
        )
        .unwrap();
        let held = fixture.state().join("held.json");
        damage(&held);
        let before = held.symlink_metadata().map(|m| (m.file_type(), m.len())).ok();
        let mut agent = Agent::start(&fixture, &fixture.state());
        let mut log = agent.says("the agent keeps deadlines; 1 link has channels");
        if name != "missing" && !log.contains("see `teiji status`") {
            log += &agent.says("see `teiji status`");
        }
        assert!(fixture.heartbeat_continues(), "{name}: {log}");
        assert_eq!(log.contains("held.json") || name == "no folder", name != "missing", "{name}: {log}");
        assert_eq!(log.contains("see `teiji status`"), name != "missing", "{name}: {log}");
        assert_eq!(held.symlink_metadata().map(|m| (m.file_type(), m.len())).ok(), before, "{name}");

        let status = fixture.command("status", &fixture.state()).output().unwrap();
        let message = String::from_utf8(status.stdout).unwrap() + &String::from_utf8(status.stderr).unwrap();
        if name != "missing" {
            assert_eq!(status.status.code(), Some(1), "{name}: {message}");
            assert!(
                message.replace('\n', " ").contains(fixture.state().to_str().unwrap()),
                "{name}: {message}"
            );
        }
        if name == "damaged" {
            assert!(message.replace('\n', " ").contains("move the file away"), "{message}");
        }
        assert_eq!(agent.end(), 0, "{name}");
        assert!(fixture.pins().join("edf/beat").exists(), "{name}: a link has it");
    }
}

#[test]
fn one_agent_keeps_a_folder_of_pins_whatever_their_state_directories() {
    let fixture = Fixture::new(1);
    let mut first = Agent::start(&fixture, &fixture.state());
    first.says("the agent keeps deadlines");
    let mut second = Agent::start(&fixture, &fixture.dir.path().join("other"));
    second.says(&format!("another teiji agent (pid {}) serves these pins", first.process.id()));
    // Not the exit code after which systemd gives up: the first agent may end.
    assert_eq!(second.process.wait().unwrap().code(), Some(1));
    assert!(!fixture.dir.path().join("other").join(LOCK).exists());
    assert_eq!(first.end(), 0);
    // Its lock is gone with it.
    Agent::start(&fixture, &fixture.dir.path().join("other")).says("the agent keeps deadlines");
}

/// Removes a folder of pins from its place by one step. If it is removed pin by pin, the agent may pin again what is missing before
/// the folder is empty.
fn remove_at_once(folder: &Path, bpf: &Path) {
    let removed = bpf.join("removed");
    fs::rename(folder, &removed).unwrap();
    fs::remove_dir_all(removed).unwrap();
}

#[test]
fn pins_that_somebody_removes_are_pinned_again() {
    let fixture = Fixture::new(1);
    let agent = Agent::start(&fixture, &fixture.state());
    agent.says("the agent keeps deadlines");
    let id = |path: &Path| MapHandle::from_pinned_path(path).map(|map| map.info().unwrap().info.id).ok();
    let edf = fixture.pins().join("edf");
    let ids = || ["registry_v99", "beat", "users"].map(|name| id(&edf.join(name)));
    let before = ids();
    assert!(before.iter().all(Option::is_some));
    let bpf = fixture.dir.path().join("bpf");
    for remove in [fixture.pins(), edf.clone(), edf.join("users")] {
        if remove.is_dir() {
            remove_at_once(&remove, &bpf)
        } else {
            fs::remove_file(&remove).unwrap()
        }
        let message = agent.says("it is pinned again");
        assert!(
            message.contains("somebody removed") && message.contains(fixture.pins().to_str().unwrap()),
            "{message}"
        );
        assert_eq!(ids(), before, "{}", remove.display());
        assert!(fixture.heartbeat_continues());
    }
    // The lock exists again together with the pins.
    Agent::start(&fixture, &fixture.dir.path().join("other")).says("serves these pins");

    // The file system itself is removed: nothing can be pinned until there is one again.
    nix::mount::umount2(&bpf, nix::mount::MntFlags::MNT_DETACH).unwrap();
    let message = agent.says("mount -t bpf");
    assert!(message.contains("is gone") && fixture.heartbeat_continues(), "{message}");
    mount(&bpf);
    agent.says("it is pinned again");
    assert_eq!(ids(), before);

    // The pins of another process are left alone, and the agent's own unpinned map stays in use.
    remove_at_once(&fixture.pins(), &bpf);
    let elsewhere = bpf.join("elsewhere");
    fs::create_dir_all(elsewhere.join("edf")).unwrap();
    let others = pinned(&elsewhere.join("edf"), 1);
    assert!(within(|| edf.exists()), "the folder gets this name when it is complete");
    // By one step: what is missing in between is pinned again.
    renameat2(AT_FDCWD, &elsewhere, AT_FDCWD, &fixture.pins(), RenameFlags::RENAME_EXCHANGE).unwrap();
    let message = agent.says("has the pins of another process");
    assert!(message.contains("(1 link)") && fixture.heartbeat_continues(), "{message}");
    let beat = &others.iter().find(|(name, _)| *name == "beat").unwrap().1;
    let theirs = beat.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    assert_eq!(number(&theirs), 0, "it sends the heartbeat for the other one");
}

/// Pins were removed while no agent ran: the policy is kept whatever is missing, and deadlines as far as that is possible.
#[test]
fn an_agent_starts_whatever_is_missing_of_the_pins() {
    let mut fixture = Fixture::new(1);
    let edf = fixture.pins().join("edf");
    fs::remove_file(edf.join("slots_v99")).unwrap();
    let mut agent = Agent::start(&fixture, &fixture.state());
    let log = agent.says("the agent keeps deadlines; 1 link has channels");
    assert!(log.contains("slots is missing") && log.contains("teiji rollback --force"), "{log}");
    assert!(fixture.heartbeat_continues());
    assert_eq!(agent.end(), 0);

    for name in ["beat", "users"] {
        fs::remove_file(edf.join(name)).unwrap();
        let mut agent = Agent::start(&fixture, &fixture.state());
        let log = agent.says("the agent keeps the policy");
        assert!(log.contains(&format!("edf/{name}")) && log.contains("rm -r"), "{log}");
        // It notices by itself that they are as they should be.
        let map = fixture.maps.iter_mut().find(|(n, _)| *n == name).unwrap();
        map.1.pin(edf.join(name)).unwrap();
        agent.says("the agent keeps deadlines");
        assert!(fixture.heartbeat_continues());
        assert_eq!(agent.end(), 0);
    }
}

/// systemd lets the agent make only the namespaces that its unit lists, and no test runs under it.
#[test]
fn the_unit_allows_the_namespaces_that_the_agent_makes() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let unit = fs::read_to_string(root.join("dist/teiji-agent.service")).unwrap();
    let allowed = unit.lines().find_map(|line| line.strip_prefix("RestrictNamespaces=")).unwrap();
    let mut made = std::collections::BTreeSet::new();
    let mut folders =
        vec![root.join("crates/host/src"), root.join("crates/agent/src"), root.join("crates/bpf/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                let text = fs::read_to_string(&entry).unwrap_or_default();
                made.extend(text.split("CloneFlags::CLONE_NEW").skip(1).map(|rest| {
                    rest.chars().take_while(char::is_ascii_uppercase).collect::<String>().to_lowercase()
                }));
            }
        }
    }
    assert!(made.contains("net"), "{made:?}");
    assert_eq!(made.into_iter().collect::<Vec<_>>().join(" "), allowed);
}

/// About the unit file: systemd must always start the agent again.
#[test]
fn systemd_starts_the_agent_however_often_it_ends() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/teiji-agent.service");
    let text = fs::read_to_string(unit).unwrap();
    let (general, service) = text.split_once("[Service]").unwrap();
    assert!(general.lines().any(|l| l == "StartLimitIntervalSec=0"), "{general}");
    let kept = [
        "Restart=always",
        "RestartSec=500ms",
        "Type=notify",
        "WatchdogSec=10",
        // Nothing that the agent has started delays its restart or ends it.
        "KillMode=process",
        "OOMPolicy=continue",
    ];
    for line in kept {
        assert!(service.lines().any(|l| l == line), "{line} is missing in {service}");
    }
    let spared: Vec<i32> =
        service.lines().filter_map(|l| l.strip_prefix("OOMScoreAdjust=")?.parse().ok()).collect();
    assert!(matches!(spared[..], [score] if score < 0), "{service}");
    // The agent ends its traces itself, and systemd has to leave it the time.
    assert!(!service.contains("TimeoutStopSec"), "{service}");
}
