//! Which crates each crate may depend on, and what its code may not do: the table of ARCHITECTURE.md, checked with
//! `cargo metadata` and the syntax of the sources.
#![allow(clippy::unwrap_used)]

mod documents;
mod licences;
mod sources;

use serde_json::Value;
use sources::{Forbidden, modules, of_crate, untested, violations};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate: which crates of the workspace and which others it may depend on. Tests may use any.
struct Crate {
    name: &'static str,
    on: &'static [&'static str],
    /// `None` means any.
    others: Option<&'static [&'static str]>,
}

/// The table of ARCHITECTURE.md.
const CRATES: [Crate; 12] = [
    Crate {
        name: "teiji-model",
        on: &[],
        others: Some(&[
            "crc32fast",
            "hmac",
            "lz4_flex",
            "postcard",
            "serde",
            "serde_json",
            "sha2",
            "strsim",
            "thiserror",
            "unicode-width",
            "uuid",
        ]),
    },
    Crate {
        name: "teiji-policy",
        on: &["teiji-model"],
        others: Some(&["serde_json", "strsim", "toml", "toml_parser"]),
    },
    Crate { name: "teiji-analysis", on: &["teiji-model"], others: Some(&["hdrhistogram"]) },
    Crate { name: "teiji-control", on: &["teiji-model"], others: Some(&["strsim", "thiserror"]) },
    Crate {
        name: "teiji-render",
        on: &["teiji-model"],
        others: Some(&["maud", "prost", "serde", "serde_json", "sha2"]),
    },
    Crate { name: "teiji-bpf", on: &["teiji-model"], others: None },
    Crate { name: "teiji-host", on: &["teiji-model"], others: None },
    // It is one program for guests, which have nothing of the host's side.
    Crate {
        name: "teiji-guest",
        on: &["teiji-model"],
        others: Some(&[
            "anyhow",
            "clap",
            "getrandom",
            "libbpf-cargo",
            "libbpf-rs",
            "libbpf-sys",
            "nix",
            "rustix",
            "serde",
            "serde_json",
            "signal-hook",
            "thiserror",
        ]),
    },
    Crate {
        name: "teiji-agent",
        on: &["teiji-model", "teiji-policy", "teiji-bpf", "teiji-host", "teiji-analysis", "teiji-control"],
        others: None,
    },
    // Neither crates that decide nor crates that touch the machine: it calls the agent's service and shows the result.
    Crate {
        name: "teiji",
        on: &["teiji-model", "teiji-policy", "teiji-render", "teiji-agent"],
        others: None,
    },
    Crate { name: "teiji-lab", on: &[], others: None },
    Crate { name: "teiji-experiments", on: &EVERYTHING, others: None },
];

const EVERYTHING: [&str; 11] = [
    "teiji-model",
    "teiji-policy",
    "teiji-bpf",
    "teiji-host",
    "teiji-analysis",
    "teiji-control",
    "teiji-agent",
    "teiji-render",
    "teiji",
    "teiji-guest",
    "teiji-lab",
];

/// Crates without I/O: everything that they need is passed to them.
const PURE: [&str; 5] = ["model", "policy", "analysis", "control", "render"];

/// Input, output and clocks.
const MACHINE: Forbidden = Forbidden {
    paths: &[
        "std::env",
        "std::fs",
        "std::io::Stderr",
        "std::io::Stdin",
        "std::io::Stdout",
        "std::io::stderr",
        "std::io::stdin",
        "std::io::stdout",
        "std::net::TcpListener",
        "std::net::TcpStream",
        "std::net::ToSocketAddrs",
        "std::net::UdpSocket",
        "std::os",
        // A `Path` can be asked whether a file exists.
        "std::path",
        "std::process",
        "std::thread",
        "std::time::Instant",
        "std::time::SystemTime",
        "std::time::UNIX_EPOCH",
    ],
    macros: &["dbg", "eprint", "eprintln", "print", "println"],
    strings: &[],
    made: &[],
    only: None,
    unsafety: true,
};

/// Kernel interfaces, which only host may name.
const KERNEL: Forbidden = Forbidden {
    paths: &[],
    macros: &[],
    strings: &[
        "/proc",
        "/sys",
        "netlink",
        "cgroup.",
        "cpu.max",
        "cpu.weight",
        "cpuset.",
        "ioctl",
        "sched_set",
        "TCA_",
        "pm_qos",
        "smp_affinity",
        "halt_poll_ns",
        "kernel.",
        "systemd.",
        "gso_",
        "ip link",
        // The file; `rps_cpus` alone is a key of policies.
        "/rps_cpus",
        "scaling_",
    ],
    made: &[],
    only: None,
    unsafety: false,
};

