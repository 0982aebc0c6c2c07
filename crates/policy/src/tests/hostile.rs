//! Files that are meant to do harm: long, deeply nested, full of control characters, or wrong in every line.

use super::*;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// What holds for every answer, for any text.
pub(super) fn decent(text: &str) {
    let Err(problems) = read(text) else { return };
    assert!(!problems.is_empty());
    let lines = text.split('\n').count();
    let mut last = (0, 0);
    for problem in &problems {
        assert!((1..=lines).contains(&problem.location.line), "{problem}");
        let at = (problem.location.line, problem.location.column);
        assert!(last <= at, "{problem}");
        last = at;
        let message = problem.to_string();
        assert!(!message.chars().any(char::is_control), "{message:?}");
        assert!(message.chars().count() < 600, "{message}");
    }
}

#[test]
fn what_is_too_long_is_not_read() {
    let long = "#".repeat(MAX_BYTES + 1);
    let problems = read(&long).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].message, "the file has 1048577 bytes; write at most 1048576, or several files");
    assert!(read(&long[1..]).is_ok());
}

#[test]
fn what_is_too_deep_is_not_read() {
    let deep = [
        "x = ".to_owned() + &"[".repeat(500_000),
        "x = ".to_owned() + &"{a=".repeat(300_000),
        "[".repeat(1_000_000),
        "[a".to_owned() + &".a".repeat(500_000) + "]",
        "a".to_owned() + &".a".repeat(500_000) + " = 1",
        "x = {a".to_owned() + &".a".repeat(500_000) + " = 1}",
        format!("x = {}1{}", "{a.a.a.a.a.a=".repeat(70_000), "}".repeat(70_000)),
        format!("x = [\n{}", "[ # comment ]\n".repeat(70_000)),
        format!("[a.a.a.a]\n{} = 1", "b.b.b.b.b.b.b"),
    ];
    for text in &deep {
        let problems = read(text).unwrap_err();
        assert!(problems[0].message.starts_with("tables and lists are nested deeper than 8"), "{problems:?}");
        assert_eq!(problems.len(), 1);
    }
}

#[test]
fn depth_is_not_taken_from_strings_comments_or_numbers() {
    for text in [
        "x = \"[[[[[[[[[[[[\"",
        "x = '''\n[[[[[[[[[[[\n'''",
        "# [[[[[[[[[[[",
        "x = 1.1.1.1.1.1.1.1.1.1.1.1",
        "x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0]",
        "[vm.a\n[vm.b\n[vm.c\n[vm.d\n[vm.e\n[vm.f\n[vm.g\n[vm.h\n[vm.i\n",
    ] {
        let problems = read(text).err().unwrap_or_default();
        assert!(!problems.iter().any(|p| p.message.contains("nested")), "{text}: {problems:?}");
    }
}

#[test]
fn control_characters_stay_out_of_messages() {
    for text in [
        "\"\\u001b[31mred\\u0007\" = 1",
        "[vm.a]\n\"\\u001b]0;x\\u0007\" = 1",
        "[vm.a]\nclass = \"\\u001b[2J\"",
        "[vm.a]\nvcpu_cpus = \"\\u001b[2J\"",
        "[vm.a]\nclass = \u{1b}[2J",
        "[vm.\u{1b}a]\n\u{7f} = 1",
        "[\"\\n\"]\n[link.\"\\u0000\"]",
        "[channel.\"\\r\"]\nto = \"\\u009b:1\"",
        "[host]\nhalt_poll = \"3\\u202ems\"",
    ] {
        let problems = read(text).unwrap_err();
        assert!(!problems.is_empty());
        decent(text);
    }
    let named = parse(&[Source { name: "a\u{1b}[2J".into(), text: "x = 1".into() }]).unwrap_err();
    assert_eq!(named[0].location.file, "a\\u{1b}[2J");
}

#[test]
fn long_quotations_are_cut() {
    let long = "x".repeat(100_000);
    for text in [
        format!("{long} = 1"),
        format!("[{long}]"),
        format!("[vm.a]\n{long} = 1"),
        format!("[vm.a]\nclass = \"{long}\""),
        format!("[vm.a]\nvcpu_cpus = \"{long}\""),
        format!("[vm.a]\nvcpu_cpus = \"9{}\"", "9".repeat(100_000)),
        format!("[vm.a]\nweight = 9{}", "9".repeat(100_000)),
        format!("[vm.a]\nquota = \"9{}%\"", "9".repeat(100_000)),
        format!("[vm.a]\nquota = \"{}\"", "\\u0000".repeat(100_000)),
        format!("[vm.a]\nquota = {long}"),
        format!("[link.{long}]"),
        format!("[channel.{long}]\nto = \"{long}/{long}\""),
    ] {
        assert!(read(&text).is_err());
        decent(&text);
    }
}

/// The CPU time that this thread has used.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[test]
fn a_megabyte_of_mistakes_is_read_in_time() {
    let fill = |unit: &str| unit.repeat(MAX_BYTES / unit.len());
    let numbered = |line: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for i in 0.. {
            let line = line(i);
            if text.len() + line.len() > MAX_BYTES {
                return text;
            }
            text += &line;
        }
        text
    };
    for text in [
        fill("="),
        fill("a=1\n"),
        fill("[a]\n"),
        fill("[[a]]\n"),
        fill("[a\n"),
        fill("\"\n"),
        fill("'"),
        fill("\\"),
        fill("é"),
        fill("]"),
        fill("a b "),
        fill(", "),
        "x = [".to_owned() + &"1 ".repeat(500_000),
        "x = {".to_owned() + &"a=1,".repeat(250_000),
        "[vm.a]\n".to_owned() + &fill("class = fair\n")[13..],
        format!("[vm.a]\nvcpu_cpus = \"0{}\"", ",0-8191".repeat(140_000)),
        numbered(&|i| format!("[vm.a{i}]\nclas = 1\n")),
        numbered(&|i| format!("[s{i}.a]\n")),
        numbered(&|i| format!("k{i} = é\n")),
        "[vm.a]\n".to_owned() + &numbered(&|i| format!("k{i} = 1\n"))[8..],
    ] {
        assert!(text.len() <= MAX_BYTES);
        let started = cpu_time();
        let _ = read(&text);
        // Not a measurement: an algorithm that is quadratic in the length takes minutes. Time for which this thread
        // waited on a busy machine does not count.
        let took = cpu_time() - started;
        let begin: String = text.chars().take(40).collect();
        assert!(took < Duration::from_secs(20), "{took:?} for {begin:?}");
    }
}
