//! The initial RAM file system: busybox, the few modules that every machine of the lab needs, and a script.
//!
//! It consists of two archives in sequence: one for the kernel, which is stored in the cache, and one with the agent
//! and the init script of this build, which is made at each start.

use std::{fs, path::Path, process::Command};

use crate::{
    cpio::Archive,
    error::{Doing, Error, Result},
    kernel,
    recipe::{self, Kernel},
    rootfs::Prepared,
};

/// Writes the part for the kernel `version` in `root` to `file`.
pub(crate) fn build(root: &Path, version: &str, file: &Path) -> Result<()> {
    let modules = root.join("usr/lib/modules").join(version);
    let dep_path = modules.join("modules.dep");
    let dep = fs::read_to_string(&dep_path).doing(|| format!("read {}", dep_path.display()))?;
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "modules"] {
        archive.folder(folder);
    }
    archive.device("dev/console", 5, 1);
    let busybox = ["usr/bin/busybox", "bin/busybox"]
        .iter()
        .find_map(|p| fs::read(root.join(p)).ok())
        .ok_or_else(|| Error::Host("has no busybox in its root file system".into()))?;
    archive.file("bin/busybox", 0o755, &busybox);
    let mut order = String::new();
    for module in kernel::load_order(&dep, recipe::BOOT_MODULES) {
        let name = module.rsplit('/').next().unwrap_or(&module);
        let name = name.split_once(".ko").map_or(name, |(stem, _)| stem);
        archive.file(&format!("modules/{name}.ko"), 0o644, &uncompressed(root, version, &module)?);
        order.push_str(&format!("{name}.ko\n"));
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    fs::write(file, archive.finish()).doing(|| format!("write {}", file.display()))
}

/// Writes the complete initial RAM file system for `kernel` to `file`.
pub(crate) fn write(prepared: &Prepared, kernel: Kernel, agent: &[u8], file: &Path) -> Result<()> {
    let kept = prepared.initramfs(kernel);
    let mut bytes = fs::read(&kept).doing(|| format!("read {}", kept.display()))?;
    bytes.extend(agent_part(agent));
    fs::write(file, bytes).doing(|| format!("write {}", file.display()))
}

/// The part of this build: `agent` is the program, which becomes `/run/teiji/teiji-lab`.
fn agent_part(agent: &[u8]) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.file("init", 0o755, include_bytes!("boot/initramfs-init.sh"));
    archive.folder("teiji");
    archive.file("teiji/teiji-lab", 0o755, agent);
    archive.file("teiji/init", 0o755, include_bytes!("boot/init.sh"));
    archive.file("teiji/net.sh", 0o644, include_bytes!("boot/net.sh"));
    archive.finish()
}

/// The module's content, unpacked by the root file system's own tool, as this machine may not have one.
fn uncompressed(root: &Path, version: &str, module: &str) -> Result<Vec<u8>> {
    let path = format!("usr/lib/modules/{version}/{module}");
    let tool = match path.rsplit('.').next() {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(root.join(&path)).doing(|| format!("read {path}")),
    };
    let out = Command::new("chroot")
        .arg(root)
        .args([tool, "-dc", &path])
        .output()
        .doing(|| format!("unpack the module {module}"))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(Error::Failed {
        command: format!("{tool} -dc {path}"),
        code: out.status.code().unwrap_or(-1),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}
