//! Several files that set one thing: the last file takes precedence, key by key, and the overridden lines are reported.

use super::*;

fn file(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

/// The overridden lines, as `section: line (file:line) over …`.
fn overridden(policy: &Policy) -> Vec<String> {
    let line = |l: &Line| format!("{} ({}:{})", l.text, l.location.file, l.location.line);
    let one = |o: &Overridden| {
        format!(
            "{}: {} over {}",
            o.section,
            line(&o.holds),
            o.over.iter().map(line).collect::<Vec<_>>().join(", ")
        )
    };
    policy.overridden.iter().map(one).collect()
}

#[test]
fn the_last_file_holds_key_by_key() {
    let policy = parse(&[
        file("a.toml", "[host]\nhalt_poll = \"off\"\n[vm.\"x.y\"]\nweight = 1\nquota = \"50%\"\n"),
        file("b.toml", "[vm.\"x.y\"]\nweight = 2\n[vm.z]\nweight = 9\n"),
        file("c.toml", "[vm.\"x.y\"]\nweight = 3\n[host]\nvm_users = \"nova\"\n"),
    ])
    .unwrap();
    let names: Vec<String> =
        policy.vms.iter().map(|vm| format!("{} {}", vm.name.value, vm.name.location)).collect();
    assert_eq!(names, ["x.y a.toml:3:5", "z b.toml:3:5"]);
    let vm = &policy.vms[0];
    assert_eq!(
        vm.weight.as_ref().map(|at| (at.value, at.location.to_string())),
        Some((3, "c.toml:2:10".into()))
    );
    assert_eq!(vm.quota.as_ref().unwrap().value, Some(500));
    assert_eq!(policy.host.halt_poll.unwrap().value, 0);
    assert_eq!(policy.host.vm_users.unwrap().value, ["nova"]);
    assert_eq!(
        overridden(
            &parse(&[file("a", "[vm.\"x.y\"]\nweight = 1"), file("b", "[vm.\"x.y\"]\nweight=2")]).unwrap()
        ),
        ["vm.\"x.y\": weight = 2 (b:2) over weight = 1 (a:2)"]
    );
}

#[test]
fn a_class_comes_with_what_belongs_to_it() {
    let base = file("a", "[vm.v]\nclass = \"realtime\"\npriority = 20\nweight = 5\n");
    let policy = parse(&[base.clone(), file("b", "[vm.v]\nclass = \"fair\"\n")]).unwrap();
    assert_eq!(policy.vms[0].class.as_ref().unwrap().value, VmClass::Threads(Scheduling::Other { nice: 0 }));
    assert_eq!(policy.vms[0].weight.as_ref().unwrap().value, 5);
    assert_eq!(
        overridden(&policy),
        ["vm.v: class = \"fair\" (b:2) over class = \"realtime\" (a:2), priority = 20 (a:3)"]
    );
    // The same class again: its priority is the default again.
    let policy = parse(&[base.clone(), file("b", "[vm.v]\nclass = \"realtime\"\n")]).unwrap();
    assert_eq!(
        policy.vms[0].class.as_ref().unwrap().value,
        VmClass::Threads(Scheduling::Fifo { priority: 10 })
    );
    // A later file may set only the priority; a file after that may discard both.
    let third = file("b", "[vm.v]\npriority = 30\n");
    let policy = parse(&[base.clone(), third.clone()]).unwrap();
    assert_eq!(
        policy.vms[0].class.as_ref().unwrap().value,
        VmClass::Threads(Scheduling::Fifo { priority: 30 })
    );
    let policy = parse(&[base, third, file("c", "[vm.v]\nclass = \"fair\"\n")]).unwrap();
    assert_eq!(
        overridden(&policy),
        [
            "vm.v: class = \"fair\" (c:2) over class = \"realtime\" (a:2), priority = 20 (a:3), priority = 30 (b:2)"
        ]
    );
}

/// A site that changes the latency does not thereby widen it to CPUs that the base leaves alone.
#[test]
fn a_new_cpu_latency_stays_on_the_cpus_of_the_base() {
    let base = file("a", "[host]\ncpu_latency = \"20us\"\ncpu_latency_cpus = \"2-3\"\n");
    let host = |site: &str| parse(&[base.clone(), file("b", site)]).unwrap().host;
    let changed = host("[host]\ncpu_latency = \"none\"\n");
    assert_eq!(changed.cpu_latency.unwrap().value, Latency::None);
    let cpus = changed.cpu_latency_cpus.unwrap();
    assert_eq!((cpus.value.to_string(), cpus.location.to_string()), ("2-3".into(), "a:3:20".into()));
    let policy = parse(&[base.clone(), file("b", "[host]\ncpu_latency = \"none\"\n")]).unwrap();
    assert_eq!(overridden(&policy), ["host: cpu_latency = \"none\" (b:2) over cpu_latency = \"20us\" (a:2)"]);
    // The site says so if it means others.
    let wider = host("[host]\ncpu_latency = \"none\"\ncpu_latency_cpus = \"0-7\"\n");
    assert_eq!(wider.cpu_latency_cpus.unwrap().value.to_string(), "0-7");
}

#[test]
fn files_together_are_checked_as_one() {
    let message = |files: &[Source]| -> Vec<String> {
        parse(files).unwrap_err().iter().map(Problem::to_string).collect()
    };
    // A required key may be in any of the files.
    let half = file("a", "[channel.c]\ndeadline = \"3ms\"\n");
    assert!(parse(&[half.clone(), file("b", "[channel.c]\nmin_rate = \"2mbit\"\n")]).is_ok());
    assert_eq!(message(std::slice::from_ref(&half)).len(), 1);
    assert!(
        message(&[half, file("b", "[channel.d]\ndeadline = \"3ms\"\n")])[1]
            .starts_with("b:1:10: [channel.d] needs")
    );
    // A contradiction is reported at the later line.
    let deadline = "[vm.v]\nclass = \"deadline\"\nruntime = \"2ms\"\nperiod = \"10ms\"\n";
    let problems = message(&[file("a", deadline), file("b", "[vm.v]\nvcpu_cpus = \"2\"\n")]);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("b:2:1: `vcpu_cpus` cannot be used with class"), "{problems:?}");
    // Each file has to be valid, even where another file's line applies.
    let problems =
        message(&[file("a", "[vm.v]\nweight = 0\n"), file("b", "[vm.v]\nweight = 1\nweigth = 2\n")]);
    assert_eq!(problems.len(), 2);
    assert!(problems[0].starts_with("a:2:10: ") && problems[1].starts_with("b:3:1: unknown key `weigth`"));
    // Within one file, TOML itself forbids it.
    assert!(
        message(&[file("a", "[vm.v]\nweight = 1\n[vm.v]\nweight = 2\n")])[0].contains("is written twice")
    );
}

