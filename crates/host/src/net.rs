//! A VM's taps: which they are, who serves them, and which bridge they belong to.

use crate::cmdline::{CommandLine, NetDev};
use crate::root::Root;
use crate::rtnl::Rtnl;
use nix::errno::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use teiji_model::host::{DataPlane, Nic, Vm};
use teiji_model::qdisc::Device;

/// How often a device may be renamed while its name is looked for.
const RENAMES: usize = 3;

/// The open descriptors of a VMM that concern its network.
#[derive(Default)]
pub(crate) struct Descriptors {
    /// Of `/dev/net/tun`: descriptor and the tap's name.
    pub taps: Vec<(u32, String)>,
    /// Of `/dev/tapN`: descriptor and the macvtap's index, which N is.
    pub macvtaps: Vec<(u32, u32)>,
    /// How many of `/dev/vhost-net` there are: one for each queue pair that vhost serves.
    pub vhost_net: usize,
}

/// The tap that descriptor `fd` of `/dev/net/tun` is attached to, by its `iff:` line.
pub(crate) fn tap(root: &Root, pid: u32, fd: u32) -> Option<String> {
    let info = root.text(&format!("proc/{pid}/fdinfo/{fd}"))?;
    let name = info.lines().find_map(|l| l.strip_prefix("iff:"))?.trim();
    (!name.is_empty() && !name.contains('/') && name != "..").then(|| name.to_owned())
}

/// The macvtaps of this network namespace that descriptors of `/dev/tapN` are open on.
fn macvtaps(root: &Root, held: &[(u32, u32)]) -> Vec<(u32, String)> {
    if held.is_empty() {
        return Vec::new();
    }
    let names = root.names("sys/class/net");
    let is = |name: &String, index: u32| {
        let below = format!("sys/class/net/{name}");
        let node = |place: &str| root.exists(&format!("{below}/{place}tap{index}"));
        ifindex(root, name) == index && (node("macvtap/") || node(""))
    };
    let name = |index| names.iter().find(|name| is(name, index)).cloned();
    held.iter().filter_map(|(fd, index)| Some((*fd, name(*index)?))).collect()
}

/// The address that a device has.
fn own_mac(root: &Root, device: &str) -> Option<[u8; 6]> {
    crate::cmdline::mac(root.text(&format!("sys/class/net/{device}/address"))?.trim())
}

/// The VM's NICs, in the order of their descriptors. A tap in another network namespace than that of this process is
/// known only by what the VMM says: a device with the same name here is a different one.
pub(crate) fn nics(
    root: &Root,
    pid: u32,
    open: &Descriptors,
    netdevs: &[NetDev],
    fdb: &BridgeFdb,
) -> Vec<Nic> {
    let namespace = |of: &str| root.link(&format!("proc/{of}/ns/net"));
    let here = match (namespace("self"), namespace(&pid.to_string())) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => true,
    };
    let mut order: Vec<&str> = Vec::new();
    let mut fds: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let macvtaps = if here { macvtaps(root, &open.macvtaps) } else { Vec::new() };
    for (fd, tap) in open.taps.iter().chain(&macvtaps) {
        if !order.contains(&tap.as_str()) {
            order.push(tap);
        }
        fds.entry(tap).or_default().push(*fd);
    }
    let one = order.len() == 1 && netdevs.len() == 1;
    order
        .iter()
        .map(|&tap| {
            let held = &fds[tap];
            let mut named = netdevs
                .iter()
                .filter(|n| n.ifname.as_deref() == Some(tap) || n.fds.iter().any(|fd| held.contains(fd)));
            let netdev = named.next().or_else(|| netdevs.first().filter(|_| one));
            let vhost = open.vhost_net > 0 && netdev.and_then(|n| n.vhost).unwrap_or(true);
            let macvtap = macvtaps.iter().any(|(_, name)| name == tap);
            let learnt = || if macvtap { own_mac(root, tap) } else { fdb.mac(root, tap) };
            Nic {
                tap: tap.to_owned(),
                ifindex: if here { ifindex(root, tap) } else { 0 },
                mac: netdev.and_then(|n| n.mac).or_else(|| learnt().filter(|_| here)),
                bridge: master(root, tap).filter(|_| here),
                data_plane: match (vhost, macvtap) {
                    (true, false) => DataPlane::VhostNet,
                    (false, false) => DataPlane::Userspace,
                    (true, true) => DataPlane::VhostMacvtap,
                    (false, true) => DataPlane::UserspaceMacvtap,
                },
                queues: u32::try_from(held.len()).unwrap_or(u32::MAX),
            }
        })
        .collect()
}

