//! Finds the programs that experiments run, and builds missing ones.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use teiji_lab::PROGRAMS_BUILT;

/// The project's folder.
pub fn project() -> &'static Path {
    // The folder of Cargo.toml is one level below.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// What runs in the lab: each package's programs, by its name.
const PROGRAMS: [&str; 3] = ["teiji", "teiji-lab", "teiji-guest"];

/// The folder of [`PROGRAMS`], built in the same profile as this program. If cargo runs this
/// program, it builds them first, so that they match the present source, unless [`PROGRAMS_BUILT`] says that they do.
///
/// # Errors
/// If they cannot be built.
pub fn folder() -> Result<PathBuf> {
    let me = std::env::current_exe().context("cannot find this program")?;
    // Test programs are in deps/ below that folder.
    let mut folder = me.parent().context("this program is in no folder")?.to_owned();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let release = folder.ends_with("release");
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    let cargo = std::env::var_os("CARGO");
    if missing.is_empty() && (cargo.is_none() || std::env::var_os(PROGRAMS_BUILT).is_some()) {
        return Ok(folder);
    }
    let target = folder.parent().context("the programs are in no target folder")?;
    let built = Command::new(cargo.unwrap_or_else(|| "cargo".into()))
        .args(["build", "--bins"])
        .args(PROGRAMS.map(|name| format!("--package={name}")))
        .args(release.then_some("--release"))
        .arg("--manifest-path")
        .arg(project().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .status()
        .context("cannot run cargo, which is to build teiji and what runs in the lab")?;
    if !built.success() {
        bail!("teiji and what runs in the lab could not be built: see cargo's message above");
    }
    for name in PROGRAMS {
        if !folder.join(name).is_file() {
            bail!("{} was not built", folder.join(name).display());
        }
    }
    Ok(folder)
}

/// Mounts a BPF file system in the parent folder of `pins` if there is none.
///
/// # Errors
/// Without root.
pub fn mount_pins(pins: &Path) -> Result<()> {
    let above = pins.parent().context("a folder of a BPF file system")?;
    std::fs::create_dir_all(above)?;
    if nix::sys::statfs::statfs(above)?.filesystem_type() != nix::sys::statfs::BPF_FS_MAGIC {
        nix::mount::mount(
            Some("bpf"),
            above,
            Some("bpf"),
            nix::mount::MsFlags::empty(),
            Option::<&str>::None,
        )
        .context("mount a BPF file system")?;
    }
    Ok(())
}
