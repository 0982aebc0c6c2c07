//! The contents of the lab's root file system.
//!
//! The [`key`] is a hash of everything that determines the result, so that a changed recipe makes a new root file
//! system and an unchanged one is shared by all clones of the project.

use sha2::{Digest, Sha256};

/// Debian release of the root file system.
pub(crate) const SUITE: &str = "trixie";

/// The lab's list of kernels: a lab host and its guests run one of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kernel {
    /// Debian's newest package for its stable release: it has everything that teiji uses
    #[default]
    Newest,
    /// Debian's stable kernel, Linux 6.12, which many hosts run: without BPF qdiscs and sched_ext
    Stable,
    /// The kernel of the previous release (Debian 12, Linux 6.1), the oldest that teiji supports
    Oldstable,
}

impl Kernel {
    /// All kernels, the default first.
    pub const ALL: [Kernel; 3] = [Kernel::Newest, Kernel::Stable, Kernel::Oldstable];

    /// Its name in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Newest => "newest",
            Kernel::Stable => "stable",
            Kernel::Oldstable => "oldstable",
        }
    }

    /// The suite of the Debian archive that it comes from; the newest kernel of that suite is used.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Kernel::Newest => "trixie-backports",
            Kernel::Stable => SUITE,
            Kernel::Oldstable => "bookworm",
        }
    }

    /// Those of [`KERNEL_OPTIONS`] that it does not have.
    pub(crate) fn lacks(self) -> &'static [&'static str] {
        match self {
            Kernel::Newest => &[],
            // BPF qdiscs came with Linux 6.16; sched_ext came with 6.12, where Debian left it out.
            Kernel::Stable | Kernel::Oldstable => &["NET_SCH_BPF", "SCHED_CLASS_EXT"],
        }
    }

    /// The unpacked kernel in the root file system (guests are started with it, too).
    pub(crate) fn vmlinux(self) -> String {
        format!("usr/lib/teiji-lab/vmlinux-{}", self.name())
    }
}

/// Bytes that must be free before preparation starts: for the root file system, its packages and the build.
pub(crate) const DISK_NEEDED: u64 = 4 << 30;

/// To be incremented when the steps change in a way that does not change the other inputs of [`key`].
const VERSION: u32 = 4;

/// The suite of the Debian archive that the emulator and its firmware come from.
///
/// This is not [`SUITE`]: QEMU before 10.2 loses interrupts if one of several CPUs runs guests. `helper_vmrun` and
/// `do_vmexit` (target/i386/tcg/system/svm_helper.c) set and clear a bit of `interrupt_request` there without an atomic
/// operation, which undoes a change by the thread of another CPU at that moment. A CPU that halts then sleeps for ever,
/// and the others wait for it (the consoles show soft lockups and RCU stalls).
pub(crate) const EMULATOR_SUITE: &str = "trixie-backports";

/// The packages of the emulator, from that suite.
pub(crate) const EMULATOR: &[&str] = &["qemu-system-x86", "seabios", "ipxe-qemu"];

/// Comes before the scripts that install packages of another suite than [`SUITE`].
pub(crate) const SUITE_SCRIPT: &str = include_str!("boot/suite.sh");

/// Runs inside the new root file system: installs the emulator.
pub(crate) const EMULATOR_SCRIPT: &str = include_str!("boot/emulator.sh");

/// Packages of [`SUITE`] in addition to Debian's minimal set.
pub(crate) const PACKAGES: &[&str] = &[
    // The machine: modules, network and process tools.
    "busybox-static",
    "kmod",
    "udev",
    "xz-utils",
    // Tools that make the image of the root file system and unpack the kernel.
    "erofs-utils",
    "zstd",
    "iproute2",
    "iputils-ping",
    "ethtool",
    "pciutils",
    "procps",
    "util-linux",
    "numactl",
    "socat",
    "jq",
    "ca-certificates",
    "dbus",
    "python3-minimal",
    // Run-time libraries of the project's own programs.
    "libelf1t64",
    "zlib1g",
    // Load generators, peers, and tools to compare with.
    "sip-tester",
    "iperf3",
    "stress-ng",
    "tcpdump",
    "strace",
    "bpftool",
    "bpftrace",
    "trace-cmd",
    "linux-perf",
    // Software that operators run.
    "libvirt-daemon-system",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "etcd-server",
    "etcd-client",
];

/// Runs inside the new root file system for each kernel: fetches and unpacks the newest one of its suite.
pub(crate) const KERNEL_SCRIPT: &str = include_str!("boot/kernel.sh");

/// Name of the image of the root file system.
pub(crate) const IMAGE: &str = "root.erofs";

/// Modules that the initial RAM file system loads: those that are needed to reach the root file system, and those that
/// every guest needs (loading these from the root file system takes a guest seconds). `erofs` of Linux 6.12 requests
/// `crc32c` from the cryptographic interface, which its dependencies do not show. The first two are built into newer
/// kernels; 6.1 has them as modules.
pub(crate) const BOOT_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "crc32c_generic",
    "erofs",
    "overlay",
    "virtio_net",
    "vmw_vsock_virtio_transport",
];

/// Kernel options that the lab needs, each with what needs it.
pub(crate) const KERNEL_OPTIONS: &[(&str, &str)] = &[
    ("KVM_AMD", "nested guests"),
    ("VHOST_NET", "the guests' network"),
    ("VHOST_VSOCK", "commands in guests"),
    ("DEBUG_INFO_BTF", "BPF programs"),
    ("DEBUG_INFO_BTF_MODULES", "BPF programs on kvm, vhost and tun"),
    ("FUNCTION_TRACER", "fentry programs"),
    ("KPROBES", "kprobe programs"),
    ("SCHED_CLASS_EXT", "the vCPU scheduler"),
    ("NET_SCH_BPF", "the deadline qdisc"),
    ("NET_SCH_ETF", "the deadline qdisc's rival"),
    ("NUMA", "memory placement"),
    ("IGB", "the SR-IOV NIC"),
    ("IGBVF", "the SR-IOV NIC's virtual functions"),
    ("MPLS", "deadline marks"),
    ("PVH", "booting without unpacking the kernel"),
    ("EROFS_FS", "the root file system's image"),
];

/// The hash that names the result of this recipe, 16 hexadecimal digits.
pub(crate) fn key() -> String {
    let mut hash = Sha256::new();
    let mut add = |s: &str| {
        hash.update((s.len() as u64).to_le_bytes());
        hash.update(s);
    };
    add(&VERSION.to_string());
    add(SUITE);
    add(EMULATOR_SUITE);
    add(SUITE_SCRIPT);
    add(EMULATOR_SCRIPT);
    add(KERNEL_SCRIPT);
    Kernel::ALL.iter().flat_map(|k| [k.name(), k.suite()]).for_each(&mut add);
    PACKAGES.iter().chain(EMULATOR).chain(BOOT_MODULES).for_each(|s| add(s));
    hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()
}
