//! A device's root qdisc.
//!
//! A qdisc that somebody chose is restored as the kernel described it: most kinds accept the options that they report.
//! Classes, filters and inner qdiscs could not be restored, so a qdisc that may have some is not read as a resource at
//! all, and is never replaced.

use super::device::{failed, open};
use super::{Access, Facts, errors};
use crate::root::Root;
use crate::rtnl::{Qdisc, ROOT};
use nix::errno::Errno;
use teiji_model::qdisc::{self, Device, ExistingQdisc};
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

/// Kinds that have classes or other qdiscs, which the options of the root do not describe.
const CLASSFUL: [&str; 13] =
    ["htb", "hfsc", "prio", "drr", "qfq", "ets", "cbs", "mqprio", "taprio", "multiq", "red", "tbf", "netem"];
/// The qdisc of a device that was never up; the kernel does not list it.
const NOOP: &str = "noop";

pub(super) struct RootQdisc;

impl Access for RootQdisc {
    fn kind(&self) -> ResourceKind {
        ResourceKind::RootQdisc
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for device in facts.links.iter().map(|link| link.device()) {
            let read = facts.devices.qdiscs(&device).and_then(present);
            found.record(Resource::RootQdisc(device), read);
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::RootQdisc(device) = resource else { return Err(errors::no_such_value()) };
        present(&open(root, device)?.qdiscs(device.index).map_err(|e| failed(e, device))?)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::RootQdisc(device), Value::RootQdisc(qdisc::RootQdisc::Existing(wanted))) =
            (resource, value)
        else {
            return Err(errors::no_such_value());
        };
        write(root, device, wanted)
    }
}

/// The root qdisc, if these are all qdiscs of the device.
fn present(all: &[Qdisc]) -> Result<Value, ResourceError> {
    if let Some(why) = irreplaceable(all) {
        return Err(errors::unsupported(why));
    }
    let existing = match all.iter().find(|q| q.parent == ROOT) {
        Some(q) if q.chosen() => {
            ExistingQdisc { kind: q.kind.clone(), chosen: true, options: q.options.clone() }
        }
        // The kernel's default, which the kernel sets again; nobody chose its options.
        Some(q) => ExistingQdisc { kind: q.kind.clone(), chosen: false, options: Vec::new() },
        None => ExistingQdisc { kind: NOOP.into(), chosen: false, options: Vec::new() },
    };
    Ok(Value::RootQdisc(qdisc::RootQdisc::Existing(Box::new(existing))))
}

/// Why the qdiscs of a device could not be restored, if that is so.
fn irreplaceable(all: &[Qdisc]) -> Option<String> {
    let root = all.iter().find(|q| q.parent == ROOT && q.chosen());
    let inner = all.iter().find(|q| q.parent != ROOT && q.chosen() && !q.ingress());
    let holds = |q: &&Qdisc| CLASSFUL.contains(&q.kind.as_str()) || q.kind.starts_with("bpf_");
    root.filter(holds).or(inner).map(|q| {
        format!(
            "its qdisc {} may hold classes, qdiscs or filters, which could not be restored; remove it first (`tc qdisc del dev … root`)",
            q.kind
        )
    })
}

fn write(root: &Root, device: &Device, wanted: &ExistingQdisc) -> Result<(), ResourceError> {
    let mut rtnl = open(root, device)?;
    if wanted.chosen {
        return rtnl.replace_root(device.index, &wanted.kind, &wanted.options).map_err(|e| match e {
            // ENOENT is not about the device, which existed just now.
            Errno::ENOENT => errors::refused(e, "the kernel does not know that qdisc", "load its module"),
            // Nor is this ENODEV: the qdisc returns it for a device that it was not prepared for.
            Errno::ENODEV if rtnl.segment_sizes(device.index).is_ok() => {
                errors::refused(e, "the qdisc does not accept that device", "try again")
            }
            e => failed(e, device),
        });
    }
    let all = rtnl.qdiscs(device.index).map_err(|e| failed(e, device))?;
    if all.iter().any(|q| q.parent == ROOT && q.chosen()) {
        rtnl.delete_root(device.index).map_err(|e| failed(e, device))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::segment_size::SegmentSize;

    fn qdisc(kind: &str, parent: u32, handle: u32) -> Qdisc {
        Qdisc::new(kind, parent, handle)
    }

    #[test]
    fn qdiscs_with_an_inner_life_are_not_replaced() {
        let why = |all: &[Qdisc]| irreplaceable(all);
        assert_eq!(why(&[qdisc("fq_codel", ROOT, 0)]), None);
        assert_eq!(why(&[qdisc("pfifo", ROOT, 0x8001_0000)]), None);
        assert!(why(&[qdisc("htb", ROOT, 0x1_0000)]).unwrap().contains("classes"));
        assert!(why(&[qdisc("bpf_fq", ROOT, 0x1_0000)]).is_some());
        // mq with the kernel's own children, and with a child that somebody has set.
        let mq = qdisc("mq", ROOT, 0);
        assert_eq!(why(&[mq.clone(), qdisc("fq_codel", 1, 0), qdisc("fq_codel", 2, 0)]), None);
        assert!(why(&[mq.clone(), qdisc("fq", 1, 0x8002_0000)]).unwrap().contains("fq"));
        // Qdiscs for arriving packets do not matter.
        assert_eq!(why(&[mq, qdisc("clsact", 0xffff_fff1, 0xffff_0000)]), None);
    }

    #[test]
    fn a_device_that_is_gone_is_said_to_be() {
        let device = Device { name: "eth9".into(), index: 0x7fff_ffff };
        let gone = Err(ResourceError::Gone("device eth9".into()));
        assert_eq!(super::RootQdisc.read(&Root::default(), &Resource::RootQdisc(device.clone())), gone);
        let size = Resource::SegmentSize(device);
        assert_eq!(SegmentSize.read(&Root::default(), &size), gone);
        let below = SegmentSize.read(&Root::new("/nowhere"), &size).unwrap_err();
        assert!(below.to_string().contains("--root"), "{below}");
    }
}
