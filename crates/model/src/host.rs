//! What discovery has found on a host.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// libvirt's name, else QEMU's `-name` (`guest=`), else `pid:N`; [`Identity`] says whether to trust it. Untrusted
    /// text: escape it when printing.
    pub name: String,
    /// The VMM's process id.
    pub pid: u32,
    /// vCPU threads, by index.
    pub vcpus: Vec<Vcpu>,
    /// vhost workers that serve it.
    pub workers: Vec<Worker>,
    /// Its network interfaces.
    pub nics: Vec<Nic>,
    /// The VM's memory, bytes, if known.
    pub memory: Option<u64>,
    /// Resident memory of the VMM by NUMA node, bytes; empty if it was not read, as it is only to be shown.
    pub memory_nodes: Vec<u64>,
    /// More about those of its network interfaces that are [`DataPlane::Passthrough`]. Has a place of its own wherever a VM is
    /// written, so that what older versions of teiji read stays the same.
    #[serde(skip)]
    pub given: Vec<GivenNic>,
}

/// A NIC of the host that was given to a VM (VFIO).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenNic {
    /// Its PCI address on the host, which is also [`Nic::tap`].
    pub address: String,
    /// Its PCI vendor id, as the guest sees it, too; 0 if not known.
    pub vendor: u16,
    /// Its PCI device id; 0 if not known.
    pub device: u16,
    /// Which virtual function of a NIC it is; `None` if it is a whole NIC.
    pub function: Option<VirtualFunction>,
}

/// A virtual function of an SR-IOV NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualFunction {
    /// The PCI address of the physical function.
    pub physical: String,
    /// The physical function's network interface, if it has one in this network namespace. Untrusted text.
    pub link: Option<String>,
    /// The number of the virtual function, from 0, as `ip link set LINK vf NUMBER` counts.
    pub number: u32,
}

impl GivenNic {
    /// What it is, such as `VF 2 of eth1`. Untrusted text.
    pub fn what(&self) -> String {
        match &self.function {
            Some(VirtualFunction { physical, link, number }) => {
                format!("VF {number} of {}", link.as_deref().unwrap_or(physical))
            }
            None => "whole NIC".to_owned(),
        }
    }
}

impl Vm {
    /// More about a NIC that was given to the VM.
    pub fn given_nic(&self, nic: &Nic) -> Option<&GivenNic> {
        let passed = nic.data_plane == DataPlane::Passthrough;
        self.given.iter().find(|given| passed && given.address == nic.tap)
    }
}

/// Users whose VMs may name themselves, unless the policy lists others: root, and the users that packages of QEMU and
/// libvirt create. Of the latter only VMs that libvirt could not be asked about ([`Identity::unconfirmed`]): where libvirt
/// runs, all of its VMs have one of these users, and a guest that escapes is such a user, too.
pub const VM_USERS: [&str; 3] = ["root", "libvirt-qemu", "qemu"];

/// The user of a VM's process, and the origin of the VM's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The VMM's user id on this host; `None` if it is not known.
    pub uid: Option<u32>,
    /// The user's name, if the host has one. Untrusted text.
    pub user: Option<String>,
    /// The origin of the VM's name.
    pub named_by: NamedBy,
    /// When the VMM's process was started, in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    #[serde(default)]
    pub started: Option<u64>,
    /// libvirt's or QEMU's UUID of the VM, if it has one. Whoever starts a VM chooses it, as its name.
    #[serde(default)]
    pub uuid: Option<Uuid>,
    /// Whether libvirt's system daemon keeps its state on this host, and does not confirm the name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

/// What a VM keeps when it is stopped and started again, unlike its process id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmId {
    /// Its UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// The user of its process, if known.
    pub uid: Option<u32>,
    /// The process itself, of a VM that is named by its process id: it is not the same VM once it is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<VmProcess>,
}

/// A process that no other one is mistaken for, although its id is used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmProcess {
    /// `/proc/sys/kernel/random/boot_id` of the host.
    pub boot: String,
    /// When it was started, in clock ticks since boot.
    pub started: u64,
}

impl VmId {
    /// Whether a VM of the same name is this one: nothing that is known of both differs.
    pub fn may_be(&self, other: &VmId) -> bool {
        let uuids = self.uuid.is_none() && other.uuid.is_none() || self.uuid == other.uuid;
        uuids
            && self.process == other.process
            && (self.uid.is_none() || other.uid.is_none() || self.uid == other.uid)
    }
}

/// The origin of a VM's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedBy {
    /// libvirt, which started it.
    Libvirt,
    /// Its own command line, which any process can choose.
    Itself,
}

impl Identity {
    /// What the VM keeps when it is started again.
    pub fn id(&self) -> VmId {
        VmId { uuid: self.uuid, uid: self.uid, process: None }
    }

