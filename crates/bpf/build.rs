//! Compiles the BPF programs and generates the Rust half of their interfaces.
use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

mod clang;

/// One folder each below `src`, and the files in it. A file with the name of its folder is the product's, others are for
/// tests.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("path_trace", &["path_trace", "check", "recurse"]),
    ("qdisc_edf", &["qdisc_edf", "sent_check"]),
    ("scx_vcpu", &["scx_vcpu", "budget_check"]),
    ("census", &["census"]),
    ("common", &["share"]),
];

fn main() -> Result<()> {
    let out: PathBuf = std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?.into();
    let (clang, arguments) = clang::compiler()?;
    for (folder, programs) in PROGRAMS {
        let dir = format!("src/{folder}");
        println!("cargo:rerun-if-changed={dir}");
        for program in *programs {
            let mut builder = SkeletonBuilder::new();
            builder
                .source(format!("{dir}/{program}.bpf.c"))
                .obj(out.join(format!("{program}.bpf.o")))
                .clang(&clang)
                .clang_args(&arguments);
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
        .clang_args(["-DNO_PREEMPT_COUNT"].into_iter().chain(arguments.iter().map(String::as_str)))
        .build()
        .context("compiling path_trace without the count of preemption")?;
    Ok(())
}
