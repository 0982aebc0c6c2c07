//! The initial RAM file system: busybox, the few modules that every machine of the lab needs, and a script.
//!
//! It consists of two archives in sequence: one for the kernel, which is stored in the cache, and one with the agent
//! and the init script of this build, which is made at each start. The format is that of the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst` ("newc").

use std::{borrow::Cow, fs, io::Cursor, path::Path, process::Command};

use cpio::{
    NewcBuilder,
    newc::ModeFileType::{self, Char, Directory, Regular},
};

use crate::{
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
    let mut all = Vec::from(["bin", "dev", "modules"].map(folder));
    let (console, nothing) = entry("dev/console", Char, 0o600, &[]);
    all.push((console.rdev_major(5).rdev_minor(1), nothing));
    let busybox = ["usr/bin/busybox", "bin/busybox"]
        .iter()
        .find_map(|p| fs::read(root.join(p)).ok())
        .ok_or_else(|| Error::LabHost("has no busybox in its root file system".into()))?;
    all.push(entry("bin/busybox", Regular, 0o755, busybox));
    let mut order = String::new();
    for module in kernel::load_order(&dep, recipe::BOOT_MODULES) {
        let name = module.rsplit('/').next().unwrap_or(&module);
        let name = name.split_once(".ko").map_or(name, |(stem, _)| stem);
        let content = uncompressed(root, version, &module)?;
        all.push(entry(&format!("modules/{name}.ko"), Regular, 0o644, content));
        order.push_str(&format!("{name}.ko\n"));
    }
    all.push(entry("modules/order", Regular, 0o644, order.into_bytes()));
    fs::write(file, archive(all)?).doing(|| format!("write {}", file.display()))
}

/// Writes the complete initial RAM file system for `kernel` to `file`.
pub(crate) fn write(prepared: &Prepared, kernel: Kernel, agent: &[u8], file: &Path) -> Result<()> {
    let kept = prepared.initramfs(kernel);
    let mut bytes = fs::read(&kept).doing(|| format!("read {}", kept.display()))?;
    bytes.extend(agent_part(agent)?);
    fs::write(file, bytes).doing(|| format!("write {}", file.display()))
}

/// The part of this build: `agent` is the program, which becomes `/run/teiji/teiji-lab`.
fn agent_part(agent: &[u8]) -> Result<Vec<u8>> {
    archive(vec![
        entry("init", Regular, 0o755, include_bytes!("boot/initramfs-init.sh")),
        folder("teiji"),
        entry("teiji/teiji-lab", Regular, 0o755, agent),
        entry("teiji/init", Regular, 0o755, include_bytes!("boot/init.sh")),
        entry("teiji/net.sh", Regular, 0o644, include_bytes!("boot/net.sh")),
    ])
}

/// What an archive says about a file, and its content.
type Entry<'a> = (NewcBuilder, Cursor<Cow<'a, [u8]>>);

fn entry<'a>(path: &str, kind: ModeFileType, mode: u32, content: impl Into<Cow<'a, [u8]>>) -> Entry<'a> {
    (NewcBuilder::new(path).mode(mode).set_mode_file_type(kind), Cursor::new(content.into()))
}

fn folder(path: &str) -> Entry<'static> {
    entry(path, Directory, 0o755, &[])
}

/// The files in this order, so folders come before what is in them. Another archive may follow.
fn archive(all: Vec<Entry<'_>>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    cpio::write_cpio(all.into_iter(), &mut bytes).doing(|| "write an archive of the initramfs".into())?;
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::{NewcReader, newc::Entry as Read};
    use std::io::Read as _;

    /// What the archives of a file have, in their order; whatever is between two of them is skipped as the kernel does
    /// (`init/initramfs.c`): zeros, up to a multiple of four bytes.
    fn read(bytes: &[u8]) -> Vec<(Read, Vec<u8>)> {
        let mut all = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut reader = NewcReader::new(rest).unwrap();
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            let entry = reader.entry().clone();
            rest = reader.finish().unwrap();
            if entry.is_trailer() {
                rest = &rest[rest.iter().take_while(|b| **b == 0).count()..];
                assert_eq!(rest.len() % 4, 0);
            } else {
                all.push((entry, content));
            }
        }
        all
    }

    /// A root file system with these modules, not compressed.
    fn root(modules: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/modules/1.2");
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::create_dir_all(folder.join("kernel")).unwrap();
        fs::write(root.path().join("usr/bin/busybox"), b"a box").unwrap();
        let mut dep = String::new();
        for (name, content) in modules {
            fs::write(folder.join("kernel").join(format!("{name}.ko")), content).unwrap();
            dep += &format!("kernel/{name}.ko:\n");
        }
        fs::write(folder.join("modules.dep"), dep).unwrap();
        root
    }

    /// Both archives are read back: kinds, modes, the console's numbers, contents of every length.
    #[test]
    fn archives_are_read_as_they_are_written() {
        let names: Vec<&str> = recipe::BOOT_MODULES.to_vec();
        let contents: Vec<Vec<u8>> = (0..names.len()).map(|n| vec![n as u8 + 1; 7 * n]).collect();
        let modules: Vec<(&str, &[u8])> =
            names.iter().copied().zip(contents.iter().map(Vec::as_slice)).collect();
        let root = root(&modules);
        let file = root.path().join("part");
        build(root.path(), "1.2", &file).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        assert!(bytes.starts_with(b"070701") && bytes.len().is_multiple_of(512));
        bytes.extend(agent_part(b"the agent").unwrap());
        let all = read(&bytes);

        let shown = |(e, content): &(Read, Vec<u8>)| {
            let numbers = [e.uid(), e.gid(), e.mtime(), e.dev_major(), e.dev_minor()];
            assert_eq!((numbers, e.nlink()), ([0; 5], 1), "{}", e.name());
            assert_eq!(e.file_size() as usize, content.len());
            (e.name().to_owned(), e.mode(), (e.rdev_major(), e.rdev_minor()))
        };
        let mut wanted: Vec<(String, u32, (u32, u32))> =
            ["bin", "dev", "modules"].map(|name| (name.to_owned(), 0o040_755, (0, 0))).into();
        wanted.push(("dev/console".into(), 0o020_600, (5, 1)));
        wanted.push(("bin/busybox".into(), 0o100_755, (0, 0)));
        let order = content(&all, "modules/order");
        assert_eq!(order.lines().count(), names.len());
        wanted.extend(order.lines().map(|name| (format!("modules/{name}"), 0o100_644, (0, 0))));
        wanted.push(("modules/order".into(), 0o100_644, (0, 0)));
        wanted.push(("init".into(), 0o100_755, (0, 0)));
        wanted.push(("teiji".into(), 0o040_755, (0, 0)));
        for (name, mode) in [("teiji-lab", 0o100_755), ("init", 0o100_755), ("net.sh", 0o100_644)] {
            wanted.push((format!("teiji/{name}"), mode, (0, 0)));
        }
        assert_eq!(all.iter().map(shown).collect::<Vec<_>>(), wanted);

        assert_eq!(content(&all, "bin/busybox"), "a box");
        assert_eq!(content(&all, "teiji/teiji-lab"), "the agent");
        assert_eq!(content(&all, "init"), include_str!("boot/initramfs-init.sh"));
        for (name, written) in modules {
            assert_eq!(content(&all, &format!("modules/{name}.ko")).as_bytes(), written);
        }
    }

    fn content(all: &[(Read, Vec<u8>)], name: &str) -> String {
        let (_, content) = all.iter().find(|(entry, _)| entry.name() == name).unwrap();
        String::from_utf8(content.clone()).unwrap()
    }
}
