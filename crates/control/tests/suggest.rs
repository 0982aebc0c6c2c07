//! What is suggested for each cause, on each host.
#![allow(clippy::unwrap_used)]

mod common;
mod reports;

use common::{cpus, host, task, vm};
use proptest::prelude::*;
use reports::{MS, US, any_report, blamed, find, named, of, on, part, report, sleeping};
use teiji_control::plan::plan;
use teiji_control::suggest::suggest;
use teiji_model::finding::{PolicyChange, PolicyLine};
use teiji_model::host::{DataPlane, Nic};
use teiji_model::observed::Observed;
use teiji_model::plan::Held;
use teiji_model::policy::{MAX_BYTES, MAX_HALT_POLL, Policy, Source};
use teiji_model::report::{Preemptor, Report};
use teiji_model::resource::{Latency, Resource, ResourceError, Scheduling, Value};
use teiji_model::stage::{Actor, Stage, ThreadState};

use Stage::{Guest, Irq, Qdisc, TapQueue, VcpuWake, VhostRx, VhostTx};
use ThreadState::{Asleep, Ready};

/// The text, which has only printable characters, and the policy that it parses to.
#[track_caller]
fn parsed(report: &Report, observed: Option<&Observed>) -> (String, Policy) {
    let text = suggest(report, observed).to_string();
    assert!(!text.replace('\n', "").chars().any(char::is_control), "{text:?}");
    match teiji_policy::parse(&[Source { name: "fix.toml".into(), text: text.clone() }]) {
        Ok(policy) => (text, policy),
        Err(problems) => panic!("{problems:#?} in\n{text}"),
    }
}

/// Like [`parsed`], and planned for the host.
#[track_caller]
fn planned(report: &Report, observed: &Observed) -> (String, Policy) {
    let (text, policy) = parsed(report, Some(observed));
    if let Err(problems) = plan(&policy, observed, &Held::default()) {
        panic!("{problems:#?} in\n{text}");
    }
    (text, policy)
}

/// The lines that are not comments.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect()
}

