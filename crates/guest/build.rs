//! Compiles the BPF program and generates the Rust half of its interface. What it shares with the host's program is in
//! `crates/bpf/src`.
use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

#[path = "../bpf/clang.rs"]
mod clang;

/// Where the host's programs are.
const HOST: &str = "../bpf/src";

fn main() -> Result<()> {
    for path in ["src/guest_trace", &format!("{HOST}/common"), &format!("{HOST}/path_trace")] {
        println!("cargo:rerun-if-changed={path}");
    }
    let out: PathBuf = std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?.into();
    let (clang, mut arguments) = clang::compiler()?;
    arguments.push(format!("-I{HOST}"));
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
