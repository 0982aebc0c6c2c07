//! Which clang compiles BPF programs, and with which arguments: a part of the build scripts of this crate and of `teiji-guest`.
use anyhow::{Context, Result, bail};
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

/// The compiler, and the arguments that every program needs.
///
/// # Errors
/// If there is no such clang, or the target is not one that the programs know.
pub fn compiler() -> Result<(PathBuf, Vec<String>)> {
    println!("cargo:rerun-if-env-changed=CLANG");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        bail!("teiji's probes know x86-64 only");
    }
    // libbpf's own headers, of the version that is linked
    let headers = std::env::var("DEP_BPF_INCLUDE").context("libbpf-sys did not say where its headers are")?;
    let arguments = ["-D__TARGET_ARCH_x86", "-Wall", "-Werror", "-I/usr/include/x86_64-linux-gnu"];
    let arguments = arguments.map(str::to_owned).into_iter().chain([format!("-I{headers}")]).collect();
    Ok((clang()?, arguments))
}