    /// The same of a VM that is named by its process id. `boot`: that of the host now.
    pub fn id_of_process(&self, boot: &str) -> VmId {
        let process = self.started.map(|started| VmProcess { boot: boot.to_owned(), started });
        VmId { process, ..self.id() }
    }

    /// Whether the process belongs to this user, by name or number.
    pub fn is_of(&self, user: &str) -> bool {
        let number = self.uid.is_some_and(|uid| user.parse() == Ok(uid));
        number || self.user.as_deref() == Some(user) || (user == "root" && self.uid == Some(0))
    }

    /// Why the VM may not be what its name says: it has named itself and belongs to none of these users. `None` if its
    /// name can be trusted. Printable, except for the user's name.
    pub fn doubt<U: AsRef<str>>(&self, users: &[U]) -> Option<String> {
        let trusted = self.named_by == NamedBy::Libvirt || users.iter().any(|user| self.is_of(user.as_ref()));
        (!trusted).then(|| match (&self.user, self.uid) {
            (Some(user), _) => format!("user {user}"),
            (None, Some(uid)) => format!("user {uid}"),
            (None, None) => "a user that cannot be told".to_owned(),
        })
    }

    /// The same where no policy lists users: those of [`VM_USERS`] are trusted, but where libvirt could have confirmed the
    /// name and does not, only root.
    pub fn doubt_by_default(&self) -> Option<String> {
        self.doubt(if self.unconfirmed { &VM_USERS[..1] } else { &VM_USERS[..] })
    }
}

/// A vCPU thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu {
    /// The VMM's index of the vCPU: the number that `virsh vcpupin` uses.
    pub index: u16,
    /// KVM's number of the vCPU, if known: its APIC id, which skips numbers if the number of sockets or cores is not a
    /// power of two (`-smp 6,sockets=2,cores=3`: 0, 1, 2, 4, 5, 6).
    #[serde(default)]
    pub kvm_id: Option<u32>,
    /// Thread id.
    pub tid: u32,
    /// The CPUs that it may run on, as a list such as `0-3,8`.
    pub cpus: String,
    /// The CPU that it last ran on.
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
    /// The CPUs that it may run on, as a list.
    pub cpus: String,
    /// The CPU that it last ran on.
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
    /// A macvtap served by the kernel's vhost worker.
    VhostMacvtap,
    /// A macvtap served by the VMM itself.
    UserspaceMacvtap,
    /// A PCI device of the host that was given to the VM (VFIO).
    Passthrough,
    /// Another process serves it, such as a switch on DPDK.
    VhostUser,
}

impl DataPlane {
    /// Whether recordings of every version can have it; the others came with version 5.
    pub(crate) fn since_version_1(self) -> bool {
        matches!(self, DataPlane::VhostNet | DataPlane::Userspace)
    }

    /// Whether the tap is a macvtap.
    pub fn is_macvtap(self) -> bool {
        matches!(self, DataPlane::VhostMacvtap | DataPlane::UserspaceMacvtap)
    }
}

/// A VM's network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// The tap's name; the address of a PCI device that was given to the VM; otherwise the name that the VMM has for it.
    pub tap: String,
    /// The tap's index; 0 if there is none in this network namespace.
    pub ifindex: u32,
    /// The guest's MAC address, if known.
    pub mac: Option<[u8; 6]>,
    /// The bridge or OVS port master, if any.
    pub bridge: Option<String>,
    /// What serves it.
    pub data_plane: DataPlane,
    /// Number of queue pairs; 0 if not known.
    pub queues: u32,
}

impl Nic {
    /// What of its packets cannot be seen, why, and what helps; `None` if they are followed on their whole path.
    pub fn unseen(&self) -> Option<&'static str> {
        Some(match self.data_plane {
            DataPlane::Passthrough => {
                "packets are not seen (VFIO), interrupts at most; echo requests with `trace --guest --match echo`"
            }
            DataPlane::VhostUser => "not seen, as its packets pass another process by shared memory",
            _ if self.ifindex == 0 => "not seen, as its tap is in another network namespace; run teiji there",
            DataPlane::UserspaceMacvtap => {
                "seen up to the tap only; a macvtap is followed further with vhost=on"
            }
            DataPlane::VhostNet | DataPlane::Userspace | DataPlane::VhostMacvtap => return None,
        })
    }
}

/// One requirement of teiji, and whether this host meets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Short name, such as `btf` or `tun_net_xmit`.
    pub name: String,
    /// Whether it is present.
    pub present: bool,
    /// Whether requests cannot be followed on their whole path without it.
    pub essential: bool,
    /// What was found, or what is missing.
    pub found: String,
    /// What does not work without it; empty if present.
    pub consequence: String,
    /// How to get it; empty if present.
    pub remedy: String,
}

impl Requirement {
    /// Whether it is missing and essential.
    pub fn is_lacking(&self) -> bool {
        !self.present && self.essential
    }
}
