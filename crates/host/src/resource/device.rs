//! Shared by the resources of network devices: an rtnetlink socket, the meaning of its errors, and lists of all
//! devices.

use super::errors;
use crate::root::Root;
use crate::rtnl::{Link, Qdisc, Rtnl, SegmentSizes};
use nix::errno::Errno;
use std::collections::BTreeMap;
use teiji_model::qdisc::Device;
use teiji_model::resource::ResourceError;

const NEEDS: &str = "root, or CAP_NET_ADMIN";
const NOT_HERE: &str =
    "only the running kernel has this value, and the files below --root are those of another host";

/// A socket, if `device` is one of this machine's; it is then there.
///
/// The device is identified by its index, which does not change and is not reused until the kernel has used all others.
pub(super) fn open(root: &Root, device: &Device) -> Result<Rtnl, ResourceError> {
    if !root.is_real() {
        return Err(errors::unsupported(NOT_HERE));
    }
    let mut rtnl = Rtnl::open().map_err(|e| failed(e, device))?;
    rtnl.segment_sizes(device.index).map_err(|e| failed(e, device))?;
    Ok(rtnl)
}

pub(super) fn failed(errno: Errno, device: &Device) -> ResourceError {
    match errno {
        Errno::EPERM | Errno::EACCES => errors::not_permitted(errno, NEEDS),
        Errno::EOPNOTSUPP => errors::refused(
            errno,
            "the device does not accept that value",
            "use another device, or leave it as it is",
        ),
        errno => errors::failed(errno, &format!("device {device}")),
    }
}

/// All devices and qdiscs of the network namespace, each from one list; `None` where the kernel is not asked.
#[derive(Debug, Default)]
pub struct Devices {
    links: Option<nix::Result<BTreeMap<u32, Link>>>,
    qdiscs: Option<nix::Result<BTreeMap<u32, Vec<Qdisc>>>>,
}

impl Devices {
    /// Asks the kernel, if `root` is the machine that it runs on.
    pub(crate) fn of(root: &Root) -> Devices {
        if !root.is_real() {
            return Devices::default();
        }
        let links = Rtnl::open().and_then(|mut rtnl| rtnl.links());
        let by_index = |links: Vec<Link>| links.into_iter().map(|link| (link.index, link)).collect();
        let qdiscs = Rtnl::open().and_then(|mut rtnl| rtnl.all_qdiscs());
        Devices { links: Some(links.map(by_index)), qdiscs: Some(qdiscs) }
    }

    /// The devices that the kernel lists; `None` if it was not asked or returned an error.
    pub(crate) fn links(&self) -> Option<&BTreeMap<u32, Link>> {
        self.links.as_ref()?.as_ref().ok()
    }

    /// The name of the device that a listed one is a port or slave of.
    pub(crate) fn master_of(&self, link: &Link) -> Option<&str> {
        self.links()?.get(&link.master?).map(|master| master.name.as_str())
    }

    /// These qdiscs, by the indices of their devices, or the error of the list.
    #[cfg(test)]
    pub(crate) fn with_qdiscs(qdiscs: nix::Result<BTreeMap<u32, Vec<Qdisc>>>) -> Devices {
        Devices { links: None, qdiscs: Some(qdiscs) }
    }

    /// All qdiscs of a device.
    pub(crate) fn qdiscs(&self, device: &Device) -> Result<&[Qdisc], ResourceError> {
        let all = self.qdiscs.as_ref().ok_or_else(|| errors::unsupported(NOT_HERE))?;
        let all = all.as_ref().map_err(|e| failed(*e, device))?;
        Ok(all.get(&device.index).map_or(&[], Vec::as_slice))
    }

    /// The largest packets that a device accepts.
    pub(super) fn sizes(&self, device: &Device) -> Result<SegmentSizes, ResourceError> {
        let all = self.links.as_ref().ok_or_else(|| errors::unsupported(NOT_HERE))?;
        let all = all.as_ref().map_err(|e| failed(*e, device))?;
        all.get(&device.index).and_then(|link| link.sizes).ok_or_else(|| failed(Errno::ENODEV, device))
    }
}