/// The comments as one text.
fn comments(text: &str) -> String {
    let comments = text.lines().filter_map(|l| l.strip_prefix('#'));
    comments.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    let comments = comments(text);
    for part in parts {
        assert!(comments.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn every_cause_has_its_lines_or_a_reason_for_none() {
    for stage in Stage::ALL {
        for state in ThreadState::ALL.into_iter().map(Some).chain([None]) {
            let report = report(vec![blamed("sip1", 100, stage, state)]);
            let (text, policy) = parsed(&report, None);
            let wanted: &[&str] = match (stage, state) {
                (VcpuWake | Guest | TapQueue | VhostTx, Some(Ready)) => {
                    &["[vm.sip1]", "class = \"realtime\""]
                }
                (VcpuWake, Some(Asleep)) => &["[host]", "halt_poll = \"1ms\""],
                (TapQueue | VhostTx, Some(Asleep)) => &["[host]", "cpu_latency = \"2us\""],
                _ => {
                    says(&text, &["no key of a policy helps; "]);
                    &[]
                }
            };
            assert_eq!(lines(&text), wanted, "{stage:?} {state:?}");
            let has = |line: &str| wanted.iter().any(|w| w.starts_with(line));
            assert_eq!(policy.vms.iter().any(|vm| vm.class.is_some()), has("class"));
            assert_eq!(policy.host.halt_poll.is_some(), has("halt_poll"));
            assert_eq!(policy.host.cpu_latency.is_some(), has("cpu_latency"));
            says(&text, &["sip1 (pid 100): it is slow", stage.name()]);
            assert_eq!(comments(&text).contains("Costs: "), !wanted.is_empty(), "{text}");
        }
    }
}

#[test]
fn without_a_verdict_there_is_nothing() {
    let mut vm = blamed("sip1", 100, VcpuWake, Some(Ready));
    vm.total = None;
    let (text, _) = parsed(&report(vec![vm]), None);
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["nothing to judge by"]);
    assert_eq!(lines(&parsed(&report(Vec::new()), None).0), [""; 0]);
}

#[test]
fn parts_with_an_eighth_count_as_well() {
    for (time, fluctuation, counts) in [
        (0.124, 0.124, false),
        (0.125, 0.0, true),
        (0.0, 0.125, true),
        (f64::NAN, f64::NAN, false),
        (0.0, -0.9, false),
    ] {
        let mut vm = blamed("sip1", 100, Qdisc, None);
        part(&mut vm, TapQueue, Ready, 50 * US, time, fluctuation);
        part(&mut vm, VcpuWake, Asleep, 50 * US, time, fluctuation);
        let (text, _) = parsed(&report(vec![vm]), None);
        let all = ["[host]", "halt_poll = \"1ms\"", "[vm.sip1]", "class = \"realtime\""];
        assert_eq!(lines(&text), if counts { &all[..] } else { &[] }, "{time} {fluctuation}");
        says(&text, &["qdisc"]);
    }
    // Both kinds of threads wait: there is one section.
    let mut vm = blamed("sip1", 100, VhostTx, Some(Ready));
    part(&mut vm, VcpuWake, Ready, 50 * US, 0.4, 0.4);
    assert_eq!(lines(&parsed(&report(vec![vm]), None).0), ["[vm.sip1]", "class = \"realtime\""]);
}

#[test]
fn polling_covers_the_gap_between_requests() {
    let asleep = |gap| sleeping("sip1", 100, gap);
    for (gap, value) in [
        (50 * US, "200us"),
        (200 * US, "200us"),
        (800 * US, "1ms"),
        (3 * MS, "5ms"),
        (9 * MS, "10ms"),
        (15 * MS, "10ms"),
    ] {
        let (text, policy) = parsed(&asleep(gap), None);
        assert_eq!(lines(&text), ["[host]", &format!("halt_poll = \"{value}\"")]);
        assert!(gap > MAX_HALT_POLL || policy.host.halt_poll.unwrap().value >= gap);
    }
    says(&parsed(&asleep(3 * MS), None).0, &["come 3.00 ms apart", "up to 5.00 ms of CPU time"]);
    says(&parsed(&asleep(15 * MS), None).0, &["polling will not bridge that", "49 % of them"]);
    let (text, _) = parsed(&asleep(250 * MS), None);
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["250 ms apart", "polling will not bridge that", "10.0 ms at most", "cpu_latency"]);
    let mut unseen = asleep(MS);
    unseen.vms[0].requests = Default::default();
    find(&mut unseen);
    says(&parsed(&unseen, None).0, &["no request was seen"]);

    let mut observed = host("0-3", vec![vm("sip1", 100, 1, 1, None, false)], Vec::new());
    assert_eq!(lines(&planned(&asleep(3 * MS), &observed).0), ["[host]", "halt_poll = \"5ms\""]);
    observed.settings.insert(Resource::HaltPoll, Value::Nanoseconds(5 * MS));
    let (text, _) = planned(&asleep(3 * MS), &observed);
    assert_eq!(lines(&text), [""; 0], "it is never shortened");
    says(&text, &["KVM polls for 5.00 ms already"]);
    let why = ResourceError::Unsupported("kvm is not loaded".into());
    observed.settings.record(Resource::HaltPoll, Err(why));
    let (text, _) = planned(&asleep(3 * MS), &observed);
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["halt_poll = \"5ms\" would help", "cannot be read", "kvm is not loaded"]);
}

#[test]
fn every_change_is_a_line_that_a_policy_takes() {
    for change in [
        PolicyChange::Realtime { threads: Actor::Worker },
        PolicyChange::HaltPoll { ns: MAX_HALT_POLL, gap: 1 },
        PolicyChange::CpuLatency { us: 2 },
    ] {
        let PolicyLine { section, key, value } = change.line();
        let header = if section == "vm" { "[vm.a]" } else { "[host]" };
        let text = format!("{header}\n{key} = {value}\n");
        let policy = teiji_policy::parse(&[Source { name: "p".into(), text }]).unwrap();
        assert!(policy.vms.iter().any(|vm| vm.class.is_some()) || policy.host != Default::default());
    }
}

