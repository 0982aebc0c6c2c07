//! Qdiscs on the way of VMs' packets that delay them or limit their rate.

use crate::root::Root;
use crate::rtnl::{QdiscStats, Rtnl};
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::{Nic, Vm};
use teiji_model::usage::RateLimit;

/// Qdiscs that delay packets whatever the load.
const DELAYING: [&str; 1] = ["netem"];
/// Qdiscs whose `overlimits` says how often their rate was used up (net/sched/sch_*.c): tbf, hfsc and cake count each attempt to send a packet before
/// its time, htb each time that a class has used up its rate. That of others, such as red, says something else.
const SHAPING: [&str; 4] = ["tbf", "htb", "hfsc", "cake"];

/// The qdiscs of the host at a moment.
pub(crate) struct Qdiscs {
    /// The first that delays packets, by device.
    delaying: BTreeMap<String, String>,
    /// Those that have limited a rate, by the index of the device.
    limiting: BTreeMap<u32, Vec<QdiscStats>>,
}

impl Qdiscs {
    /// Those of this host now; `None` if they cannot be read, or these VMs have no NICs.
    pub(crate) fn now(root: &Root, vms: &[Vm]) -> Option<Qdiscs> {
        if !root.is_real() || vms.iter().all(|vm| vm.nics.is_empty()) {
            return None;
        }
        let mut rtnl = Rtnl::open().ok()?;
        let (stats, links) = (rtnl.qdisc_stats().ok()?, rtnl.links().ok()?);
        Some(Qdiscs::among(stats, links.into_iter().map(|link| (link.index, link.name))))
    }

    fn among(mut all: BTreeMap<u32, Vec<QdiscStats>>, links: impl Iterator<Item = (u32, String)>) -> Qdiscs {
        let delaying = links.filter_map(|(index, name)| {
            let delays = |qdisc: &&QdiscStats| DELAYING.contains(&qdisc.kind.as_str());
            Some((name, all.get(&index)?.iter().find(delays)?.kind.clone()))
        });
        let delaying = delaying.collect();
        all.retain(|_, qdiscs| {
            qdiscs.retain(|qdisc| qdisc.overlimits > 0 && SHAPING.contains(&qdisc.kind.as_str()));
            !qdiscs.is_empty()
        });
        Qdiscs { delaying, limiting: all }
    }

    /// Those that delay a VM's packets: device and kind. On its taps, and on the NICs of their bridges.
    pub(crate) fn delaying(&self, root: &Root, vm: &Vm) -> Vec<(String, String)> {
        if self.delaying.is_empty() {
            return Vec::new();
        }
        let near: BTreeSet<String> = taps(vm)
            .flat_map(|nic| {
                let ports = |bridge: &String| root.names(&format!("sys/class/net/{bridge}/brif"));
                nic.bridge.iter().flat_map(ports).chain([nic.tap.clone()]).collect::<Vec<_>>()
            })
            .collect();
        let own: BTreeSet<&String> = taps(vm).map(|nic| &nic.tap).collect();
        // Other VMs' taps and containers' devices on the bridge delay only what these receive.
        let counts = |(device, _): &(String, String)| {
            own.contains(device) || root.exists(&format!("sys/class/net/{device}/device"))
        };
        let delayed = |device: String| self.delaying.get(&device).map(|kind| (device.clone(), kind.clone()));
        near.into_iter().filter_map(delayed).filter(counts).collect()
    }

    /// Those that have limited the rate of packets on a VM's taps.
    pub(crate) fn rate_limits(&self, vm: &Vm) -> Vec<RateLimit> {
        let of_tap = taps(vm).flat_map(|nic| {
            self.limiting.get(&nic.ifindex).into_iter().flatten().map(|qdisc| RateLimit {
                device: nic.tap.clone(),
                ifindex: nic.ifindex,
                kind: qdisc.kind.clone(),
                handle: qdisc.handle,
                overlimits: qdisc.overlimits,
                drops: qdisc.drops,
                queued: qdisc.qlen,
            })
        });
        of_tap.take(RateLimit::MOST).collect()
    }
}

/// The VM's NICs that are taps of this network namespace. The name of another one may be that of a device of the host.
fn taps(vm: &Vm) -> impl Iterator<Item = &Nic> {
    vm.nics.iter().filter(|nic| nic.ifindex != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::host::DataPlane;

    #[test]
    fn those_on_a_vms_way_count() {
        let qdisc = |kind: &str, overlimits| QdiscStats {
            kind: kind.into(),
            handle: 1,
            qlen: 2,
            drops: 3,
            overlimits,
        };
        let all = BTreeMap::from([
            (1, vec![qdisc("noqueue", 0)]),
            (2, vec![qdisc("tbf", 4), qdisc("netem", 0), qdisc("htb", 0), qdisc("red", 6)]),
            (3, vec![qdisc("htb", 7), qdisc("netem", 0)]),
            (4, vec![qdisc("tbf", 8), qdisc("netem", 0)]),
        ]);
        let links = [(1, "lo"), (2, "tap0"), (3, "eth0"), (4, "tap1")];
        let qdiscs = Qdiscs::among(all, links.map(|(index, name)| (index, name.to_owned())).into_iter());
        // The bridge of tap0 has a NIC, and the tap of another VM.
        let dir = tempfile::tempdir().unwrap();
        for entry in ["br0/brif/tap0", "br0/brif/eth0", "br0/brif/tap1", "eth0/device", "tap0", "tap1"] {
            std::fs::create_dir_all(dir.path().join("sys/class/net").join(entry)).unwrap();
        }
        let nic = |tap: &str, ifindex| Nic {
            tap: tap.into(),
            ifindex,
            mac: None,
            bridge: Some("br0".into()),
            data_plane: DataPlane::VhostNet,
            queues: 1,
        };
        let vm = Vm { nics: vec![nic("tap0", 2)], ..Vm::default() };
        let delaying = qdiscs.delaying(&Root::new(dir.path()), &vm);
        assert_eq!(delaying, ["eth0", "tap0"].map(|device| (device.to_owned(), "netem".to_owned())));
        let limits = qdiscs.rate_limits(&vm);
        assert_eq!(limits.len(), 1);
        assert_eq!((limits[0].ifindex, limits[0].kind.as_str(), limits[0].overlimits), (2, "tbf", 4));
        // One of that name in another network namespace; and one that other VMs have on its bridge.
        let elsewhere = Vm { nics: vec![nic("tap0", 0)], ..Vm::default() };
        assert_eq!(qdiscs.delaying(&Root::new(dir.path()), &elsewhere), []);
        assert_eq!(qdiscs.rate_limits(&elsewhere), []);
        assert_eq!(qdiscs.rate_limits(&Vm { nics: vec![nic("tap9", 9)], ..Vm::default() }), []);
    }
}
