//! What the lab's root file system is made of.
//!
//! The [`key`] is a hash over everything that decides the result, so that a changed recipe makes a new
//! root file system and an unchanged one is shared by all clones of the project.

use sha2::{Digest, Sha256};

/// Debian release of the root file system.
pub(crate) const SUITE: &str = "trixie";

/// Where the kernel comes from: the release's own one has neither all of sched_ext nor BPF qdiscs.
pub(crate) const KERNEL_SUITE: &str = "trixie-backports";

/// Bytes that must be free before preparation starts: the root file system, its packages and the build beside it.
pub(crate) const DISK_NEEDED: u64 = 4 << 30;

/// Raise when the steps change in a way that the other inputs of [`key`] do not show.
const VERSION: u32 = 2;

/// Packages beside Debian's minimal set.
pub(crate) const PACKAGES: &[&str] = &[
    // The machine: emulator, firmware, modules, network and process tools.
    "qemu-system-x86",
    "seabios",
    "ipxe-qemu",
    "busybox-static",
    "kmod",
    "udev",
    "xz-utils",
    // The image of the root file system and the unpacked kernel are made by these.
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
    // Load, peers, rivals to measure against.
    "sip-tester",
    "iperf3",
    "stress-ng",
    "tcpdump",
    "strace",
    "bpftool",
    "bpftrace",
    "trace-cmd",
    "linux-perf",
    // What operators run.
    "libvirt-daemon-system",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "etcd-server",
    "etcd-client",
];

/// Run inside the new root file system: fetches and unpacks the newest kernel of [`KERNEL_SUITE`].
pub(crate) const KERNEL_SCRIPT: &str = include_str!("boot/kernel.sh");

/// The unpacked kernel, in the root file system (guests are started with it too).
pub(crate) const VMLINUX: &str = "usr/lib/teiji-lab/vmlinux";

/// Name of the image of the root file system.
pub(crate) const IMAGE: &str = "root.erofs";

/// Modules that the initial RAM file system loads: what reaches the root file system, and what every guest needs
/// (loading these from the root file system costs a guest seconds).
pub(crate) const BOOT_MODULES: &[&str] =
    &["virtio_blk", "erofs", "overlay", "virtio_net", "vmw_vsock_virtio_transport"];

/// Kernel options that the lab relies on, each with what needs it.
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

/// Hash that names the result of this recipe, 16 hexadecimal digits.
pub(crate) fn key() -> String {
    let mut hash = Sha256::new();
    let mut add = |s: &str| {
        hash.update((s.len() as u64).to_le_bytes());
        hash.update(s);
    };
    add(&VERSION.to_string());
    for s in [SUITE, KERNEL_SUITE, KERNEL_SCRIPT] {
        add(s);
    }
    PACKAGES.iter().chain(BOOT_MODULES).for_each(|s| add(s));
    hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()
}
