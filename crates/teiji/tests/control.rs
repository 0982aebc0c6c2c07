//! plan, apply, status, policy as people run them; what changes a host is tried in the lab (experiments/tests).
#![allow(clippy::unwrap_used)]

#[path = "common/host.rs"]
mod host;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TEIJI: &str = env!("CARGO_BIN_EXE_teiji");

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// A made-up host, a policy and a place for state.
struct Host(tempfile::TempDir);

impl Host {
    fn new(names: &[&str]) -> Host {
        Host(host::made_up(names))
    }

    fn policy(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("policy.toml");
        fs::write(&path, text).unwrap();
        path
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn command(&self, what: &str, policy: Option<&Path>) -> Command {
        let mut command = Command::new(TEIJI);
        command
            .env("LC_ALL", "C.UTF-8")
            .arg(what)
            .args(policy)
            .arg("--state")
            .arg(self.state())
            .arg("--root")
            .arg(self.0.path());
        command
    }

    fn plan(&self, text: &str) -> Ran {
        run(&mut self.command("plan", Some(&self.policy(text))))
    }
}

#[test]
fn a_plan_shows_each_step_and_touches_nothing() {
    let host = Host::new(&["sip1"]);
    let plan =
        host.plan("[host]\nhalt_poll = \"500us\"\ncpu_latency = \"10us\"\n[vm.sip1]\nvcpu_cpus = \"2\"\n");
    assert_eq!(plan.code, 0, "{}", plan.err);
    for part in [
        "vCPU 0 of sip1",
        "0-3 → 2",
        "vm.sip1.vcpu_cpus",
        "kvm.halt_poll_ns",
        "200 µs → 500 µs",
        "cost: ",
        "6 steps",
    ] {
        assert!(plan.out.contains(part), "{part}: {}", plan.out);
    }
    assert!(plan.out.lines().all(|l| l.chars().count() <= 100), "{}", plan.out);
    assert!(!host.state().exists());
    let json = run(host.command("plan", Some(&host.0.path().join("policy.toml"))).arg("--json"));
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json["schema"].as_u64(), json["steps"].as_array().unwrap().len()), (Some(1), 6));
    let unused = host.plan("[link.eth0]\nrate = \"1gbit\"\n");
    assert_eq!(unused.code, 0, "{}", unused.err);
    assert!(
        unused.out.contains("`link.eth0.rate` has no effect: no channel leaves by eth0"),
        "{}",
        unused.out
    );
    let nothing = host.plan("[host]\nhalt_poll = \"200us\"\n");
    assert_eq!((nothing.code, nothing.out.contains("nothing to change")), (0, true), "{}", nothing.out);
}

#[test]
fn what_a_host_cannot_keep_is_said_with_its_place() {
    let host = Host::new(&["twin", "twin", "evil\x1b[2J"]);
    for (policy, place, parts) in [
        ("[vm.twin]\nvcpu_cpus = \"1\"\n", ":1:5: ", &["2 VMs", "pid:700", "pid:701"][..]),
        ("[vm.twni]\nvcpu_cpus = \"1\"\n", ":1:5: ", &["there is no VM `twni`", "`twin`"]),
        ("[vm.\"pid:700\"]\nvcpu_cpus = \"2-9\"\n", ":2:13: ", &["4-9 are not online", "0-3"]),
        ("[host]\ncpu_latency = \"1us\"\ncpu_latency_cpus = \"7\"\n", ":3:20: ", &["7 is not online"]),
        ("[link.eth9]\nirq_cpus = \"1\"\n", ":1:7: ", &["no link `eth9`"]),
        ("[vm.\"pid:700\"]\nweight = 5\n", ":2:10: ", &["control group", "cgroup"]),
        ("[vf.eth0.1]\nweight = 2\n", ":1:2: ", &["cannot be kept yet"]),
        (
            "[channel.a]\ndeadline = \"3ms\"\nmin_rate = \"1mbit\"\n",
            ":1:10: ",
            &["there is no [link.NAME] that it could leave by", "link = \"eth0\""],
        ),
        (
            "[link.eth0]\n[channel.a]\ndeadline = \"3ms\"\nmin_rate = \"1mbit\"\n",
            ":2:10: ",
            &["deadlines cannot be kept: "],
        ),
    ] {
        let plan = host.plan(policy);
        assert_eq!((plan.code, plan.out.as_str()), (1, ""), "{policy}: {}", plan.err);
        assert!(plan.err.contains(place), "{policy}: {}", plan.err);
        assert!(parts.iter().all(|p| plan.err.contains(p)), "{policy}: {}", plan.err);
        assert!(!plan.err.contains('\x1b'), "{:?}", plan.err);
        let lines: Vec<&str> = plan.err.lines().collect();
        let caret = lines.iter().position(|l| l.trim() == "^").unwrap_or_else(|| panic!("{}", plan.err));
        let column: usize = place.split(':').nth(2).unwrap().parse().unwrap();
        assert_eq!(lines[caret].find('^'), Some(column + 1), "{}", plan.err);
    }
}

