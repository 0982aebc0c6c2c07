//! `plan`, `apply`, `status` and `policy` as people run them. What changes a host is tested in the lab
//! (experiments/tests).
#![allow(clippy::unwrap_used)]

#[path = "common/host.rs"]
mod host;
#[path = "common/program.rs"]
mod program;

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

/// A generated host, a policy and a folder for state.
struct FakeHost(tempfile::TempDir);

impl FakeHost {
    fn new(names: &[&str]) -> FakeHost {
        FakeHost(host::made_up(names))
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
    let host = FakeHost::new(&["sip1"]);
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
    let host = FakeHost::new(&["twin", "twin", "evil\x1b[2J"]);
    for (policy, place, parts) in [
        ("[vm.twin]\nvcpu_cpus = \"1\"\n", ":1:5: ", &["2 VMs", "pid:700", "pid:701"][..]),
        ("[vm.twni]\nvcpu_cpus = \"1\"\n", ":1:5: ", &["there is no VM `twni`", "`twin`"]),
        ("[vm.\"pid:700\"]\nvcpu_cpus = \"2-9\"\n", ":2:13: ", &["4-9 are not online", "0-3"]),
        ("[host]\ncpu_latency = \"1us\"\ncpu_latency_cpus = \"7\"\n", ":3:20: ", &["7 is not online"]),
        ("[link.eth9]\nirq_cpus = \"1\"\n", ":1:7: ", &["no link `eth9`"]),
        ("[vm.\"pid:700\"]\nweight = 5\n", ":2:10: ", &["control group", "cgroup"]),
        ("[vf.eth0.1]\nweight = 2\n", ":1:2: ", &["is not supported by this version yet"]),
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
fn a_plan_says_which_file_and_line_applies() {
    let host = FakeHost::new(&["sip1"]);
    let write = |name: &str, text: &str| {
        let path = host.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let base = write("20-base.toml", "[host]\nhalt_poll = \"500us\"\n[vm.sip1]\nvcpu_cpus = \"1\"\n");
    let site = write("10-site.toml", "[vm.sip1]\n# here\nvcpu_cpus = \"2\"\n");
    let plan = |files: &[&PathBuf], json: bool| {
        let mut command = host.command("plan", None);
        command.args(files).args(json.then_some("--json"));
        run(&mut command)
    };
    let shown = plan(&[&base, &site], false);
    assert_eq!(shown.code, 0, "{}", shown.err);
    let text = shown.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let (base_path, site_path) = (base.display(), site.display());
    for part in [
        "0-3 → 2",
        &format!("because of vm.sip1.vcpu_cpus ({site_path}:3)"),
        &format!("because of host.halt_poll ({base_path}:2)"),
        &format!(
            "[vm.sip1] vcpu_cpus = \"2\" ({site_path}:3) applies; overridden: vcpu_cpus = \"1\" ({base_path}:4)"
        ),
    ] {
        assert!(text.contains(part), "{part}: {}", shown.out);
    }
    let json: serde_json::Value = serde_json::from_str(&plan(&[&base, &site], true).out).unwrap();
    assert_eq!(json["asked"]["vm.sip1.vcpu_cpus"]["line"], 3);
    assert_eq!(json["asked"]["vm.sip1.vcpu_cpus"]["file"], site.to_str().unwrap());
    let overridden = &json["overridden"][0];
    assert_eq!(overridden["section"], "vm.sip1");
    assert_eq!(overridden["holds"]["text"], "vcpu_cpus = \"2\"");
    assert_eq!(overridden["over"][0]["place"]["file"], base.to_str().unwrap());
    // A value that lines of two files decide together.
    let class = write("30-class.toml", "[host]\ncpu_latency = \"20us\"\n");
    let cpus = write("40-cpus.toml", "[host]\n\ncpu_latency_cpus = \"1\"\n");
    let shown = plan(&[&class, &cpus], false);
    let text = shown.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let both = format!(
        "because of host.cpu_latency ({}:2) and cpu_latency_cpus ({}:3)",
        class.display(),
        cpus.display()
    );
    assert!(text.contains(&both), "{}{}", shown.out, shown.err);
    let json: serde_json::Value = serde_json::from_str(&plan(&[&class, &cpus], true).out).unwrap();
    let with = &json["asked"]["host.cpu_latency"]["with"][0];
    assert_eq!((&with["key"], &with["line"]), (&"cpu_latency_cpus".into(), &3.into()));
    // In the other order; and a directory in the order of its files' names, of which the base is the last.
    assert!(plan(&[&site, &base], false).out.contains("0-3 → 1"));
    let folder = host.0.path().join("policy.d");
    fs::create_dir(&folder).unwrap();
    for path in [&base, &site] {
        fs::copy(path, folder.join(path.file_name().unwrap())).unwrap();
    }
    assert!(plan(&[&folder], false).out.contains("0-3 → 1"));
    let check = run(Command::new(TEIJI).args(["policy", "check"]).args([&base, &site]));
    assert!(check.code == 0 && check.out.contains("applies; overridden"), "{} {}", check.out, check.err);
}

#[test]
fn policies_are_checked_without_a_host() {
    let host = FakeHost::new(&[]);
    let path = host.policy("[vm.a]\nclass = \"fiar\"\n[hots]\n");
    let check = run(Command::new(TEIJI).args(["policy", "check"]).arg(&path));
    assert_eq!(check.code, 1);
    assert!(check.err.contains("2 problems") && check.err.contains("`host`"), "{}", check.err);
    let path = host.policy("[vm.a]\nclass = \"fair\"\n");
    let check = run(Command::new(TEIJI).args(["policy", "check"]).arg(&path));
    assert!(check.code == 0 && check.out.contains("nothing wrong: 1 VM; "), "{} {}", check.out, check.err);
    let schema = run(Command::new(TEIJI).args(["policy", "schema"]));
    let schema: serde_json::Value = serde_json::from_str(&schema.out).unwrap();
    assert!(schema["properties"]["vm"].is_object());
}

#[test]
fn a_made_up_host_is_not_changed() {
    let host = FakeHost::new(&["sip1"]);
    let path = host.policy("[vm.sip1]\nvcpu_cpus = \"2\"\n");
    let apply = run(&mut host.command("apply", Some(&path)));
    assert!(apply.code == 1 && apply.err.contains("--root"), "{}", apply.err);
    assert!(!host.state().exists());
}

#[test]
fn without_root_a_plan_is_made_and_an_apply_says_what_it_needs() {
    let host = FakeHost::new(&["sip1"]);
    let path = host.policy("[vm.sip1]\nvcpu_cpus = \"2\"\n");
    // The program has to be in a place where anybody may run it.
    let teiji = host.0.path().join("teiji");
    program::copy(Path::new(TEIJI), &teiji);
    let as_nobody = |args: &[&str]| run(Command::new(&teiji).args(args).uid(65534).gid(65534));
    let (path, root) = (path.to_str().unwrap(), host.0.path().to_str().unwrap());
    let plan = as_nobody(&["plan", path, "--root", root]);
    assert!(plan.code == 0 && plan.out.contains("1 step"), "{} {}", plan.out, plan.err);
    for args in [&["apply", path][..], &["rollback"], &["confirm"], &["numa", "show"], &["numa", "advise"]] {
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
    let host = FakeHost::new(&[]);
    let missing = host.0.path().join("missing.toml");
    let plan = run(&mut host.command("plan", Some(&missing)));
    assert!(
        plan.code == 1 && plan.err.contains("missing.toml") && plan.err.contains("No such file"),
        "{}",
        plan.err
    );
}

/// The output of `teiji observe` for a host, in a file outside it.
fn observe(host: &FakeHost) -> (tempfile::TempDir, PathBuf) {
    let ran = run(&mut host.command("observe", None));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.json");
    fs::write(&file, ran.out).unwrap();
    (dir, file)
}

fn plan_for(file: &Path, policy: &Path, json: bool) -> Ran {
    let mut command = Command::new(TEIJI);
    command.env("LC_ALL", "C.UTF-8").arg("plan").arg(policy).arg("--host").arg(file);
    run(command.args(json.then_some("--json")))
}

#[test]
fn a_plan_for_an_observed_host_is_the_plan_on_that_host() {
    let host = FakeHost::new(&["sip1", "evil\x1b[2J"]);
    let dir = tempfile::tempdir().unwrap();
    let policies = [
        "[host]\nhalt_poll = \"500us\"\ncpu_latency = \"10us\"\n[vm.sip1]\nvcpu_cpus = \"2\"\nclass = \"realtime\"\n",
        "[host]\nhalt_poll = \"200us\"\n",
        "[link.eth0]\nrate = \"1gbit\"\n",
        "[vm.nobody]\nvcpu_cpus = \"9\"\n",
        "[link.eth0]\n[channel.a]\ndeadline = \"3ms\"\nmin_rate = \"1mbit\"\n",
    ];
    let write = |(i, text): (usize, &&str)| {
        let path = dir.path().join(format!("{i}.toml"));
        fs::write(&path, text).unwrap();
        path
    };
    let policies: Vec<PathBuf> = policies.iter().enumerate().map(write).collect();
    let parts = |ran: Ran| (ran.code, ran.out, ran.err);
    let there: Vec<_> = policies
        .iter()
        .flat_map(|policy| {
            let json = parts(run(host.command("plan", Some(policy)).arg("--json")));
            [parts(run(&mut host.command("plan", Some(policy)))), json]
        })
        .collect();
    assert_eq!(there.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1], "{there:#?}");
    assert!(there[0].1.contains("vCPU 0 of sip1"), "{there:#?}");
    let (_keep, file) = observe(&host);
    // The host need not exist any more.
    drop(host);
    let here = policies.iter().flat_map(|p| [false, true].map(|json| parts(plan_for(&file, p, json))));
    assert_eq!(here.collect::<Vec<_>>(), there);
}

/// Copies a file to the same path below another root, with the libraries that it needs.
fn into_root(root: &Path, program: &Path) {
    let copy = |from: &Path| {
        let to = root.join(from.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        program::copy(from, &to);
    };
    copy(program);
    let libraries = run(Command::new("ldd").arg(program));
    libraries
        .out
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .for_each(|path| copy(Path::new(path)));
}

#[test]
fn planning_for_another_host_needs_neither_root_nor_proc_nor_sys() {
    let host = FakeHost::new(&["sip1"]);
    let (_keep, file) = observe(&host);
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    into_root(root.path(), Path::new(TEIJI));
    fs::copy(&file, root.path().join("host.json")).unwrap();
    fs::write(root.path().join("p.toml"), "[vm.sip1]\nvcpu_cpus = \"2\"\n").unwrap();
    let mut command = Command::new("chroot");
    command.arg("--userspec=65534:65534").arg(root.path()).arg(TEIJI);
    let ran = run(command.args(["plan", "/p.toml", "--host", "/host.json"]).env("LC_ALL", "C.UTF-8"));
    assert!(ran.code == 0 && ran.out.contains("1 step to take"), "{} {}", ran.out, ran.err);
}

#[test]
fn an_observation_holds_no_command_lines() {
    let host = FakeHost::new(&["sip1"]);
    let line = host.0.path().join("proc/700/cmdline");
    let mut text = fs::read_to_string(&line).unwrap();
    text += "-object\0secret,id=s0,data=hunter2\0";
    fs::write(&line, text).unwrap();
    fs::write(host.0.path().join("proc/700/environ"), "TOKEN=hunter2\0").unwrap();
    let (_keep, file) = observe(&host);
    let text = fs::read_to_string(file).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["kind"].as_str(), json["schema"].as_u64()), (Some("teiji-host"), Some(2)));
    assert!(text.contains("sip1") && !text.contains("hunter2") && !text.contains("qemu-system"), "{text}");
}

#[test]
fn a_file_that_is_no_observation_is_refused_with_what_to_do() {
    let host = FakeHost::new(&["sip1"]);
    let (_keep, file) = observe(&host);
    let policy = host.policy("[vm.sip1]\nvcpu_cpus = \"2\"\n");
    let whole = fs::read_to_string(&file).unwrap();
    for (text, parts) in [
        (String::new(), ["it is not what `teiji observe` writes", "teiji observe > FILE"]),
        (
            "{\"schema\": 1, \"vms\": []}".into(),
            ["it is not what `teiji observe` writes", "teiji observe > FILE"],
        ),
        (whole[..whole.len() / 2].to_owned(), ["it is damaged (EOF", "on the host again"]),
        (whole.replace("\"0-3\"", "\"3-0\""), ["it is damaged (the range", "on the host again"]),
        (
            whole.replace("\"schema\": 2", "\"schema\": 7"),
            ["it is of form 7", "observe the host with this one"],
        ),
    ] {
        fs::write(&file, text).unwrap();
        let ran = plan_for(&file, &policy, false);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
        assert!(parts.iter().all(|p| ran.err.contains(p)) && ran.err.contains("host.json"), "{}", ran.err);
    }
    let ran = plan_for(Path::new("/nonexistent"), &policy, false);
    assert!(ran.code == 1 && ran.err.contains("No such file"), "{}", ran.err);
    // Options for this machine cannot be combined with `--host`, and a plan for another host is not carried out here.
    let other = ["--state", "/var/lib/teiji"];
    let ran = run(Command::new(TEIJI).arg("plan").arg(&policy).arg("--host").arg(&file).args(other));
    assert!(ran.code == 2 && ran.err.contains("--host"), "{}", ran.err);
    let ran = run(Command::new(TEIJI).arg("apply").arg(&policy).arg("--host").arg(&file));
    assert!(ran.code == 2 && ran.err.contains("run `teiji apply` on that host"), "{}", ran.err);
}

/// A host whose kernel supports teiji's qdisc, with one NIC; no agent is running.
fn without_an_agent(file: &Path, start: &str) {
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let device = serde_json::json!({"name": "eth0", "index": 2});
    let observed = &mut json["observed"];
    observed["deadlines"] = serde_json::json!({"no-agent": start});
    observed["links"] = serde_json::json!([{
        "name": "eth0", "index": 2, "kind": "nic", "irqs": [], "speed": 1_000_000_000_u64, "mtu": 1500, "guests": false,
    }]);
    let stock = serde_json::json!({"queue": {"stock": {"kind": "fq_codel", "chosen": false, "options": []}}});
    observed["settings"].as_array_mut().unwrap().extend([
        serde_json::json!([{"queue": device}, stock]),
        serde_json::json!([{"segment-size": device}, {"bytes": 65536}]),
    ]);
    fs::write(file, json.to_string()).unwrap();
}

#[test]
fn without_an_agent_a_plan_shows_what_channels_would_be_guaranteed() {
    let host = FakeHost::new(&["sip1"]);
    let (_keep, file) = observe(&host);
    without_an_agent(
        &file,
        "start the agent: `systemctl start teiji-agent`, or `teiji agent`; none is running\x1b[2J",
    );
    let policy = host.policy(
        "[vm.sip1]\nvcpu_cpus = \"2\"\n[channel.sip]\nlink = \"eth0\"\ndeadline = \"3ms\"\nmin_rate = \"2mbit\"\n",
    );
    let plan = plan_for(&file, &policy, false);
    assert_eq!(plan.code, 0, "{}", plan.err);
    let place = |part: &str| plan.out.find(part).unwrap_or_else(|| panic!("{part}: {}", plan.out));
    assert!(plan.out.starts_with("first  start the agent: `systemctl start teiji-agent`"), "{}", plan.out);
    assert!(place("start the agent") < place("vCPU 0 of sip1"), "{}", plan.out);
    assert!(place("root qdisc of eth0") < place("deadline   within  of it"), "{}", plan.out);
    assert!(plan.out.contains("sip      2mbit  3084b   3.00 ms"), "{}", plan.out);
    assert!(!plan.out.contains('\x1b') && plan.out.lines().all(|l| l.chars().count() <= 100), "{}", plan.out);
    let json = plan_for(&file, &policy, true);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert!(json["first"][0].as_str().unwrap().starts_with("start the agent"), "{json}");
    assert_eq!(json["links"][0]["channels"][0]["deadline"], 3_000_000, "{json}");
    // None of this is reported for a policy without channels.
    let plan = plan_for(&file, &host.policy("[vm.sip1]\nvcpu_cpus = \"2\"\n"), false);
    assert!(!plan.out.contains("agent"), "{}", plan.out);
}
