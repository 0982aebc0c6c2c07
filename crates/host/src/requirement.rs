//! What teiji needs of a host, and whether it is present. The kernel hooks are not checked here.
//!
//! Least privilege: the capabilities in [`NEEDED`] are enough; being root is not needed in addition.

use crate::resource;
use crate::root::Root;
use rustix::thread::CapabilitySet;
use teiji_model::host::Requirement;

/// Linux capabilities that tracing needs: which, its name, and what it is for.
pub const NEEDED: [(CapabilitySet, &str, &str); 5] = [
    (CapabilitySet::BPF, "CAP_BPF", "load BPF programs"),
    (CapabilitySet::PERFMON, "CAP_PERFMON", "let them read kernel memory"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", "read the types of kernel modules (tun, vhost, kvm)"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", "see what other users' VMMs have open"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "look into other users' /proc and into debugfs"),
];

/// The oldest kernel on which every probe was loaded and seen to work. Probes of modules need 5.11, drop reasons 5.17.
const OLDEST: (u32, u32) = (6, 1);

impl Root {
    /// Names of the capabilities in [`NEEDED`] that the calling process lacks.
    pub fn lacking(&self) -> Vec<&'static str> {
        NEEDED.iter().filter(|(capability, ..)| !self.may(*capability)).map(|(_, name, _)| *name).collect()
    }

    /// Whether the calling thread has the capability. Read from its file, which a root of tests has as well.
    pub(crate) fn may(&self, capability: CapabilitySet) -> bool {
        let status = self.text("proc/thread-self/status").or_else(|| self.text("proc/self/status"));
        let status = status.unwrap_or_default();
        let mask = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
        mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok())
            .is_some_and(|m| CapabilitySet::from_bits_retain(m).contains(capability))
    }

    /// What teiji needs of this host apart from the kernel's hooks.
    pub fn requirements(&self) -> Vec<Requirement> {
        let mut all = vec![self.kernel(), self.privilege(), self.lockdown()];
        all.push(self.file(
            "btf",
            "sys/kernel/btf/vmlinux",
            true,
            "no probe can be attached: probes find the kernel's structures by their types",
            "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of Debian, Ubuntu and Fedora are",
        ));
        all.push(self.file(
            "kvm",
            "dev/kvm",
            true,
            "there are no VMs to trace",
            "switch on virtualisation in the firmware, then modprobe kvm_intel or kvm_amd",
        ));
        all.push(self.file(
            "tun",
            "dev/net/tun",
            true,
            "VMs have no taps, so packets cannot be followed to them",
            "modprobe tun",
        ));
        all.push(self.vhost_net());
        all.push(self.either(
            "tracefs",
            &["sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"],
            "teiji cannot say in advance which tracepoints this kernel has",
            "mount -t tracefs none /sys/kernel/tracing",
        ));
        all.push(self.either(
            "sched tracepoints",
            &[
                "sys/kernel/tracing/events/sched/sched_switch",
                "sys/kernel/debug/tracing/events/sched/sched_switch",
            ],
            "waiting for a CPU may not be told apart from sleeping",
            "mount tracefs; if it is mounted, run a kernel with CONFIG_TRACEPOINTS=y",
        ));
        all.push(self.file(
            "debugfs",
            "sys/kernel/debug/kvm",
            false,
            "vCPU threads are found by their names only (QEMU: -name guest=N,debug-threads=on)",
            "mount -t debugfs none /sys/kernel/debug",
        ));
        all.extend(resource::requirements(self));
        all
    }

    /// The first two numbers of the kernel's release; zeros if it is unknown.
    pub(crate) fn kernel_version(&self) -> (u32, u32) {
        let release = self.release();
        let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    fn kernel(&self) -> Requirement {
        let release = self.release();
        Requirement {
            name: "kernel".into(),
            present: self.kernel_version() >= OLDEST,
            essential: true,
            found: if release.is_empty() { "release unknown".into() } else { format!("Linux {release}") },
            consequence: "teiji was never tried on it, and some probes cannot be loaded there".into(),
            remedy: format!("run Linux {}.{} or later", OLDEST.0, OLDEST.1),
        }
        .normalised()
    }

    fn privilege(&self) -> Requirement {
        let lacking = self.lacking();
        let reasons: Vec<String> = NEEDED
            .iter()
            .filter(|(_, name, _)| lacking.contains(name))
            .map(|(_, name, reason)| format!("{reason} ({name})"))
            .collect();
        let all: Vec<&str> = NEEDED.iter().map(|(_, name, _)| *name).collect();
        Requirement {
            name: "privilege".into(),
            present: lacking.is_empty(),
            essential: true,
            found: if lacking.is_empty() { all.join(", ") } else { format!("lacks {}", lacking.join(", ")) },
            consequence: format!("teiji cannot {}", reasons.join("; ")),
            remedy: format!("run it with sudo, or give it only {}", all.join(", ")),
        }
        .normalised()
    }

    fn lockdown(&self) -> Requirement {
        let state = self.text("sys/kernel/security/lockdown").unwrap_or_default();
        let confidential = state.contains("[confidentiality]");
        Requirement {
            name: "lockdown".into(),
            present: !confidential,
            essential: true,
            found: if confidential { "the kernel keeps its memory confidential" } else { "not in the way" }
                .into(),
            consequence: "probes may not read packets or kernel structures".into(),
            remedy: "boot without lockdown=confidentiality".into(),
        }
        .normalised()
    }

    fn vhost_net(&self) -> Requirement {
        let loaded = self.exists("sys/kernel/btf/vhost_net") || self.exists("sys/module/vhost_net");
        let device = self.exists("dev/vhost-net");
        Requirement {
            name: "vhost_net".into(),
            present: loaded,
            essential: true,
            found: match (loaded, device) {
                (true, _) => "loaded",
                (false, true) => "/dev/vhost-net is there, the module is not loaded",
                (false, false) => "neither the module nor /dev/vhost-net is there",
            }
            .into(),
            consequence: "no VM has a vhost-net NIC: only taps that VMMs serve themselves can be followed"
                .into(),
            remedy: "modprobe vhost_net, and give VMs taps with vhost=on".into(),
        }
        .normalised()
    }

    fn file(&self, name: &str, path: &str, essential: bool, consequence: &str, remedy: &str) -> Requirement {
        let present = self.exists(path);
        Requirement {
            name: name.into(),
            present,
            essential,
            found: format!("/{path}{}", if present { "" } else { " is not there" }),
            consequence: consequence.into(),
            remedy: remedy.into(),
        }
        .normalised()
    }

    fn either(&self, name: &str, paths: &[&str], consequence: &str, remedy: &str) -> Requirement {
        let path = paths.iter().find(|p| self.exists(p)).unwrap_or(&paths[0]);
        self.file(name, path, false, consequence, remedy)
    }
}

/// Leaves out the parts that apply only to something missing.
pub(crate) trait Normalise {
    fn normalised(self) -> Self;
}

impl Normalise for Requirement {
    fn normalised(mut self) -> Self {
        if self.present {
            self.consequence.clear();
            self.remedy.clear();
        }
        self
    }
}