#[test]
fn policies_are_checked_without_a_host() {
    let host = Host::new(&[]);
    let path = host.policy("[vm.a]\nclass = \"fiar\"\n[hots]\n");
    let check = run(Command::new(TEIJI).args(["policy", "check"]).arg(&path));
    assert_eq!(check.code, 1);
    assert!(check.err.contains("2 problems") && check.err.contains("`host`"), "{}", check.err);
    let path = host.policy("[vm.a]\nclass = \"fair\"\n");
    let check = run(Command::new(TEIJI).args(["policy", "check"]).arg(&path));
    assert!(check.code == 0 && check.out.contains("1 VM, "), "{} {}", check.out, check.err);
    let schema = run(Command::new(TEIJI).args(["policy", "schema"]));
    let schema: serde_json::Value = serde_json::from_str(&schema.out).unwrap();
    assert!(schema["properties"]["vm"].is_object());
}

#[test]
fn a_made_up_host_is_not_changed() {
    let host = Host::new(&["sip1"]);
    let path = host.policy("[vm.sip1]\nvcpu_cpus = \"2\"\n");
    let apply = run(&mut host.command("apply", Some(&path)));
    assert!(apply.code == 1 && apply.err.contains("--root"), "{}", apply.err);
    assert!(!host.state().exists());
}

#[test]
fn without_root_a_plan_is_made_and_an_apply_says_what_it_needs() {
    let host = Host::new(&["sip1"]);
    let path = host.policy("[vm.sip1]\nvcpu_cpus = \"2\"\n");
    // The program has to be where anybody may run it.
    let program = host.0.path().join("teiji");
    fs::copy(TEIJI, &program).unwrap();
    let as_nobody = |args: &[&str]| run(Command::new(&program).args(args).uid(65534).gid(65534));
    let (path, root) = (path.to_str().unwrap(), host.0.path().to_str().unwrap());
    let plan = as_nobody(&["plan", path, "--root", root]);
    assert!(plan.code == 0 && plan.out.contains("1 step"), "{} {}", plan.out, plan.err);
    for args in [&["apply", path][..], &["rollback"], &["confirm"]] {
        let ran = as_nobody(args);
        assert!(
            ran.code == 1 && ran.err.contains("root is needed") && ran.err.contains("sudo"),
            "{}",
            ran.err
        );
    }
    let status = as_nobody(&["status", "--state", host.state().to_str().unwrap()]);
    assert!(status.code == 0 && status.out.contains("holds nothing"), "{} {}", status.out, status.err);
}

#[test]
fn no_policy_at_all_is_said() {
    let host = Host::new(&[]);
    let missing = host.0.path().join("missing.toml");
    let plan = run(&mut host.command("plan", Some(&missing)));
    assert!(
        plan.code == 1 && plan.err.contains("missing.toml") && plan.err.contains("No such file"),
        "{}",
        plan.err
    );
}
