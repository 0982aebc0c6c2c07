//! The lab's kernel: does it have what the lab needs, and which modules does a module need.

use std::{fs, path::Path};

use crate::{
    error::{Doing, Error, Result},
    recipe::KERNEL_OPTIONS,
};

/// Fails unless kernel `version` in `root` has every option of the recipe, built in or as a module.
pub(crate) fn check(root: &Path, version: &str) -> Result<()> {
    let path = root.join("usr/lib/modules").join(version).join("config");
    let config = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
    let lacking = lacking(&config);
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

fn lacking(config: &str) -> Vec<&'static (&'static str, &'static str)> {
    let has = |option: &str| {
        config.lines().any(|l| {
            l.strip_prefix("CONFIG_")
                .and_then(|l| l.strip_prefix(option))
                .is_some_and(|v| v == "=y" || v == "=m")
        })
    };
    KERNEL_OPTIONS.iter().filter(|(option, _)| !has(option)).collect()
}

/// Files (relative to the modules folder) that must be loaded for `wanted`, in loading order, from the text
/// of `modules.dep`. Modules that are built in are not listed there and need nothing.
pub(crate) fn load_order(dep: &str, wanted: &[&str]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let line = dep.lines().find(|l| {
            let file = l.split(':').next().unwrap_or_default();
            let stem = file.rsplit('/').next().unwrap_or_default().split('.').next().unwrap_or_default();
            stem.replace('-', "_") == name.replace('-', "_")
        });
        let Some((file, needs)) = line.and_then(|l| l.split_once(':')) else { continue };
        // modules.dep lists what must come first last.
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
    fn an_option_that_is_not_set_is_reported() {
        let mut config: String = KERNEL_OPTIONS.iter().map(|(o, _)| format!("CONFIG_{o}=m\n")).collect();
        assert!(lacking(&config).is_empty());
        config = config.replace("CONFIG_NUMA=m", "# CONFIG_NUMA is not set");
        assert_eq!(lacking(&config).iter().map(|(o, _)| *o).collect::<Vec<_>>(), ["NUMA"]);
    }
}
