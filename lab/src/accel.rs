//! Whether this machine's KVM can run the lab host. The device node alone does not prove it (on some machines it
//! exists, but every kernel instruction is emulated), so a kernel is booted under KVM with a short limit. The result is
//! stored in the cache until this machine boots again.

use std::{fs, path::Path, time::Duration};

use crate::{
    cache::{self, Lock},
    error::{Doing, Result},
    initramfs,
    machine::{Accel, Machine},
    progress::ProgressStep,
    recipe::Kernel,
    rootfs::Prepared,
};

/// A kernel that takes longer than this to reach user space is not run by hardware.
const LIMIT: Duration = Duration::from_secs(6);

/// The best way to run the lab host on this machine.
pub(crate) fn choose(prepared: &Prepared) -> Result<Accel> {
    if !Path::new("/dev/kvm").exists() || !nested() {
        return Ok(Accel::Tcg);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let file = cache::folder()?.join("kvm-works");
    // Two lab hosts may begin at once.
    let _lock = Lock::take(&cache::folder()?.join("probe.lock"), "the attempt to use KVM")?;
    let known = fs::read_to_string(&file).unwrap_or_default();
    let works = match known.strip_prefix(boot.trim()).map(str::trim) {
        Some("yes") => true,
        Some("no") => false,
        _ => {
            let step =
                ProgressStep::begin("booting a kernel under KVM to see whether it works here (at most 6 s)");
            let works = probe(prepared)?;
            step.say(if works { "KVM works" } else { "KVM cannot run a kernel here: emulating instead" });
            let answer = format!("{} {}\n", boot.trim(), if works { "yes" } else { "no" });
            fs::write(&file, answer).doing(|| format!("write {}", file.display()))?;
            works
        }
    };
    Ok(if works { Accel::Kvm } else { Accel::Tcg })
}

/// Whether KVM on this machine allows nested guests, which the lab needs.
fn nested() -> bool {
    ["kvm_intel", "kvm_amd"].iter().any(|m| {
        fs::read_to_string(format!("/sys/module/{m}/parameters/nested"))
            .is_ok_and(|v| matches!(v.trim(), "Y" | "1"))
    })
}

fn probe(prepared: &Prepared) -> Result<bool> {
    let folder = cache::folder()?.join("probe");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).doing(|| format!("make {}", folder.display()))?;
    initramfs::write(prepared, Kernel::default(), &[], &folder.join("initrd"))?;
    let machine = Machine::start_probe(prepared, &folder)?;
    machine.emulator().wait(LIMIT);
    machine.kill();
    let printed = fs::read_to_string(folder.join("console.log")).unwrap_or_default();
    let _ = fs::remove_dir_all(&folder);
    Ok(printed.contains("teiji-probe-ok"))
}