/// A file that cannot be parsed completely may have a key that is missing in another.
#[test]
fn what_a_broken_file_may_have_said_is_not_missed_in_another() {
    let problems = parse(&[
        file("a", "[channel.c]\ndeadline = \"3ms\"\n"),
        file("b", "[channel.c]\nmin_rate = 2mbit\n"),
    ])
    .unwrap_err();
    assert!(problems.iter().all(|p| p.location.file == "b"), "{problems:?}");
}

#[test]
fn the_same_line_twice_is_no_news() {
    let text = "[vm.v]\nweight = 1\n";
    let policy = parse(&[file("a", text), file("b", text)]).unwrap();
    assert_eq!(policy.vms[0].weight.as_ref().unwrap().location.file, "b");
    assert_eq!(overridden(&policy), Vec::<String>::new());
}

/// Layers apply to keys that set resources to the value written, too.
#[test]
fn keys_that_set_resources_as_they_are_come_from_the_last_file() {
    let policy = parse(&[
        file("a", "[vm.v]\nrps_cpus = \"1\"\n[host]\ngovernor = \"powersave\"\n"),
        file("b", "[vm.v]\nrps_cpus = \"2-3\"\n[link.eth0]\nrps_cpus = \"0\"\n"),
    ])
    .unwrap();
    let direct: Vec<String> = policy
        .direct
        .iter()
        .map(|d| format!("{:?} {} {} {}", d.kind, d.key, d.value.value, d.value.location))
        .collect();
    assert_eq!(
        direct,
        [
            "ReceiveCpus rps_cpus 2-3 b:2:12",
            "Governor governor powersave a:4:12",
            "ReceiveCpus rps_cpus 0 b:4:12"
        ]
    );
    assert_eq!(overridden(&policy), ["vm.v: rps_cpus = \"2-3\" (b:2) over rps_cpus = \"1\" (a:2)"]);
}
