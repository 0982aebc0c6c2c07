//! The part of the agent that clients talk to: who may ask for what, and what becomes of the agent when that part ends or
//! is sent nonsense.

use super::{Agent, Fixture, TIMEOUT, within};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use teiji_agent::daemon::client::ask;
use teiji_agent::daemon::protocol::{Answer, FullStatus, Order};

#[path = "../common/program.rs"]
mod program;

fn socket(fixture: &Fixture) -> PathBuf {
    fixture.state().join("agent.sock")
}

fn status(fixture: &Fixture) -> Option<FullStatus> {
    match ask(&socket(fixture), &Order::Status, TIMEOUT) {
        Ok(Answer::Status(status)) => Some(*status),
        _ => None,
    }
}

/// A running agent that answers.
fn answering(fixture: &Fixture) -> Agent {
    fs::create_dir_all(fixture.state()).unwrap();
    fs::set_permissions(fixture.state(), fs::Permissions::from_mode(0o700)).unwrap();
    let agent = Agent::start(fixture, &fixture.state());
    agent.says("the agent keeps deadlines");
    assert!(within(|| status(fixture).is_some()), "it does not answer");
    agent
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: String = tasks.map_while(Result::ok).map(of).collect();
    all.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill(pid: u32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
}

#[test]
fn the_agent_tells_what_it_does() {
    let fixture = Fixture::new(1);
    let agent = answering(&fixture);
    assert!(within(|| status(&fixture).is_some_and(|s| s.agent.looks > 0)));
    let full = status(&fixture).unwrap();
    assert_eq!((full.agent.pid, full.agent.policy_since), (agent.process.id(), None));
    assert_eq!(full.agent.problems, Vec::<String>::new());
    let shown = fixture.command("status", &fixture.state()).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains(&format!("agent (pid {})", agent.process.id())), "{text}");
    assert!(text.contains("there is no policy in force"), "{text}");
}

/// It has no privilege, and it and its socket end with the agent.
#[test]
fn the_front_is_nobody() {
    let fixture = Fixture::new(1);
    let mut agent = answering(&fixture);
    let [front] = children(agent.process.id())[..] else { panic!("one process is expected") };
    let text = fs::read_to_string(format!("/proc/{front}/status")).unwrap();
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        found.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("Uid:"), ["65534"; 4]);
    assert_eq!((line("CapEff:"), line("CapPrm:")), (vec!["0".repeat(16)], vec!["0".repeat(16)]));
    assert_eq!(line("NoNewPrivs:"), ["1"]);
    assert_eq!(agent.end(), 0);
    assert!(within(|| !Path::new(&format!("/proc/{front}")).exists()));
    assert!(!socket(&fixture).exists());
}

#[test]
fn a_front_that_is_killed_is_started_again() {
    let fixture = Fixture::new(1);
    let agent = answering(&fixture);
    for _ in 0..3 {
        let before = children(agent.process.id());
        kill(before[0]);
        // A client that comes meanwhile waits.
        assert!(within(|| status(&fixture).is_some()));
        assert!(within(|| children(agent.process.id()).first().is_some_and(|now| *now != before[0])));
        assert!(fixture.heartbeat_continues());
    }
}

/// A front that is stopped does not end, and is replaced all the same.
#[test]
fn a_front_that_does_not_answer_is_replaced() {
    let fixture = Fixture::new(1);
    let agent = answering(&fixture);
    let [before] = children(agent.process.id())[..] else { panic!("one process is expected") };
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(before as i32), nix::sys::signal::Signal::SIGSTOP)
        .unwrap();
    assert!(within(|| children(agent.process.id()).first().is_some_and(|now| *now != before)));
    assert!(within(|| status(&fixture).is_some()));
    assert!(fixture.heartbeat_continues());
}

/// The agent has a higher priority, and is spared if memory runs out; what it starts is like any other process.
#[test]
fn what_the_agent_starts_has_the_priority_of_any_program() {
    let fixture = Fixture::new(1);
    let (own, score) = (std::process::id(), "/proc/thread-self/oom_score_adj");
    let nice = |pid: u32| -> i32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
    };
    let renice = |by: &str| {
        let tid = nix::unistd::gettid();
        let done = Command::new("renice").args(["-n", by, "-p", &tid.to_string()]).output().unwrap();
        assert!(done.status.success());
    };
    let memory = |pid: u32| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let before = memory(own);
    renice("-5");
    // Needs CAP_SYS_RESOURCE; the test of the function does without.
    let _ = fs::write(score, "-500");
    let agent = answering(&fixture);
    renice("0");
    let _ = fs::write(score, before);
    let [front] = children(agent.process.id())[..] else { panic!("one process is expected") };
    assert_eq!(nice(agent.process.id()), -5);
    assert!(within(|| nice(front) == 0 && memory(front).trim().parse::<i32>().unwrap() >= 0));
}

#[test]
fn an_agent_that_is_killed_takes_its_front_along() {
    let fixture = Fixture::new(1);
    let mut agent = answering(&fixture);
    let fronts = children(agent.process.id());
    kill(agent.process.id());
    agent.process.wait().unwrap();
    assert!(within(|| fronts.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())));
    // The next one takes the socket's place.
    answering(&fixture);
}

