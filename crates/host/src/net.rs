//! A VM's taps: which they are, who serves them, and which bridge they belong to.

use crate::cmdline::{CommandLine, NetDev};
use crate::resource::Devices;
use crate::root::{Dir, Root};
use crate::rtnl::{Link, Rtnl};
use nix::errno::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use teiji_model::host::{DataPlane, GivenNic, Nic, Vm};
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

/// The address that a device has.
fn own_mac(root: &Root, device: &str) -> Option<[u8; 6]> {
    crate::cmdline::mac(root.text(&format!("sys/class/net/{device}/address"))?.trim())
}

/// What tells about taps, read once for all VMs.
pub(crate) struct Taps<'a> {
    root: &'a Root,
    /// The network namespace of this process.
    namespace: Option<String>,
    /// The devices that the kernel lists, by name; `None` if it was not asked, and sysfs tells.
    listed: Option<BTreeMap<&'a str, &'a Link>>,
    devices: &'a Devices,
    fdb: BridgeFdb,
}

impl<'a> Taps<'a> {
    pub(crate) fn new(root: &'a Root, devices: &'a Devices) -> Self {
        let by_name = |links: &'a BTreeMap<u32, Link>| {
            links.values().map(|link| (link.name.as_str(), link)).collect::<BTreeMap<_, _>>()
        };
        Taps {
            root,
            namespace: namespace(root, "self"),
            listed: devices.links().map(by_name),
            devices,
            fdb: BridgeFdb::default(),
        }
    }

    /// A VM's NICs, in the order of their descriptors. A tap in another network namespace than that of this process is
    /// known only by what the VMM says: a device with the same name here is a different one.
    pub(crate) fn nics(&self, pid: u32, open: &Descriptors, netdevs: &[NetDev]) -> Vec<Nic> {
        let here = match (&self.namespace, namespace(self.root, &pid.to_string())) {
            (Some(ours), Some(theirs)) => *ours == theirs,
            _ => true,
        };
        let mut order: Vec<&str> = Vec::new();
        let mut fds: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        let macvtaps = if here { self.macvtaps(&open.macvtaps) } else { Vec::new() };
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
                let (ifindex, bridge) = if here { self.place(tap) } else { (0, None) };
                let macvtap = macvtaps.iter().any(|(_, name)| name == tap);
                let learnt = || match (here, macvtap) {
                    (false, _) => None,
                    (true, true) => own_mac(self.root, tap),
                    (true, false) => self.fdb.mac(self.root, tap, bridge.as_deref()?),
                };
                Nic {
                    tap: tap.to_owned(),
                    ifindex,
                    mac: netdev.and_then(|n| n.mac).or_else(learnt),
                    bridge,
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

    /// The macvtaps of this network namespace that descriptors of `/dev/tapN` are open on.
    fn macvtaps(&self, held: &[(u32, u32)]) -> Vec<(u32, String)> {
        if held.is_empty() {
            return Vec::new();
        }
        let names = match &self.listed {
            None => self.root.names("sys/class/net"),
            Some(_) => Vec::new(),
        };
        let name = |index: u32| match &self.listed {
            None => names.iter().find(|name| ifindex(self.root, name) == index).cloned(),
            Some(listed) => listed.values().find(|l| l.index == index).map(|l| l.name.clone()),
        };
        let is_macvtap = |name: &String, index: u32| {
            let node = |place: &str| self.root.exists(&format!("sys/class/net/{name}/{place}tap{index}"));
            node("macvtap/") || node("")
        };
        let found = |index: u32| name(index).filter(|name| is_macvtap(name, index));
        held.iter().filter_map(|(fd, index)| Some((*fd, found(*index)?))).collect()
    }

    /// A tap's index, 0 if it is not in this network namespace, and the bridge that it is a port of.
    fn place(&self, tap: &str) -> (u32, Option<String>) {
        match &self.listed {
            None => (ifindex(self.root, tap), master(self.root, tap)),
            Some(listed) => listed
                .get(tap)
                .map_or((0, None), |link| (link.index, self.devices.master_of(link).map(str::to_owned))),
        }
    }
}

/// The network namespace of a process.
fn namespace(root: &Root, pid: &str) -> Option<String> {
    root.link(&format!("proc/{pid}/ns/net"))
}

/// The VM's NICs that have no tap.
pub(crate) fn without_tap(given: &[GivenNic], line: &CommandLine) -> Vec<Nic> {
    let nic =
        |tap: String, mac, data_plane| Nic { tap, ifindex: 0, mac, bridge: None, data_plane, queues: 0 };
    let given = given.iter().map(|given| nic(given.address.clone(), None, DataPlane::Passthrough));
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
        let bridge = master(self, name);
        let nic = Nic {
            tap: name.to_owned(),
            ifindex: ifindex(self, name),
            mac: bridge.as_deref().and_then(|bridge| BridgeFdb::default().mac(self, name, bridge)),
            bridge,
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
            given: Vec::new(),
        })
    }
}

/// A device's index; 0 if it is not in this network namespace.
pub(crate) fn ifindex(root: &Root, device: &str) -> u32 {
    root.number(&format!("sys/class/net/{device}/ifindex")).and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// The directory of the device with this index in sysfs, and its present name: it may have been renamed. The directory stays
/// that of this device.
///
/// # Errors
/// `ENODEV` if there is no such device, `EXDEV` if sysfs shows the devices of another network namespace than that of
/// this process, as after `nsenter --net` without `--mount`.
pub(crate) fn dir_of(root: &Root, device: &Device) -> nix::Result<(String, Dir)> {
    let named = |name: String| {
        let dir = root.dir(&format!("sys/class/net/{name}"))?;
        (dir.text("ifindex")?.trim().parse() == Ok(device.index)).then_some((name, dir))
    };
    if let Some(found) = named(device.name.clone()) {
        return Ok(found);
    }
    if !root.is_real() {
        return root.names("sys/class/net").into_iter().find_map(named).ok_or(Errno::ENODEV);
    }
    let mut rtnl = Rtnl::open()?;
    // It may be renamed again between the two looks.
    for _ in 0..RENAMES {
        if let Some(found) = named(rtnl.name(device.index)?) {
            return Ok(found);
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
    fn mac(&self, root: &Root, tap: &str, bridge: &str) -> Option<[u8; 6]> {
        let port = root.number(&format!("sys/class/net/{tap}/brport/port_no"))?;
        let mut tables = self.0.borrow_mut();
        let table = tables.entry(bridge.to_owned()).or_insert_with_key(|bridge| {
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
