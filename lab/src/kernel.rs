//! The lab's kernels: checks that they have what the lab needs, unpacks them, and finds which modules a module needs.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use crate::{
    error::{Doing, Error, Result},
    recipe::{KERNEL_OPTIONS, Kernel},
};

/// Fails unless the kernel `version` in `root` has every option that the recipe requires of `kernel`, built in or as a
/// module.
pub(crate) fn check(root: &Path, version: &str, kernel: Kernel) -> Result<()> {
    let path = root.join("usr/lib/modules").join(version).join("config");
    let config = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
    let lacking = lacking(&config, kernel);
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Error::Missing {
        what: lacking.iter().map(|(o, _)| format!("CONFIG_{o}")).collect::<Vec<_>>().join(", "),
        therefore: format!(
            "kernel {version} cannot do {}",
            lacking.iter().map(|(_, why)| *why).collect::<Vec<_>>().join(", ")
        ),
        fix: "use a mirror that has a newer kernel (TEIJI_MIRROR)".into(),
    })
}

fn lacking(config: &str, kernel: Kernel) -> Vec<&'static (&'static str, &'static str)> {
    let has = |option: &str| {
        config.lines().any(|l| {
            l.strip_prefix("CONFIG_")
                .and_then(|l| l.strip_prefix(option))
                .is_some_and(|v| v == "=y" || v == "=m")
        })
    };
    KERNEL_OPTIONS.iter().filter(|(option, _)| !has(option) && !kernel.lacks().contains(option)).collect()
}

/// Writes the ELF file inside the packed kernel `version` to `to`: QEMU enters it directly (PVH), so that no boot has
/// to unpack it. The packed file is removed. The layout is in the kernel's `Documentation/arch/x86/boot.rst`.
pub(crate) fn unpack(root: &Path, version: &str, to: &Path) -> Result<()> {
    let path = root.join("usr/lib/modules").join(version).join("vmlinuz");
    let packed = fs::read(&path).doing(|| format!("read {}", path.display()))?;
    let (tool, payload) = payload(&packed).ok_or_else(|| {
        Error::LabHost(format!("has a kernel packed in an unknown way: {}", path.display()))
    })?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
    }
    let from = to.with_extension("packed");
    fs::write(&from, payload).doing(|| format!("write {}", from.display()))?;
    let input = File::open(&from).doing(|| format!("read {}", from.display()))?;
    let output = File::create(to).doing(|| format!("write {}", to.display()))?;
    let status = Command::new("chroot")
        .arg(root)
        .args([tool, "-dc"])
        .stdin(input)
        .stdout(output)
        .status()
        .doing(|| format!("start {tool}"))?;
    fs::remove_file(&from).doing(|| format!("remove {}", from.display()))?;
    if !status.success() {
        return Err(Error::Failed {
            command: format!("{tool} -dc < {}", from.display()),
            code: status.code().unwrap_or(-1),
            stderr: String::new(),
        });
    }
    fs::remove_file(&path).doing(|| format!("remove {}", path.display()))
}

/// The packed kernel in a kernel image, and the tool that unpacks it.
fn payload(image: &[u8]) -> Option<(&'static str, &[u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    // After it comes the unpacked size, which is not for the tool.
    let packed = image.get(start..start + word(0x24c)?.checked_sub(4)?)?;
    match packed {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("zstd", packed)),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some(("xz", packed)),
        [0x1f, 0x8b, ..] => Some(("gzip", packed)),
        _ => None,
    }
}

/// The files (relative to the modules folder) that must be loaded for `wanted`, in loading order, from the text of
/// `modules.dep`. Built-in modules are not listed there and need nothing.
pub(crate) fn load_order(dep: &str, wanted: &[&str]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let line = dep.lines().find(|l| {
            let file = l.split(':').next().unwrap_or_default();
            let stem = file.rsplit('/').next().unwrap_or_default().split('.').next().unwrap_or_default();
            stem.replace('-', "_") == name.replace('-', "_")
        });
        let Some((file, needs)) = line.and_then(|l| l.split_once(':')) else { continue };
        // modules.dep lists the modules to load first last.
        for f in needs.split_whitespace().rev().chain([file]) {
            if !order.iter().any(|o| o == f) {
                order.push(f.to_owned());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_after_what_they_need() {
        let dep = "fs/9p/9p.ko.xz: net/9pnet.ko.xz fs/netfs.ko.xz\nnet/9pnet.ko.xz: fs/netfs.ko.xz\n\
                   fs/netfs.ko.xz:\nfs/overlay.ko.xz:\n";
        assert_eq!(
            load_order(dep, &["9p", "overlay", "built-in"]),
            ["fs/netfs.ko.xz", "net/9pnet.ko.xz", "fs/9p/9p.ko.xz", "fs/overlay.ko.xz"]
        );
    }

    #[test]
    fn the_packed_kernel_is_found_in_its_image() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&12_u32.to_le_bytes());
        image[1040..1048].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3, 4]);
        assert_eq!(payload(&image), Some(("zstd", &image[1040..1048])));
        image[1040] = 0;
        assert_eq!(payload(&image), None);
        assert_eq!(payload(&image[..1044]), None);
        assert_eq!(payload(&[]), None);
    }

    #[test]
    fn an_option_that_is_not_set_is_reported() {
        let mut config: String = KERNEL_OPTIONS.iter().map(|(o, _)| format!("CONFIG_{o}=m\n")).collect();
        let names =
            |config: &str, kernel| lacking(config, kernel).iter().map(|(o, _)| *o).collect::<Vec<_>>();
        assert_eq!(names(&config, Kernel::Newest), [""; 0]);
        config = config.replace("CONFIG_NUMA=m", "# CONFIG_NUMA is not set");
        assert_eq!(names(&config, Kernel::Newest), ["NUMA"]);
        // Options that are newer than a kernel are not required of it.
        config = config.replace("CONFIG_NET_SCH_BPF=m", "");
        assert_eq!(names(&config, Kernel::Newest), ["NET_SCH_BPF", "NUMA"]);
        assert_eq!(names(&config, Kernel::Stable), ["NUMA"]);
    }
}