#[test]
fn the_longest_polling_is_the_longest_that_a_policy_takes() {
    let parse = |ns| {
        teiji_policy::parse(&[Source { name: "p".into(), text: format!("[host]\nhalt_poll = \"{ns}ns\"") }])
    };
    assert!(parse(MAX_HALT_POLL).is_ok() && parse(MAX_HALT_POLL + 1).is_err());
}

#[test]
fn the_host_gets_what_its_most_demanding_vm_needs() {
    let mut both = sleeping("a", 100, MS);
    let mut second = both.vms[0].clone();
    (second.name, second.pid) = ("b".into(), 200);
    second.requests.seen /= 4;
    second.requests.complete = 0;
    both.vms.push(second);
    find(&mut both);
    let suggestion = suggest(&both, None);
    assert_eq!(lines(&suggestion.to_string()), ["[host]", "halt_poll = \"5ms\""]);
    says(&suggestion.to_string(), &["for a, b: KVM polls"]);
    for advice in &suggestion.vms {
        assert!(suggestion.of(advice).contains(&"halt_poll = \"5ms\"".to_owned()));
    }
}

#[test]
fn cpus_are_kept_awake_where_workers_wake_up_from_deep_sleep() {
    let asleep = |ns| {
        let mut vm = blamed("sip1", 100, TapQueue, Some(Asleep));
        vm.stages.clear();
        part(&mut vm, TapQueue, Asleep, ns, 0.5, 0.5);
        report(vec![vm])
    };
    assert_eq!(lines(&parsed(&asleep(70 * US), None).0), ["[host]", "cpu_latency = \"2us\""]);
    for (ns, why) in [(3 * US, "is usual on a CPU that is awake"), (5 * MS, "from any idle state")] {
        let (text, _) = parsed(&asleep(ns), None);
        assert_eq!(lines(&text), [""; 0]);
        says(&text, &[why]);
    }
    let mut observed = host("0-3", vec![vm("sip1", 100, 1, 1, None, false)], Vec::new());
    assert_eq!(lines(&planned(&asleep(70 * US), &observed).0), ["[host]", "cpu_latency = \"2us\""]);
    observed.settings.insert(Resource::ThreadCpus(task(102)), Value::Cpus(cpus("1-2")));
    observed.settings.insert(Resource::CpuLatency(1), Value::Latency(Latency::None));
    let (text, _) = planned(&asleep(70 * US), &observed);
    assert_eq!(lines(&text), ["[host]", "cpu_latency = \"2us\"", "cpu_latency_cpus = \"2\""]);
    observed.settings.insert(Resource::CpuLatency(2), Value::Latency(Latency::AtMost(2)));
    let (text, _) = planned(&asleep(70 * US), &observed);
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["do not enter deep idle states now", "poll-us"]);
    observed.settings.remove(&Resource::CpuLatency(2));
    says(&planned(&asleep(70 * US), &observed).0, &["wake-up latency of CPU 2 cannot be read"]);
}

const CLASS: &str = "class = \"realtime\"";

#[test]
fn threads_are_pinned_only_if_they_could_take_every_cpu() {
    let waits = on(&[("sip1", 100)]);
    let enough = host("0-3", vec![vm("sip1", 100, 2, 1, None, false)], Vec::new());
    assert_eq!(lines(&planned(&waits, &enough).0), ["[vm.sip1]", CLASS]);

    let mut few = host("0-2", vec![vm("sip1", 100, 2, 1, None, false)], Vec::new());
    let (text, _) = planned(&waits, &few);
    assert_eq!(lines(&text), ["[vm.sip1]", CLASS, "vcpu_cpus = \"1-2\"", "worker_cpus = \"1-2\""]);
    says(&text, &["a CPU is left for the host", "its 3 real-time threads share 2 CPUs"]);
    // Here the pinning of threads is kept: they do not use CPU 2.
    few.settings.insert(Resource::ThreadCpus(task(101)), Value::Cpus(cpus("0")));
    few.settings.insert(Resource::ThreadCpus(task(102)), Value::Cpus(cpus("1")));
    few.vms[0].vm.vcpus = vec![reports::vcpu(101, 0), reports::vcpu(102, 1)];
    assert_eq!(lines(&planned(&waits, &few).0), ["[vm.sip1]", CLASS, "worker_cpus = \"0-1\""]);
    // All are on one CPU, where someone has put them: nobody can take the other.
    let mut two = host("0-1", vec![vm("sip1", 100, 1, 1, None, false)], Vec::new());
    for id in [101, 102] {
        two.settings.insert(Resource::ThreadCpus(task(id)), Value::Cpus(cpus("1")));
    }
    let (text, _) = planned(&waits, &two);
    assert_eq!(lines(&text), ["[vm.sip1]", CLASS]);
    says(&text, &["its 2 real-time threads share 1 CPU:"]);

    let one = host("0", vec![vm("sip1", 100, 1, 0, None, false)], Vec::new());
    let (text, _) = planned(&waits, &one);
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["every online CPU (0) at once", "leaves none"]);
}

