//! Wrong policies, each with all places of its problems and a phrase of each message.

use super::*;

/// A policy and all of its problems, in order: line, column, phrase.
type Case = (&'static str, &'static [(usize, usize, &'static str)]);

fn check(cases: &[Case]) {
    for (text, expected) in cases {
        let problems = read(text).expect_err(text);
        let message: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(message.len(), expected.len(), "{text}\n{message:#?}");
        for (problem, (line, column, phrase)) in problems.iter().zip(*expected) {
            assert_eq!(
                (problem.location.line, problem.location.column),
                (*line, *column),
                "{text}\n{message:#?}"
            );
            assert!(problem.message.contains(phrase), "{text}\n{message:#?}\n{phrase}");
            assert!(!problem.message.ends_with('.'), "{message:#?}");
        }
    }
}

#[test]
fn names_of_sections_and_keys() {
    check(&[
        ("[vm.a]\nclas = \"fair\"", &[(2, 1, "unknown key `clas`; did you mean `class`?")]),
        ("[vm.a]\nvcpu-cpus = \"1\"", &[(2, 1, "did you mean `vcpu_cpus`?")]),
        (
            "[vm.a]\nxyzzy = 1",
            &[(2, 1, "[vm.NAME] has class, priority, runtime, deadline, period, vcpu_cpus")],
        ),
        ("[vm.a]\nirq_cpus = \"1\"", &[(2, 1, "it belongs below [link.NAME]")]),
        ("[host]\nweight = 1", &[(2, 1, "it belongs below [vm.NAME] or [vf.LINK.N]")]),
        ("[vms.a]\n[vms.b]\nx = 1", &[(1, 2, "did you mean `vm`?"), (2, 2, "unknown section `vms`")]),
        ("[qdisc]\n", &[(1, 2, "sections are [host], [link.NAME], [vm.NAME], [channel.NAME], [vf.LINK.N]")]),
        ("weight = 1", &[(1, 1, "outside any section; write it below [vm.NAME] or [vf.LINK.N]")]),
        ("foo = 1", &[(1, 1, "outside any section; write it below [host], [link.NAME]")]),
        ("[vm]\n", &[(1, 2, "[vm] lacks a name; write [vm.NAME]")]),
        ("[vm]\nweight = 1", &[(2, 1, "[vm] lacks a name; write [vm.NAME] above its keys")]),
        ("[vm]\nfoo = 1", &[(2, 1, "`foo` is not a section; write [vm.NAME]")]),
        ("vm = 3", &[(1, 1, "`vm` is not a section; write [vm.NAME]")]),
        ("[[vm]]\nweight = 1", &[(1, 3, "a list of sections has no meaning here; write [vm.NAME]")]),
        ("[vf.eth1]\nhard = \"1mbit\"", &[(2, 1, "[vf] lacks a name; write [vf.LINK.N]")]),
        ("[link.eth0.100]\nrate = \"1gbit\"", &[(1, 2, "put it in quotes, as in [link.\"eth0.100\"]")]),
        ("[vm.\"\"]", &[(1, 5, "the name is empty")]),
        ("[vm.\"a\\u001b[31m\"]", &[(1, 5, "the name `a\\u{1b}[31m` has a control character")]),
        ("[vm.\"pid:x\"]", &[(1, 5, "`x` is not a process id; write one as in \"pid:1234\"")]),
        ("[vm.\"pid:0\"]", &[(1, 5, "`0` is not a process id")]),
        ("[link.a-name-of-16-byt]", &[(1, 7, "longer than the 15 bytes")]),
        ("[link.\"a/b\"]", &[(1, 7, "no device can be called `a/b`; write the name that ip-link(8) shows")]),
        ("[vf.eth1.x]", &[(1, 10, "`x` is not a virtual function; write its number, from 0 to 65534")]),
        ("[vf.eth1.03]", &[(1, 10, "`03` is not a virtual function")]),
    ]);
}

#[test]
fn what_is_not_kept_or_kept_elsewhere() {
    const CHANNEL: &str = "[channel.c]\ndeadline = \"3ms\"\nmin_rate = \"1mbit\"\nmark = \"mpls\"\ndscp = \"EF\"\n\
                           on_miss = { log = true }";
    check(&[
        ("[vm.a]\nhalt_poll = \"adaptive\"", &[(2, 1, "`halt_poll` is host-wide; write it in [host]")]),
        ("[vm.a]\ncpu_latency = \"1us\"", &[(2, 1, "write it in [host]")]),
        ("[vm.a]\nnuma = \"auto\"", &[(2, 1, "`numa` is not supported by this version yet")]),
        (
            CHANNEL,
            &[
                (4, 1, "`mark` is not supported by this version yet"),
                (5, 1, "`dscp` is not supported by this version yet"),
                (6, 1, "`on_miss` is not supported by this version yet"),
            ],
        ),
    ]);
}

#[test]
fn values() {
    check(&[
        ("[host]\nhalt_poll = 50", &[(2, 13, "`50` is not text in quotes; write a time with its unit")]),
        (
            "[host]\nhalt_poll = \"50\"",
            &[(2, 13, "write a time with its unit, as in 3ms (ns, us, ms, s), or \"off\"")],
        ),
        (
            "[host]\nhalt_poll = \"50min\"",
            &[(2, 13, "`min` is not a unit of time; write a time with its unit")],
        ),
        (
            "[host]\nhalt_poll = \"11ms\"",
            &[(
                2,
                13,
                "out of range; write a time with its unit and in quotes, as in \"3ms\", from 0ns to 10ms, or \"off\"",
            )],
        ),
        (
            "[host]\nhalt_poll = \"adaptive\"",
            &[(2, 13, "`adaptive` is not a time; write a time with its unit, as in 3ms, or \"off\"")],
        ),
        ("[host]\nhalt_poll = \"\"", &[(2, 13, "`` is not a time; write a time with its unit, as in 3ms")]),
        ("[host]\nhalt_poll = \"99999999999999999999s\"", &[(2, 13, "too large")]),
        ("[host]\ncpu_latency = \"1500ns\"", &[(2, 1, "in whole µs; write 2us")]),
        (
            "[host]\ncpu_latency = \"0us\"",
            &[(
                2,
                15,
                "out of range; write a time with its unit and in quotes, as in \"3ms\", from 1us to 2147.483646s, or \"any\" or \"none\"",
            )],
        ),
        ("[host]\ncpu_latency_cpus = \"1\"", &[(2, 1, "needs `cpu_latency`, which is missing")]),
        (
            "[link.e]\nirq_cpus = \"\"",
            &[(2, 12, "no CPU is named; write a list of CPUs in quotes, as in \"0-3,8\"")],
        ),
        ("[link.e]\nirq_cpus = \"3-1\"", &[(2, 12, "ends before it begins")]),
        (
            "[link.e]\nirq_cpus = [0, 1]",
            &[(2, 12, "a list is not text in quotes; write a list of CPUs in quotes")],
        ),
        ("[link.e]\nirq_cpus = 2", &[(2, 12, "`2` is not text in quotes; write a list of CPUs in quotes")]),
        (
            "[link.e]\nrate = \"1gbps\"",
            &[(
                2,
                8,
                "`gbps` is not a unit of rate; write a rate with its unit, as in 2mbit (bit, kbit, mbit, gbit)",
            )],
        ),
        (
            "[link.e]\nmax_packet = \"59b\"",
            &[(2, 14, "write a size with its unit and in quotes, as in \"3kb\", from 60b to 524298b")],
        ),
        ("[link.e]\nrealtime_max = \"9%\"", &[(2, 16, "`%` is not a unit of rate")]),
        ("[link.e]\nslack = true", &[(2, 9, "or \"auto\"")]),
        (
            "[vm.a]\nclass = \"realtme\"",
            &[(2, 9, "write \"fair\", \"realtime\", \"deadline\" or \"packets\"")],
        ),
        ("[vm.a]\nweight = \"100\"", &[(2, 10, "write a whole number without quotes, from 1 to 10000")]),
        (
            "[vm.a]\nweight = 0",
            &[(2, 10, "`0` is not a valid value; write a whole number without quotes, from 1 to 10000")],
        ),
        ("[vm.a]\nweight = -1", &[(2, 10, "from 1 to 10000")]),
        ("[vm.a]\nweight = 99999999999999999999999", &[(2, 10, "from 1 to 10000")]),
        ("[vm.a]\nweight = 1.5", &[(2, 10, "`1.5` is not a valid value")]),
        ("[vm.a]\nquota = \"0%\"", &[(2, 9, "from 1% to 819200%, or \"none\"")]),
        ("[vm.a]\nquota = \"0.9%\"", &[(2, 9, "from 1% to 819200%")]),
        ("[vm.a]\nquota = \"0.05%\"", &[(2, 9, "finer than 0.1%")]),
        ("[vm.a]\nquota = 1979-05-27", &[(2, 9, "a date or time is not text in quotes; write a percentage")]),
        ("[vm.a.class]\nx = 1", &[(1, 7, "a table is not text in quotes; write \"fair\"")]),
        ("[vf.e.0]\nhard = \"0.5mbit\"", &[(2, 8, "from 1mbit")]),
        ("[vf.e.0]\nweight = 101", &[(2, 10, "from 1 to 100")]),
    ]);
}

#[test]
fn channels() {
    let of = |line: &str| format!("[channel.c]\ndeadline = \"3ms\"\nmin_rate = \"1mbit\"\n{line}\n");
    for (line, column, phrase) in [
        ("burst = \"83b\"", 9, "from 84b"),
        ("link = \"\"", 8, "no device can be called ``; write the name that ip-link(8) shows"),
        ("link = \"a/b\"", 8, "no device can be called `a/b`"),
        ("link = \"1234567890123456\"", 8, "longer than the 15 bytes of a device's name"),
        ("link = 3", 8, "`3` is not text in quotes; write the name of a device in quotes, as in \"eth0\""),
        ("dscp = \"EF\"", 1, "`dscp` is not supported by this version yet"),
        ("burst = \"3kbit\"", 9, "`kbit` is not a unit of size; write a size with its unit, as in 3kb"),
        ("proto = \"sctp\"", 9, "write \"udp\" or \"tcp\""),
        (
            "to = \"10.0.1.7/24\"",
            6,
            "bits set beyond its prefix; write 10.0.1.0/24, or 10.0.1.7 for that one",
        ),
        ("to = \"fd00::1/64\"", 6, "write fd00::/64"),
        ("to = \"10.0.0.0/33\"", 6, "write one from 0 to 32"),
        ("to = \"10.0.0.0/+8\"", 6, "write one from 0 to 32"),
        ("to = \"10.0.0.1:0\"", 6, "`0` is not a port; write a number from 1 to 65535"),
        ("to = \"10.0.0.1:65536\"", 6, "not a port"),
        ("to = \"10.0.0.1:\"", 6, "not a port"),
        ("to = \"[fd00::1\"", 6, "not closed by `]`"),
        ("to = \"[fd00::1]5060\"", 6, "is not an address; write an address or prefix"),
        ("to = \"sip.example:5060\"", 6, "`sip.example` is not an IP address, and names are not looked up"),
        ("to = \"\"", 6, "`` is not an IP address"),
        ("from = \"10.0.0.1\"\nto = \"fd00::1\"", 1, "one of `from` and `to` is IPv4 and the other IPv6"),
    ] {
        let problems = read(&of(line)).expect_err(line);
        let [problem] = &problems[..] else { panic!("{line}: {problems:#?}") };
        assert_eq!(
            (problem.location.line, problem.location.column),
            (3 + line.lines().count(), column),
            "{line}"
        );
        assert!(problem.message.contains(phrase), "{problem}");
    }
    check(&[(
        "[channel.c]\nburst = \"3kb\"",
        &[
            (1, 10, "[channel.c] needs `deadline`; write a time with its unit and in quotes, as in \"3ms\""),
            (1, 10, "[channel.c] needs `min_rate`; write a rate"),
        ],
    )]);
}

#[test]
fn contradictions() {
    check(&[
        ("[vm.a]\npriority = 3", &[(2, 1, "`priority` is only valid with class = \"realtime\"; write that")]),
        ("[vm.a]\nclass = \"fair\"\npriority = 3", &[(3, 1, "or remove `priority`")]),
        (
            "[vm.a]\nclass = \"realtime\"\nperiod = \"9ms\"",
            &[(3, 1, "`period` is only valid with class = \"deadline\" or class = \"packets\"")],
        ),
        (
            "[vm.a]\nruntime = \"1ms\"\nperiod = \"9ms\"",
            &[(2, 1, "class = \"deadline\""), (3, 1, "class = \"deadline\"")],
        ),
        (
            "[vm.a]\nclass = \"deadline\"",
            &[(2, 1, "needs `runtime`; write a time"), (2, 1, "needs `period`")],
        ),
        ("[vm.a]\nclass = \"packets\"\nruntime = \"1ms\"", &[(2, 1, "class = \"packets\" needs `period`")]),
        ("[vm.a]\nclass = \"deadline\"\nruntime = \"1\"\nperiod = \"9ms\"", &[(3, 11, "`1` has no unit")]),
        (
            "[vm.a]\nclass = \"deadline\"\nruntime = \"3ms\"\ndeadline = \"2ms\"\nperiod = \"9ms\"",
            &[(3, 1, "`runtime` is longer than `deadline`; write them so that runtime ≤ deadline ≤ period")],
        ),
        (
            "[vm.a]\nclass = \"deadline\"\nruntime = \"3ms\"\nperiod = \"2ms\"",
            &[(3, 1, "`runtime` is longer than `period`")],
        ),
        (
            "[vm.a]\nclass = \"deadline\"\nruntime = \"3ms\"\ndeadline = \"9ms\"\nperiod = \"5ms\"",
            &[(4, 1, "`deadline` is longer than `period`")],
        ),
        ("[vm.a]\nclass = \"deadline\"\nruntime = \"1us\"\nperiod = \"5ms\"", &[(3, 11, "from 1.024us")]),
        (
            "[vm.a]\nclass = \"deadline\"\nruntime = \"1ms\"\nperiod = \"5ms\"\nvcpu_cpus = \"1\"\nworker_cpus = \"2\"",
            &[
                (5, 1, "Linux does not pin such threads"),
                (6, 1, "remove it, or write class = \"packets\" or \"realtime\""),
            ],
        ),
    ]);
}

#[test]
fn what_is_not_toml() {
    check(&[
        (
            "[vm.a]\nclass = fair",
            &[(2, 9, "`fair` is neither a number nor text; write text in quotes, as in \"fair\"")],
        ),
        ("[host]\nhalt_poll = 3ms # why", &[(2, 13, "write text in quotes, as in \"3ms\"")]),
        ("[host]\ncpu_latency_cpus = 0-3", &[(2, 20, "write text in quotes, as in \"0-3\"")]),
        ("[channel.a]\nto = 10.0.0.2", &[(2, 6, "write text in quotes, as in \"10.0.0.2\"")]),
        ("[vm.a]\nweight =\nquota = \"1%\"", &[(2, 9, "there is no value after `=`; write one")]),
        ("[vm.a]\nweight 3", &[(2, 8, "there is no `=` after the key; write a line such as weight = ")]),
        (
            "[vm.a\nweight = 3\n[vm.b]\nweigth = 3",
            &[(1, 6, "write `]` after the section's name"), (4, 1, "did you mean `weight`?")],
        ),
        (
            "[vm.a]\nclass = \"fair\nweight = 0",
            &[(2, 14, "invalid basic string, expected `\"`"), (3, 10, "from 1 to 10000")],
        ),
        (
            "[vm.a]\nweight = 1\nweight = 2",
            &[(3, 1, "the key `weight` is written twice; keep one of the two")],
        ),
        (
            "[vm.a]\nweight = 1\n[vm.a]\nquota = 1",
            &[(3, 5, "the section `a` is written twice; keep one"), (4, 9, "percentage")],
        ),
        ("vm = 3\n[vm.a]", &[(1, 1, "is not a section"), (2, 2, "remove one of the two")]),
        ("= 3\n", &[(1, 1, "keys cannot be empty")]),
        ("é = 3\n", &[(1, 1, "invalid unquoted key")]),
        (
            "[vm.é]\n[vm.\"é\"]\n  wight = 1",
            &[(1, 5, "invalid unquoted key"), (2, 5, "written twice"), (3, 3, "did you mean `weight`?")],
        ),
        ("[vm.\"é\"]\n  \"é\" = 1 # é\n\t\"ü\" = 1", &[(2, 3, "unknown key `é`"), (3, 2, "unknown key `ü`")]),
        ("a.b.c.d.e.f.g.h.i = 1", &[(1, 1, "unknown section `a`")]),
        ("a.b.c.d.e.f.g.h.i.j = 1", &[(1, 18, "nested deeper than 8 here")]),
        ("\u{feff}[vm.a]\nx = 1", &[(2, 1, "unknown key `x`")]),
        ("\u{feff}x = 1", &[(1, 1, "outside any section")]),
        ("[vm.a]\r\nclass = \"fair\"\r\nwight = 1\r\n", &[(3, 1, "did you mean `weight`?")]),
    ]);
}

#[test]
fn all_that_is_wrong_is_said_in_order() {
    let text = "[vf.e.0]\nweight = 0\n[vm.a]\nclass = slow\nwight = 1\n[host]\nhalt_poll = \"1h\"\n[vm.b]\npriority = 1\n";
    let problems = read(text).unwrap_err();
    let lines: Vec<usize> = problems.iter().map(|p| p.location.line).collect();
    // The priority could belong to a class on the line that was not understood, so it is not reported.
    assert_eq!(lines, [2, 4, 5, 7], "{problems:#?}");
}
