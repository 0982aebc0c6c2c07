//! Compiles the BPF program and generates the Rust half of its interface. What it shares with the host's program is in
//! `crates/bpf/src`.
use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;
use std::process::Command;

/// Oldest clang that is known to emit what the programs need.
const CLANG_MIN: u32 = 16;
/// Newest suffix that is looked for (`clang-<n>`).
const CLANG_MAX: u32 = 30;

/// Where the host's programs are.
const HOST: &str = "../bpf/src";

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

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed=CLANG");
    for path in ["src/guest_trace", &format!("{HOST}/common"), &format!("{HOST}/path_trace")] {
        println!("cargo:rerun-if-changed={path}");
    }
    let out: PathBuf = std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?.into();
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        bail!("teiji's probes know x86-64 only");
    }
    let clang = clang()?;
    // libbpf's own headers, of the version that is linked
    let headers = std::env::var("DEP_BPF_INCLUDE").context("libbpf-sys did not say where its headers are")?;
    let arguments = [
        "-D__TARGET_ARCH_x86".into(),
        "-Wall".into(),
        "-Werror".into(),
        "-I/usr/include/x86_64-linux-gnu".into(),
        format!("-I{headers}"),
        format!("-I{HOST}"),
    ];
    SkeletonBuilder::new()
        .source("src/guest_trace/guest_trace.bpf.c")
        .obj(out.join("guest_trace.bpf.o"))
        .clang(&clang)
        .clang_args(&arguments)
        .build_and_generate(out.join("guest_trace.skel.rs"))
        .context("compiling guest_trace")?;
    // The same for tests on kernels that do not let functions be probed.
    SkeletonBuilder::new()
        .source("src/guest_trace/stand_in.bpf.c")
        .obj(out.join("stand_in.bpf.o"))
        .clang(&clang)
        .clang_args(&arguments)
        .build()
        .context("compiling the stand-in of guest_trace")?;
    // The host's code for packets, which tests compare with the guest's.
    SkeletonBuilder::new()
        .source(format!("{HOST}/path_trace/check.bpf.c"))
        .obj(out.join("host_check.bpf.o"))
        .clang(&clang)
        .clang_args(&arguments)
        .build()
        .context("compiling the host's code for packets")?;
    Ok(())
}