#[test]
fn vms_that_do_not_fit_together_are_left_out() {
    let waits = on(&[("a", 100), ("b", 200)]);
    let vms = || vec![vm("a", 100, 1, 0, None, false), vm("b", 200, 1, 0, None, false)];
    let (text, _) = planned(&waits, &host("0-1", vms(), Vec::new()));
    assert_eq!(
        lines(&text),
        ["[vm.a]", CLASS, "vcpu_cpus = \"1\"", "[vm.b]", CLASS, "vcpu_cpus = \"1\""],
        "each is pinned, although each alone would leave a CPU"
    );
    // A real-time thread of another VM that may run on every CPU cannot be pinned.
    let with_stranger = |online| {
        let mut all = vms();
        all.push(vm("other", 300, 1, 0, None, false));
        let mut host = host(online, all, Vec::new());
        let fifo = Value::Scheduling(Scheduling::Fifo { priority: 1 });
        host.settings.insert(Resource::ThreadScheduling(task(301)), fifo);
        host
    };
    let (text, _) = planned(&waits, &with_stranger("0-2"));
    assert_eq!(lines(&text), ["[vm.a]", CLASS]);
    says(&text, &["b (pid 200)", "every online CPU (0-2) at once"]);
    let mut host = with_stranger("0-2");
    host.settings.insert(Resource::ThreadCpus(task(301)), Value::Cpus(cpus("0")));
    let (text, _) = planned(&waits, &host);
    assert_eq!(
        lines(&text),
        ["[vm.a]", CLASS, "vcpu_cpus = \"0,2\"", "[vm.b]", CLASS, "vcpu_cpus = \"0,2\""]
    );
    // Nor can a thread of its own whose CPUs could not be restored.
    let mut host = host_of_two();
    host.settings.remove(&Resource::ThreadCpus(task(101)));
    assert_eq!(lines(&planned(&on(&[("sip1", 100)]), &host).0), [""; 0]);
}

/// A VM that is left out keeps its present real-time threads, wherever they may run.
#[test]
fn a_vm_that_would_stand_still_still_counts_for_the_others() {
    let waits = on(&[("a", 100), ("big", 300)]);
    let vms = vec![vm("a", 100, 2, 1, None, false), vm("big", 300, 3, 0, None, false)];
    let mut host = host("0-2", vms, Vec::new());
    let fifo = Value::Scheduling(Scheduling::Fifo { priority: 1 });
    host.settings.insert(Resource::ThreadScheduling(task(303)), fifo);
    let (text, _) = planned(&waits, &host);
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["a (pid 100)", "would let its 3 vCPUs share fewer CPUs", "every online CPU (0-2) at once"]);
    // If it is pinned to a CPU of its own, the other VM has the rest.
    host.settings.insert(Resource::ThreadCpus(task(303)), Value::Cpus(cpus("2")));
    host.settings.insert(Resource::ThreadCpus(task(301)), Value::Cpus(cpus("2")));
    let (text, _) = planned(&waits, &host);
    assert!(text.contains("[vm.a]") && !text.contains("[vm.big]"), "{text}");
}

