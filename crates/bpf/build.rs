//! Compiles the BPF programs and generates the Rust half of their interfaces.
use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;
use std::process::Command;

/// Oldest clang that is known to emit what the programs need.
const CLANG_MIN: u32 = 16;
/// Newest suffix that is looked for (`clang-<n>`).
const CLANG_MAX: u32 = 30;

/// The newest clang on the machine, or the one that `CLANG` names.
fn clang() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("CLANG") {
        return Ok(named.into());
    }
    let version = |name: &str| -> Option<u32> {
        let out = Command::new(name).arg("-dumpversion").output().ok()?;
        String::from_utf8(out.stdout).ok()?.split('.').next()?.trim().parse().ok()
    };
    (CLANG_MIN..=CLANG_MAX)
        .rev()
        .map(|n| format!("clang-{n}"))
        .chain(["clang".to_string()])
        .find(|name| version(name).is_some_and(|v| v >= CLANG_MIN))
        .map(PathBuf::from)
        .with_context(|| {
            format!(
                "no clang {CLANG_MIN} or newer: the BPF programs cannot be compiled; run `make deps`, or set CLANG"
            )
        })
}

/// One folder each below `src`, and the files in it. A file with the name of its folder is the product's, others are for
/// tests.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("path_trace", &["path_trace", "check", "recurse"]),
    ("qdisc_edf", &["qdisc_edf"]),
    ("common", &["share"]),
];

/// The arguments of clang for every program.
const CLANG_ARGS: [&str; 4] = ["-D__TARGET_ARCH_x86", "-Wall", "-Werror", "-I/usr/include/x86_64-linux-gnu"];

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed=CLANG");
    let out: PathBuf = std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?.into();
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        bail!("teiji's probes know x86-64 only");
    }
    let clang = clang()?;
    // libbpf's own headers, of the version that is linked
    let headers = std::env::var("DEP_BPF_INCLUDE").context("libbpf-sys did not say where its headers are")?;
    let headers = format!("-I{headers}");
    for (folder, programs) in PROGRAMS {
        let dir = format!("src/{folder}");
        println!("cargo:rerun-if-changed={dir}");
        for program in *programs {
            let mut builder = SkeletonBuilder::new();
            builder
                .source(format!("{dir}/{program}.bpf.c"))
                .obj(out.join(format!("{program}.bpf.o")))
                .clang(&clang)
                .clang_args(CLANG_ARGS.iter().chain([&headers.as_str()]));
            let made = if program == folder {
                builder.build_and_generate(out.join(format!("{program}.skel.rs")))
            } else {
                builder.build()
            };
            made.with_context(|| format!("compiling {program}"))?;
        }
    }
    // for kernels that do not keep the names of their data
    SkeletonBuilder::new()
        .source("src/path_trace/path_trace.bpf.c")
        .obj(out.join("path_trace_plain.bpf.o"))
        .clang(&clang)
        .clang_args(["-DNO_PREEMPT_COUNT"].iter().chain(&CLANG_ARGS).chain([&headers.as_str()]))
        .build()
        .context("compiling path_trace without the count of preemption")?;
    Ok(())
}