/// Whatever anybody sends, others are answered.
#[test]
fn nonsense_is_refused_and_slow_clients_hold_up_nobody() {
    let fixture = Fixture::new(1);
    let _agent = answering(&fixture);
    let connect = || UnixStream::connect(socket(&fixture)).unwrap();
    let framed = |text: &str| [&(text.len() as u32).to_ne_bytes()[..], text.as_bytes()].concat();
    let request = |version: u32, order: &str| framed(&format!("{{\"version\":{version},\"order\":{order}}}"));
    let answer = |bytes: &[u8]| {
        let mut stream = connect();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut text = vec![0; u32::from_ne_bytes(length) as usize];
        stream.read_exact(&mut text).ok()?;
        Some(String::from_utf8(text).unwrap())
    };
    // Clients that say nothing, or half of something; as many as one user may have.
    let silent: Vec<UnixStream> = (0..40).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(&framed("{\"version\":1")[..6]).unwrap();
    assert!(answer(&request(1, "\"status\"")).unwrap().contains("\"agent\""));
    assert!(
        answer(&request(2, "\"status\""))
            .unwrap()
            .contains("{\"version\":1,\"result\":{\"Err\":{\"version\":1}}}")
    );
    for unknown in ["\"reboot\"", "{\"rollback\":{\"force\":true,\"state\":\"/\"}}", "[]", "null"] {
        assert!(answer(&request(1, unknown)).unwrap().contains("unknown"), "{unknown}");
    }
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &u32::MAX.to_ne_bytes(), &framed("{"), &framed("")] {
        assert_eq!(answer(nonsense), None, "{nonsense:?}");
    }
    drop(silent);
    assert!(status(&fixture).is_some());
    assert!(fixture.heartbeat_continues());
}

/// Anybody who may open the socket may read; only root may change anything.
#[test]
fn others_may_read_at_most() {
    let fixture = Fixture::new(1);
    let _agent = answering(&fixture);
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // The program and the socket are put where anybody may reach them.
    let public = tempfile::tempdir().unwrap();
    open(public.path(), 0o755);
    let teiji = public.path().join("teiji");
    program::copy(Path::new(env!("CARGO_BIN_EXE_teiji")), &teiji);
    let status = || {
        let mut command = Command::new(&teiji);
        let command = command.args(["status", "--json", "--state"]).arg(fixture.state());
        let ran = command.uid(65534).gid(65534).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    open(fixture.dir.path(), 0o755);
    assert!(json(&status())["agent"].is_null(), "the folder is closed");
    open(&fixture.state(), 0o711);
    assert!(json(&status())["agent"].is_null(), "the socket is closed");
    open(&socket(&fixture), 0o666);
    assert!(json(&status())["agent"]["pid"].is_u64());
    // A change: this program as another user, as no command of teiji asks for changes without root.
    let client = public.path().join("client");
    program::copy(&std::env::current_exe().unwrap(), &client);
    let ask = |uid| {
        let mut command = Command::new(&client);
        let command =
            command.args(["--exact", "front::a_client_that_asks_for_a_change", "--ignored", "--nocapture"]);
        let ran = command
            .env("AGENT_SOCKET", socket(&fixture))
            .uid(uid)
            .gid(uid)
            .current_dir("/")
            .output()
            .unwrap();
        String::from_utf8(ran.stdout).unwrap() + &String::from_utf8(ran.stderr).unwrap()
    };
    let refused = ask(65534);
    assert!(refused.contains("answer: Err(Refused(NotRoot))"), "{refused}");
    let done = ask(0);
    assert!(done.contains("there is no trace 1"), "{done}");
}

#[test]
#[ignore = "a part of others_may_read_at_most, which runs it as another user"]
fn a_client_that_asks_for_a_change() {
    let socket = std::env::var_os("AGENT_SOCKET").unwrap();
    println!("answer: {:?}", ask(Path::new(&socket), &Order::StopTrace(1), TIMEOUT));
}

/// Somebody removes the socket, or puts another file in its place.
#[test]
fn a_socket_that_is_gone_is_made_again() {
    let fixture = Fixture::new(1);
    let agent = answering(&fixture);
    for other in [false, true] {
        fs::remove_file(socket(&fixture)).unwrap();
        if other {
            fs::write(socket(&fixture), "").unwrap();
        }
        assert!(within(|| status(&fixture).is_some_and(|s| s.agent.pid == agent.process.id())), "{other}");
    }
}

/// With other pins it may run; it takes neither the socket nor the policy from the first.
#[test]
fn a_second_agent_on_the_same_state_waits() {
    let (fixture, second) = (Fixture::new(1), Fixture::new(1));
    let mut agent = answering(&fixture);
    let other = Agent::start(&second, &fixture.state());
    other.says("another agent keeps");
    assert!(second.heartbeat_continues());
    assert_eq!(status(&fixture).unwrap().agent.pid, agent.process.id());
    assert_eq!(agent.end(), 0);
    assert!(within(|| status(&fixture).is_some_and(|s| s.agent.pid == other.process.id())));
}

#[test]
fn nobody_else_can_start_a_front() {
    let ran = Command::new(env!("CARGO_BIN_EXE_teiji"))
        .arg("front")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8(ran.stderr).unwrap().contains("part of `teiji agent`"));
}

/// A write to a file of the state directory that hangs, as on a disk that is gone.
#[test]
fn a_state_that_hangs_stops_neither_the_heartbeat_nor_the_answers_to_others() {
    let fixture = Fixture::new(1);
    let agent = answering(&fixture);
    // Who has the lock of the settings for ever; commands say so, and the agent tries again later.
    let mut holder = Command::new("flock")
        .arg("--no-fork")
        .arg(fixture.state().join("lock"))
        .args(["sleep", "1000"])
        .spawn()
        .unwrap();
    let lock = fixture.state().join("lock");
    assert!(within(|| !Command::new("flock")
        .args(["-n"])
        .arg(&lock)
        .arg("true")
        .status()
        .unwrap()
        .success()));
    // An answer may be a second old.
    assert!(within(|| status(&fixture).is_some_and(|s| s.status.busy && s.agent.pid == agent.process.id())));
    assert!(fixture.heartbeat_continues());
    holder.kill().unwrap();
    holder.wait().unwrap();
}