fn host_of_two() -> Observed {
    host("0-1", vec![vm("sip1", 100, 1, 1, None, false)], Vec::new())
}

#[test]
fn a_class_that_cannot_be_had_is_explained() {
    let waits = on(&[("sip1", 100)]);
    let base = host("0-7", vec![vm("sip1", 100, 1, 1, None, false)], Vec::new());
    let message = |change: &dyn Fn(&mut Observed), part: &str| {
        let mut observed = base.clone();
        change(&mut observed);
        let (text, _) = planned(&waits, &observed);
        assert_eq!(lines(&text), [""; 0]);
        says(&text, &[part]);
    };
    let set = |o: &mut Observed, id, s| {
        o.settings.insert(Resource::ThreadScheduling(task(id)), Value::Scheduling(s))
    };
    let fifo = Scheduling::Fifo { priority: 50 };
    message(&|o| o.realtime_guard = None, "set kernel.sched_rt_runtime_us to 950000");
    message(
        &|o| drop(o.settings.remove(&Resource::ThreadScheduling(task(102)))),
        "scheduling of thread 102 cannot be read",
    );
    message(&|o| o.vms[0].vcpus.clear(), "debug-threads=on");
    message(&|o| o.vms.clear(), "the VM is not on this host any more");
    message(&|o| drop(set(o, 101, fifo)), "real-time already (FIFO 50)");
    let deadline = Scheduling::Deadline { runtime: 1, deadline: 2, period: 2 };
    message(&|o| drop(set(o, 102, deadline)), "deadlines already");
    // The other threads of the VM are real-time, those that wait are not: no priority is lowered. That of a worker is
    // one higher than in the policy.
    let mut observed = base.clone();
    set(&mut observed, 102, fifo);
    assert_eq!(lines(&planned(&waits, &observed).0), ["[vm.sip1]", CLASS, "priority = 49"]);
}

/// Its thread would wait for the vCPUs.
#[test]
fn a_vm_that_serves_its_tap_itself_gets_no_class() {
    let mut report = on(&[("sip1", 100)]);
    assert_eq!(lines(&parsed(&report, None).0), ["[vm.sip1]", CLASS]);
    report.meta.vms[0].nics = vec![Nic {
        tap: "tap0".into(),
        ifindex: 5,
        mac: None,
        bridge: None,
        data_plane: DataPlane::Userspace,
        queues: 1,
    }];
    let text = parsed(&report, None).0;
    assert_eq!(lines(&text), [""; 0]);
    says(&text, &["vhost=on"]);
}

#[test]
fn waits_behind_its_own_threads_are_told() {
    let mut report = on(&[("sip1", 100)]);
    report.meta.vms[0].workers = vec![reports::worker(102, 0)];
    let preemptor = |tid, share| Preemptor { tid, name: "x".into(), share };
    report.vms[0].findings[0].preempted_by = vec![preemptor(7, 0.7), preemptor(102, 0.3)];
    says(&parsed(&report, None).0, &["30 % of the waits were caused by threads of its own"]);
    report.vms[0].findings[0].preempted_by = vec![preemptor(7, 0.9), preemptor(102, 0.1)];
    assert!(!parsed(&report, None).0.contains("of its own"));
}