/// The VM's NICs that have no tap.
pub(crate) fn without_tap(root: &Root, line: &CommandLine) -> Vec<Nic> {
    let nic =
        |tap: String, mac, data_plane| Nic { tap, ifindex: 0, mac, bridge: None, data_plane, queues: 0 };
    // The class of network controllers is 02; other devices that were given to the VM are no NICs.
    let class = |at: &String| root.text(&format!("sys/bus/pci/devices/{at}/class"));
    let sane = |at: &String| !at.contains('/') && at != "..";
    let given = line
        .given_devices()
        .into_iter()
        .filter(|at| sane(at) && class(at).is_some_and(|c| c.starts_with("0x02")));
    let given = given.map(|at| nic(at, None, DataPlane::Passthrough));
    given.chain(line.vhost_user().into_iter().map(|(id, mac)| nic(id, mac, DataPlane::VhostUser))).collect()
}

impl Root {
    /// A tap on its own, whoever serves it, as a VM of that name without threads and with process id 0.
    ///
    /// # Errors
    /// If there is no such tap in this network namespace.
    pub fn tap(&self, name: &str) -> Result<Vm, crate::Error> {
        let sane = !name.is_empty() && !name.contains('/') && name != "..";
        if !sane || !self.exists(&format!("sys/class/net/{name}/tun_flags")) {
            return Err(crate::Error::NoTap { name: name.to_owned() });
        }
        let nic = Nic {
            tap: name.to_owned(),
            ifindex: ifindex(self, name),
            mac: BridgeFdb::default().mac(self, name),
            bridge: master(self, name),
            data_plane: DataPlane::Userspace,
            queues: u32::try_from(
                self.names(&format!("sys/class/net/{name}/queues"))
                    .iter()
                    .filter(|q| q.starts_with("tx"))
                    .count(),
            )
            .unwrap_or(1),
        };
        Ok(Vm {
            name: name.to_owned(),
            pid: 0,
            vcpus: Vec::new(),
            workers: Vec::new(),
            nics: vec![nic],
            memory: None,
            memory_nodes: Vec::new(),
        })
    }
}

/// A device's index; 0 if it is not in this network namespace.
pub(crate) fn ifindex(root: &Root, device: &str) -> u32 {
    root.number(&format!("sys/class/net/{device}/ifindex")).and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// The present name of the device with this index, if sysfs shows it; it may have been renamed.
///
/// # Errors
/// `ENODEV` if there is no such device, `EXDEV` if sysfs shows the devices of another network namespace than that of
/// this process, as after `nsenter --net` without `--mount`.
pub(crate) fn name_of(root: &Root, device: &Device) -> nix::Result<String> {
    if ifindex(root, &device.name) == device.index {
        return Ok(device.name.clone());
    }
    if !root.is_real() {
        let mut names = root.names("sys/class/net").into_iter();
        return names.find(|name| ifindex(root, name) == device.index).ok_or(Errno::ENODEV);
    }
    let mut rtnl = Rtnl::open()?;
    // It may be renamed again between the two looks.
    for _ in 0..RENAMES {
        let name = rtnl.name(device.index)?;
        if ifindex(root, &name) == device.index {
            return Ok(name);
        }
    }
    Err(Errno::EXDEV)
}

/// The bridge (or `ovs-system`) that a device is a port of.
pub(crate) fn master(root: &Root, device: &str) -> Option<String> {
    let link = root.link(&format!("sys/class/net/{device}/master"))?;
    link.rsplit('/').next().map(str::to_owned)
}

/// The addresses that bridges have learnt. The table of each is read once, however many taps are its ports.
#[derive(Default)]
pub(crate) struct BridgeFdb(RefCell<BTreeMap<String, BTreeMap<u64, Port>>>);

/// The addresses that a bridge has learnt on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    /// One address.
    One([u8; 6]),
    /// Several.
    Several,
}

impl BridgeFdb {
    /// The one address that the bridge has learnt on the tap's port; `None` if it knows none or several.
    fn mac(&self, root: &Root, tap: &str) -> Option<[u8; 6]> {
        let bridge = master(root, tap)?;
        let port = root.number(&format!("sys/class/net/{tap}/brport/port_no"))?;
        let mut tables = self.0.borrow_mut();
        let table = tables.entry(bridge).or_insert_with_key(|bridge| {
            parse_fdb(&root.bytes(&format!("sys/class/net/{bridge}/brforward")).unwrap_or_default())
        });
        match table.get(&port)? {
            Port::One(mac) => Some(*mac),
            Port::Several => None,
        }
    }
}

/// By port. `brforward` is an array of `struct __fdb_entry` of `include/uapi/linux/if_bridge.h`: address,
/// port (low byte), is_local, ageing timer, port (high byte), 3 bytes of padding.
fn parse_fdb(table: &[u8]) -> BTreeMap<u64, Port> {
    let mut ports = BTreeMap::new();
    for entry in table.chunks_exact(16).filter(|entry| entry[7] == 0) {
        let Ok(mac) = <[u8; 6]>::try_from(&entry[..6]) else { continue };
        let port = ports.entry(u64::from(entry[6]) | u64::from(entry[12]) << 8).or_insert(Port::One(mac));
        if *port != Port::One(mac) {
            *port = Port::Several;
        }
    }
    ports
}