/// Results of decisions: findings, plans, problems. Renderers get them as arguments.
const DECISIONS: &[&str] =
    &["Verdict", "Finding", "Step", "Problem", "Suggestion", "LinkGuarantee", "Admission"];

/// What the command line may name of the agent: its service, and the types that the service takes or returns. Not the
/// engine that changes settings, the backends, the planning or the tracing.
const OF_THE_AGENT: &[&str] = &[
    "teiji_agent::service",
    "teiji_agent::output",
    "teiji_agent::apply::Message",
    "teiji_agent::apply::Options",
    "teiji_agent::apply::Progress",
    "teiji_agent::apply::Rollback",
    "teiji_agent::apply::STATE_DIRECTORY",
    "teiji_agent::backend::PINS",
    "teiji_agent::policy::Error",
    "teiji_agent::trace::Progress",
    "teiji_agent::trace::TraceSpec",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

#[track_caller]
fn none(found: &[String], what: &str) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn what_thinks_neither_reads_nor_asks_the_time() {
    for name in PURE {
        none(&of_crate(&folder(name), &MACHINE), &format!("crates/{name} does no I/O and reads no clock"));
        let root = std::fs::read_to_string(folder(name).join("src/lib.rs")).unwrap();
        assert!(root.contains("#![forbid(unsafe_code)]"), "crates/{name} forbids unsafe");
    }
}

#[test]
fn control_names_no_kernel_interface() {
    none(&of_crate(&folder("control"), &KERNEL), "crates/control names no kernel interface");
}

/// The agent calls host for everything that the kernel shows in files.
#[test]
fn only_host_knows_where_the_kernel_tells_what() {
    let forbidden =
        Forbidden { strings: &["\"/proc", "\"/sys", "\"proc/", "\"sys/"], ..Forbidden::default() };
    for name in ["agent", "teiji", "model", "policy", "analysis", "render"] {
        none(
            &of_crate(&folder(name), &forbidden),
            &format!("crates/{name} leaves /proc and /sys to crates/host"),
        );
    }
}

/// It cannot be checked that no `if` compares causes. It can be checked that neither crate depends on what decides or
/// makes the result of a decision, and that the command line calls only the service.
#[test]
fn renderers_and_the_command_line_decide_nothing() {
    let made = Forbidden { made: DECISIONS, ..Forbidden::default() };
    for name in ["render", "teiji"] {
        none(&of_crate(&folder(name), &made), &format!("crates/{name} decides nothing"));
    }
    let only = Forbidden { only: Some(("teiji_agent", OF_THE_AGENT)), ..Forbidden::default() };
    none(&of_crate(&folder("teiji"), &only), "crates/teiji has everything done by teiji_agent::service");
}

#[test]
fn each_subcommand_is_a_file() {
    let args = std::fs::read_to_string(folder("teiji").join("src/args.rs")).unwrap();
    let (_, commands) = args.split_once("pub enum Command {").unwrap();
    let (commands, _) = commands.split_once("\n}").unwrap();
    let names = commands.lines().filter_map(|line| {
        let name = line.trim().split(['(', ',']).next()?;
        name.starts_with(char::is_uppercase).then(|| name.to_lowercase())
    });
    let names: Vec<String> = names.collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let file = folder("teiji").join("src/subcommand").join(format!("{name}.rs"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert!(text.contains(&format!("//! `teiji {name}`")), "{} does not say what it is", file.display());
    }
}

/// Violations are found in every form; code that only looks similar is not reported.
#[test]
fn violations_are_found() {
    let mut unseen = vec![
        "use std::fs; fn a() { fs::read(\"x\"); }",
        "use std::{collections::BTreeMap, fs as files};",
        "fn a() { std::fs::read(\"x\"); }",
        "fn a() { ::std::fs::read(\"x\"); }",
        "use std::time::{Duration, Instant as T};",
        "use std::time; fn a() { time::Instant::now(); }",
        "use std as s; fn a() { s::process::exit(1); }",
        "use std::io::{self, Write}; fn a() { io::stdout().flush(); }",
        "use std::io::*;",
        "fn a() { use std::time::SystemTime; SystemTime::now(); }",
        "mod inner { pub fn a() { println!(\"x\"); } }",
        "fn a(p: *const u8) -> u8 { unsafe { *p } }",
        "#[cfg(test)] mod tests; fn a() { std::process::id(); }",
        "fn a() { let _ = std::path::PathBuf::new(); }",
        "include!(\"x.rs\");",
        "use std::include as i; i!(\"x.rs\");",
        "extern crate std as s; fn a() { s::fs::read(\"x\"); }",
        "#[path = \"x.rs\"] mod x;",
        "mod a { #[cfg_attr(unix, path = \"x.rs\")] mod x; }",
        "use std::println as p; fn a() { p!(); }",
        "use std as s; use s::fs as f; fn a() { f::read(\"x\"); }",
        "macro_rules! m { ($i:ident) => { std::$i::read(\"x\") } }",
        "macro_rules! m { ($i:ident) => { use std::$i; } }",
        "fn a(x: X) { match x { #[cfg(test)] A => 1, B => { std::fs::read(\"x\"); 2 } }; }",
        "fn a() { vec![#[cfg(test)] 1, { std::process::id() }]; }",
        "struct A { #[cfg(test)] pub x: u8, pub y: std::fs::File }",
        "use r#std::fs;",
        "fn a() { std::r#fs::read(\"x\"); }",
        "type F = std::fs::File; fn a() {}",
    ];
    unseen.retain(|text| violations(text, &MACHINE).is_empty());
    assert_eq!(unseen, Vec::<&str>::new());
    for text in [
        "use std::time::Duration; use std::net::IpAddr; fn a(d: Duration) {}",
        "// std::fs::read\n/// std::fs::read\nfn a() {}",
        "fn a() -> &'static str { \"std::fs::read\" }",
        "#[cfg(test)] mod tests { fn a() { std::fs::read(\"x\"); println!(\"x\"); } }",
        "#[cfg(test)] #[allow(dead_code)] fn a() { std::fs::read(\"x\"); } fn b() {}",
        "#[cfg(test)] fn a<T, U>(t: T) { std::fs::read(\"x\"); } fn b() {}",
        "#[cfg(test)] #[path = \"x.rs\"] mod tests;",
        "#[path = \"x.rs\"] #[cfg(test)] mod tests;",
        "use std::io::{Read, Write}; fn a(w: &mut dyn Write) -> std::io::Result<()> { w.flush() }",
        "use crate::fs; fn a() { fs::stage(); } fn b(std: u8) -> u8 { std }",
    ] {
        assert_eq!(violations(text, &MACHINE), Vec::<String>::new(), "{text}");
    }
    let wrong = |text: &str| violations(text, &KERNEL).len();
    assert_eq!(wrong("fn a() { x(\"/proc/self\");\n y(\"cpu.max\"); }"), 2);
    assert_eq!(wrong("/// `/proc/self`\nfn a() { x(\"the process\"); }"), 0);
    for text in [
        "set kernel.sched_rt_runtime_us to 1",
        "boot with systemd.unified_cgroup_hierarchy=1",
        "`ip link set dev {name} gso_max_segs 1`",
        "write rps_cpus of a queue: queues/rx-0/rps_cpus",
        "scaling_governor",
    ] {
        assert_ne!(wrong(&format!("fn a() {{ x({text:?}); }}")), 0, "{text}");
    }
    for text in ["the key `rps_cpus` of [link.eth0]", "it is slow in the kernel. The guest", "by the kernel."]
    {
        assert_eq!(wrong(&format!("fn a() {{ x({text:?}); }}")), 0, "{text}");
    }
    let made = Forbidden { made: DECISIONS, ..Forbidden::default() };
    let makes = |text| violations(text, &made).len();
    assert_eq!(makes("fn a() -> Verdict { report::Verdict { stage: None } }"), 1);
    assert_eq!(makes("use model::Finding as F; fn a() { b(F { rank: 1 }) }"), 1);
    assert_eq!(makes("type T = model::Finding; fn a() { b(T { rank: 1 }) }"), 1);
    assert_eq!(makes("fn a() -> Step { let s = Step::default(); s }"), 1);
    assert_eq!(makes("use model::Plan; use model::Step as S; fn a() { S::new(1); Plan::default(); }"), 1);
    assert_eq!(makes("fn a(s: &Step) { s.change(); Step::change(s); }"), 0);
    assert_eq!(
        makes("fn a(p: Progress) { match p { Progress::Step { step } => {} } }"),
        0,
        "a variant of that name"
    );
    assert_eq!(
        makes("fn a(v: &Verdict) -> &Verdict { let Verdict { stage, .. } = v; v } impl X for Step {}"),
        0
    );
    let only = Forbidden { only: Some(("teiji_agent", OF_THE_AGENT)), ..Forbidden::default() };
    let reaches = |text| violations(text, &only).len();
    assert_eq!(reaches("use teiji_agent::apply::{self, Engine};"), 1);
    assert_eq!(reaches("use teiji_agent::apply; fn a() { apply::Engine::open(); }"), 1);
    assert_eq!(reaches("fn a() { teiji_agent::trace::run(); }"), 1);
    assert_eq!(
        reaches("use teiji_agent::apply::{self, Message}; fn a(r: apply::Rollback, m: Message) {}"),
        0
    );
}

/// Modules in inline modules have files, too; those of tests are not code.
#[test]
fn the_files_of_nested_modules_are_found() {
    let names = |text: &str| modules(&untested(text.parse().unwrap()));
    assert_eq!(
        names(
            "mod a; mod b { pub mod c; mod d { mod e; } } #[cfg(test)] mod tests; #[cfg(test)] mod f { mod g; }"
        ),
        ["a", "b/c", "b/d/e"].map(PathBuf::from)
    );
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The packages of the workspace.
fn members(metadata: &Value) -> Vec<&Value> {
    let ids: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    metadata["packages"].as_array().unwrap().iter().filter(|p| ids.contains(text(p, "id"))).collect()
}

#[test]
fn dependencies_are_those_of_the_table() {
    let metadata = metadata();
    let members = members(&metadata);
    let own: BTreeSet<&str> = members.iter().map(|p| text(p, "name")).collect();
    for package in &members {
        let name = text(package, "name");
        let may = CRATES.iter().find(|c| c.name == name);
        let may = may.unwrap_or_else(|| panic!("{name} is not in the table of this test"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = text(dependency, "name");
            if dependency["kind"] == "dev" {
                continue;
            }
            let allowed = if own.contains(on) {
                may.on.contains(&on)
            } else {
                may.others.is_none_or(|others| others.contains(&on))
            };
            assert!(allowed, "{name} must not depend on {on}");
        }
    }
}

/// libbpf's types leave `crates/bpf` only as teiji's own types. The guest's program has its own probes, and nothing depends
/// on it but experiments.
#[test]
fn only_bpf_and_guest_link_libbpf() {
    let metadata = metadata();
    for package in
        members(&metadata).iter().filter(|p| !["teiji-bpf", "teiji-guest"].contains(&text(p, "name")))
    {
        let links = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .any(|d| text(d, "name").starts_with("libbpf") && d["kind"] != "dev");
        assert!(!links, "{} links libbpf", text(package, "name"));
    }
}

/// How ARCHITECTURE.md names a crate.
fn folder_in_document(name: &str) -> String {
    match name {
        "teiji-lab" | "teiji-experiments" => format!("{}/", name.trim_start_matches("teiji-")),
        name => format!("crates/{}", name.trim_start_matches("teiji-")),
    }
}

/// The dependencies that a document with a table for them allows to a crate; `None` if it lacks the crate.
fn documented_dependencies(document: &str, name: &str) -> Option<BTreeSet<String>> {
    let (_, table) = document.split_once("| crate | may depend on |\n| --- | --- |\n")?;
    let head = format!("| `{}` |", folder_in_document(name));
    let row = table.lines().take_while(|l| l.starts_with('|')).find_map(|line| line.strip_prefix(&head))?;
    Some(match row.trim_matches(['|', ' ']) {
        "every crate" => EVERYTHING.map(folder_in_document).into(),
        row => row.split('`').skip(1).step_by(2).map(str::to_owned).collect(),
    })
}

/// ARCHITECTURE.md has the same crates with the same dependencies.
#[test]
fn the_document_has_the_table() {
    let document = include_str!("../../../../ARCHITECTURE.md");
    for c in &CRATES {
        let folder = folder_in_document(c.name);
        assert!(document.contains(&format!("| `{folder}` |")), "ARCHITECTURE.md lacks {folder}");
        let on: BTreeSet<String> = c.on.iter().map(|name| folder_in_document(name)).collect();
        assert_eq!(documented_dependencies(document, c.name), Some(on), "{folder} in ARCHITECTURE.md");
    }
    let wrong =
        document.replace("| `crates/render` | `crates/model` |", "| `crates/render` | `crates/host` |");
    assert_ne!(
        documented_dependencies(&wrong, "teiji-render"),
        documented_dependencies(document, "teiji-render")
    );
}
