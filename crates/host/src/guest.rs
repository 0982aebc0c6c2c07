//! How a VM's guest can be talked to, and how its time stamp counter follows from the host's.

use crate::Root;
use crate::cmdline::CommandLine;
use serde::{Deserialize, Serialize};

/// See the module. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestAccess {
    /// The guest's context id on vsock: the kernel lets no other VM use it.
    pub cid: Option<u32>,
    /// What KVM adds to the host's TSC for the guest, if it is the same for all vCPUs, and the guest's TSC runs as fast as
    /// the host's.
    pub tsc_offset: Option<i64>,
}

impl Root {
    /// Of the VM with this process id. Reading the TSC needs debugfs, so root.
    pub fn guest_access(&self, pid: u32) -> GuestAccess {
        let line = self.bytes(&format!("proc/{pid}/cmdline")).map(|bytes| CommandLine::new(&bytes));
        GuestAccess { cid: line.and_then(|line| line.vsock_cid()), tsc_offset: tsc_offset(self, pid) }
    }
}

/// `/sys/kernel/debug/kvm/PID-FD/vcpuN/tsc-offset`, see kvm_arch_create_vcpu_debugfs() in arch/x86/kvm/debugfs.c. The two
/// files of the ratio are there if the CPU can scale a guest's TSC.
fn tsc_offset(root: &Root, pid: u32) -> Option<i64> {
    let prefix = format!("{pid}-");
    let vm = root.names("sys/kernel/debug/kvm").into_iter().find(|name| name.starts_with(&prefix))?;
    let dir = format!("sys/kernel/debug/kvm/{vm}");
    let mut offsets = root.names(&dir).into_iter().filter(|name| name.starts_with("vcpu")).map(|vcpu| {
        let number = |file: &str| root.text(&format!("{dir}/{vcpu}/{file}"))?.trim().parse::<i64>().ok();
        let ratio = number("tsc-scaling-ratio");
        let bits = number("tsc-scaling-ratio-frac-bits");
        let scaled =
            ratio.is_some_and(|ratio| bits.is_none_or(|bits| 1i64.checked_shl(bits as u32) != Some(ratio)));
        number("tsc-offset").filter(|_| !scaled)
    });
    let first = offsets.next()??;
    offsets.all(|other| other == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::new(dir.path());
        (dir, root)
    }

    #[test]
    fn the_context_id_and_the_offset_are_those_of_the_process() {
        let (_dir, root) = root(&[
            ("proc/7/cmdline", "qemu-system-x86_64\0-device\0vhost-vsock-pci,id=v,guest-cid=42\0"),
            ("sys/kernel/debug/kvm/7-12/vcpu0/tsc-offset", "-1000\n"),
            ("sys/kernel/debug/kvm/7-12/vcpu1/tsc-offset", "-1000\n"),
            ("sys/kernel/debug/kvm/70-12/vcpu0/tsc-offset", "5\n"),
        ]);
        assert_eq!(root.guest_access(7), GuestAccess { cid: Some(42), tsc_offset: Some(-1000) });
        assert_eq!(root.guest_access(8), GuestAccess::default());
    }

    #[test]
    fn a_clock_that_is_scaled_or_differs_between_vcpus_has_no_offset() {
        let of = |files: &[(&str, &str)]| root(files).1.guest_access(7).tsc_offset;
        let vcpu0 = "sys/kernel/debug/kvm/7-12/vcpu0";
        let file = |name: &str| format!("{vcpu0}/{name}");
        let (offset, ratio, bits) =
            (file("tsc-offset"), file("tsc-scaling-ratio"), file("tsc-scaling-ratio-frac-bits"));
        let scaled = |ratio_is| of(&[(&offset, "5"), (&ratio, ratio_is), (&bits, "32")]);
        assert_eq!((scaled("4294967296"), scaled("4294967297")), (Some(5), None));
        assert_eq!(of(&[(&offset, "5"), ("sys/kernel/debug/kvm/7-12/vcpu1/tsc-offset", "6")]), None);
        assert_eq!(of(&[(&offset, "nonsense")]), None);
    }
}