#[test]
fn sections_mean_the_vm_whatever_it_is_called() {
    let long = "ü".repeat(100);
    for (name, header) in [
        ("sip1", "[vm.sip1]"),
        ("media.1", "[vm.\"media.1\"]"),
        ("a\"]\\", "[vm.\"a\\\"]\\\\\"]"),
        ("büro", "[vm.\"b\\u00FCro\"]"),
        ("x\u{202e}y", "[vm.\"x\\u202Ey\"]"),
        ("", "[vm.\"pid:100\"]"),
        (" \u{3000}", "[vm.\"pid:100\"]"),
        ("evil\n[host]\nhalt_poll = 1", "[vm.\"pid:100\"]"),
        ("pid:7", "[vm.\"pid:100\"]"),
        ("pid:100", "[vm.\"pid:100\"]"),
        (&long, "[vm.\"pid:100\"]"),
    ] {
        let observed = host("0-7", vec![vm(name, 100, 1, 1, None, false)], Vec::new());
        let (text, policy) = planned(&on(&[(name, 100)]), &observed);
        assert_eq!(lines(&text), [header, CLASS]);
        assert!([name, "pid:100"].contains(&policy.vms[0].name.value.as_str()));
    }
    let twins = on(&[("twin", 100), ("twin", 200)]);
    let wanted = ["[vm.\"pid:100\"]", CLASS, "[vm.\"pid:200\"]", CLASS];
    assert_eq!(lines(&parsed(&twins, None).0), wanted);
    // The other VM is on the host and was not traced.
    let two = vec![vm("twin", 100, 1, 1, None, false), vm("twin", 200, 1, 1, None, false)];
    assert_eq!(lines(&planned(&on(&[("twin", 100)]), &host("0-7", two, Vec::new())).0), wanted[..2]);
    // The name belongs to another VM by now.
    let swapped = vec![vm("b", 100, 1, 1, None, false), vm("a", 200, 1, 1, None, false)];
    assert_eq!(lines(&planned(&on(&[("a", 100)]), &host("0-7", swapped, Vec::new())).0), wanted[..2]);
}

/// A VM that cannot have the class is not pinned either, and its present real-time threads may take the CPU that was to
/// be left free.
#[test]
fn a_vm_that_is_left_as_it_is_counts_with_the_cpus_that_it_has() {
    let mut observed =
        host("0-1", vec![vm("a", 100, 2, 0, None, false), vm("b", 300, 1, 1, None, false)], Vec::new());
    let fifo = Value::Scheduling(Scheduling::Fifo { priority: 10 });
    observed.settings.insert(Resource::ThreadScheduling(task(101)), fifo);
    let (text, policy) = planned(&on(&[("a", 100), ("b", 300)]), &observed);
    assert!(policy.vms.is_empty(), "{text}");
    says(&text, &["share fewer CPUs (1)", "every online CPU (0-1) at once"]);
}

#[test]
fn what_has_no_section_has_a_reason() {
    let mut ended = on(&[("sip1", 100)]);
    ended.counters.vanished = vec![100];
    // A VM that ended after the list `vanished` was full: only its own `ended` says so.
    let mut ended_unlisted = on(&[("sip1", 100)]);
    ended_unlisted.vms[0].ended = Some(5);
    for (report, why, sections) in [
        (on(&[("tap0", 0)]), "a tap alone", 0),
        (on(&[("x", u32::MAX)]), "process id", 0),
        (ended, "has ended", 0),
        (ended_unlisted, "has ended", 0),
        (on(&[("a", 100), ("b", 100)]), "the same process", 1),
    ] {
        let (text, policy) = parsed(&report, None);
        assert_eq!(policy.vms.len(), sections);
        says(&text, &["class = \"realtime\" would help, but", why]);
    }
}

#[test]
fn many_vms_fit_a_policy() {
    let mut all = on(&[]);
    for pid in 1..=1024 {
        let name = format!("{pid}{}", "\u{1f600}".repeat(25));
        all.vms.extend(on(&[(&name, pid)]).vms);
        all.vms.last_mut().unwrap().verdict.headline = "\u{202e}".repeat(1000);
    }
    let (text, policy) = parsed(&all, None);
    assert!(text.len() <= MAX_BYTES, "{}", text.len());
    assert_eq!(policy.vms.len(), 1024);
}

#[test]
fn the_same_arguments_give_the_same_text() {
    let report = of(vec![("irq", Irq), ("ring", VhostRx)]);
    assert_eq!(suggest(&report, None), suggest(&report, None));
    let text = parsed(&report, None).0;
    assert!(text.find("irq (pid").unwrap() < text.find("ring (pid").unwrap(), "{text}");
}

proptest! {
    #[test]
    fn any_report_gives_a_policy(report in any_report()) {
        let (_, policy) = parsed(&report, None);
        prop_assert!(policy.vms.iter().all(|vm| vm.class.is_some()));
    }

    #[test]
    fn any_report_of_a_host_gives_a_plan((report, observed) in named()) {
        planned(&report, &observed);
    }
}
