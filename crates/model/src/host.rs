//! What a host has and can do, as discovery found it.

use serde::{Deserialize, Serialize};

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// libvirt's name, else QEMU's `-name` (`guest=`), else `pid:N`; whether to trust it says [`Identity`]. Untrusted text: escape when printing.
    pub name: String,
    /// The VMM's process id.
    pub pid: u32,
    /// vCPU threads, by index.
    pub vcpus: Vec<Vcpu>,
    /// vhost workers that serve it.
    pub workers: Vec<Worker>,
    /// Its network interfaces.
    pub nics: Vec<Nic>,
    /// Memory that the VM was given, bytes, if it is known.
    pub memory: Option<u64>,
    /// Resident memory of the VMM by NUMA node, bytes.
    pub memory_nodes: Vec<u64>,
}

/// Users whose VMs are taken to be called what they say, unless the policy names others: root, and those that packages
/// of QEMU and libvirt make.
pub const VM_USERS: [&str; 3] = ["root", "libvirt-qemu", "qemu"];

/// Whose process a VM is, and who says that it is called so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The VMM's user as this host counts users; `None` if it cannot be told.
    pub uid: Option<u32>,
    /// That user's name, if the host has one for it. Untrusted text.
    pub user: Option<String>,
    /// Who says what the VM is called.
    pub named_by: NamedBy,
}

/// Who says what a VM is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedBy {
    /// libvirt, which started it.
    Libvirt,
    /// Its own command line, where any process may write any name.
    Itself,
}

impl Identity {
    /// Whether it is a process of this user, by name or number.
    pub fn is_of(&self, user: &str) -> bool {
        let number = self.uid.is_some_and(|uid| user.parse() == Ok(uid));
        number || self.user.as_deref() == Some(user) || (user == "root" && self.uid == Some(0))
    }

    /// Why the VM may not be what its name says, if so: it named itself, and is of none of these users. Printable but
    /// for the user's name.
    pub fn doubt<U: AsRef<str>>(&self, users: &[U]) -> Option<String> {
        let trusted = self.named_by == NamedBy::Libvirt || users.iter().any(|user| self.is_of(user.as_ref()));
        (!trusted).then(|| match (&self.user, self.uid) {
            (Some(user), _) => format!("user {user}"),
            (None, Some(uid)) => format!("user {uid}"),
            (None, None) => "a user that cannot be told".to_owned(),
        })
    }
}

/// A vCPU thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu {
    /// Index in the VM, as the VMM counts: what `virsh vcpupin` and people mean by a vCPU's number.
    pub index: u16,
    /// KVM's number of it, if it can be told from outside: the vCPU's APIC id, which skips numbers where a socket or core
    /// is not a power of two wide (`-smp 6,sockets=2,cores=3`: 0, 1, 2, 4, 5, 6).
    #[serde(default)]
    pub kvm_id: Option<u32>,
    /// Thread id.
    pub tid: u32,
    /// CPUs it may run on, as a list such as `0-3,8`.
    pub cpus: String,
    /// The CPU it last ran on.
    pub last_cpu: u32,
}

/// A vhost worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Thread id.
    pub tid: u32,
    /// Its name, `vhost-<pid>`.
    pub comm: String,
    /// Whether it is a kernel thread rather than a thread of the VMM.
    pub kernel_thread: bool,
    /// CPUs it may run on.
    pub cpus: String,
    /// The CPU it last ran on.
    pub last_cpu: u32,
}

/// How a VM's NIC reaches the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataPlane {
    /// A tap served by the kernel's vhost worker.
    VhostNet,
    /// A tap served by the VMM itself.
    Userspace,
}

/// A VM's network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// The tap's name.
    pub tap: String,
    /// The tap's index.
    pub ifindex: u32,
    /// The guest's MAC address, if it is known.
    pub mac: Option<[u8; 6]>,
    /// The bridge or OVS port master, if any.
    pub bridge: Option<String>,
    /// How it is served.
    pub data_plane: DataPlane,
    /// Queue pairs.
    pub queues: u32,
}

/// What one need of teiji comes to on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// Short name, such as `btf` or `tun_net_xmit`.
    pub name: String,
    /// Whether it is there.
    pub present: bool,
    /// Whether a VM with vhost-net NICs cannot be traced at all without it.
    pub essential: bool,
    /// What was found, or what is missing.
    pub found: String,
    /// What does not work without it; empty if present.
    pub consequence: String,
    /// How to get it; empty if present.
    pub remedy: String,
}

impl Capability {
    /// Whether it is missing and nothing works without it.
    pub fn is_lacking(&self) -> bool {
        !self.present && self.essential
    }
}
