//! A device's root qdisc, and how large packets the host's own stack hands to it.
//!
//! A qdisc that somebody chose is put back as the kernel described it: most kinds take the options that they report.
//! What classes, filters and inner qdiscs it had could not be put back, so that one which may have such is not read
//! as a setting at all, and thus never replaced.

use super::attempt::Attempt;
use crate::root::Root;
use crate::rtnl::{Qdisc, ROOT, Rtnl, SegmentSizes};
use nix::errno::Errno;
use teiji_model::queue::{Device, Queue, Stock};
use teiji_model::setting::SettingError;
use teiji_model::text::printable;

/// Kinds that hold classes or other qdiscs, whose inner life the root's options do not tell.
const CLASSFUL: [&str; 13] =
    ["htb", "hfsc", "prio", "drr", "qfq", "ets", "cbs", "mqprio", "taprio", "multiq", "red", "tbf", "netem"];
/// What a device has that was never up, and that the kernel does not list.
const NOOP: &str = "noop";
/// `GSO_LEGACY_MAX_SIZE`: the most that IPv4 is given unless somebody sets a size of its own for it.
const LEGACY: u32 = 65_536;
const NEEDS: &str = "root, or CAP_NET_ADMIN";

pub(super) fn read_queue(root: &Root, device: &Device, attempt: &Attempt) -> Result<Queue, SettingError> {
    let mut rtnl = open(root, device, attempt)?;
    let all = rtnl.qdiscs(device.index).map_err(|e| failed(e, device, attempt))?;
    if let Some(why) = irreplaceable(&all) {
        return Err(attempt.unsupported(&why));
    }
    let stock = match all.into_iter().find(|q| q.parent == ROOT) {
        Some(q) if q.chosen() => Stock { kind: q.kind, chosen: true, options: q.options },
        // What the kernel gives it, it gives it again; its options are not anybody's choice.
        Some(q) => Stock { kind: q.kind, chosen: false, options: Vec::new() },
        None => Stock { kind: NOOP.into(), chosen: false, options: Vec::new() },
    };
    Ok(Queue::Stock(Box::new(stock)))
}

/// Why the qdiscs of a device could not be put back, if so.
fn irreplaceable(all: &[Qdisc]) -> Option<String> {
    let root = all.iter().find(|q| q.parent == ROOT && q.chosen());
    let inner = all.iter().find(|q| q.parent != ROOT && q.chosen() && !q.ingress());
    let holds = |q: &&Qdisc| CLASSFUL.contains(&q.kind.as_str()) || q.kind.starts_with("bpf_");
    root.filter(holds).or(inner).map(|q| {
        format!(
            "its qdisc {} may hold classes, qdiscs or filters, which could not be put back; remove it first (`tc qdisc del dev … root`)",
            printable(&q.kind)
        )
    })
}

pub(super) fn write_queue(
    root: &Root,
    device: &Device,
    wanted: &Stock,
    attempt: &Attempt,
) -> Result<(), SettingError> {
    let mut rtnl = open(root, device, attempt)?;
    if wanted.chosen {
        return rtnl.replace_root(device.index, &wanted.kind, &wanted.options).map_err(|e| match e {
            // Not the device, which was there just now.
            Errno::ENOENT => attempt.refused(e, "the kernel does not know that qdisc", "load its module"),
            // Nor here: the qdisc says so of a device that it was not prepared for.
            Errno::ENODEV if rtnl.segment_sizes(device.index).is_ok() => {
                attempt.refused(e, "the qdisc does not take that device", "try again")
            }
            e => failed(e, device, attempt),
        });
    }
    let all = rtnl.qdiscs(device.index).map_err(|e| failed(e, device, attempt))?;
    if all.iter().any(|q| q.parent == ROOT && q.chosen()) {
        rtnl.delete_root(device.index).map_err(|e| failed(e, device, attempt))?;
    }
    Ok(())
}

pub(super) fn read_size(root: &Root, device: &Device, attempt: &Attempt) -> Result<u32, SettingError> {
    let mut rtnl = open(root, device, attempt)?;
    let sizes = rtnl.segment_sizes(device.index).map_err(|e| failed(e, device, attempt))?;
    match sizes.v4 {
        // Setting the one sets the other, which could not be put back.
        Some(v4) if v4 != sizes.all.min(LEGACY) => Err(attempt.unsupported(&format!(
            "it has a gso_ipv4_max_size of its own ({v4}), which could not be put back; make both {v4} first \
             (`ip link set … gso_max_size {v4}`)"
        ))),
        _ => Ok(sizes.all),
    }
}

pub(super) fn write_size(
    root: &Root,
    device: &Device,
    size: u32,
    attempt: &Attempt,
) -> Result<(), SettingError> {
    let mut rtnl = open(root, device, attempt)?;
    let present = rtnl.segment_sizes(device.index).map_err(|e| failed(e, device, attempt))?;
    let sizes = SegmentSizes { all: size, v4: present.v4.map(|_| size.min(LEGACY)) };
    rtnl.set_segment_sizes(device.index, sizes).map_err(|e| failed(e, device, attempt))
}

/// A socket, if `device` is one of this machine's; it is then there.
///
/// Its index decides: that does not change, and is not used again until the kernel has counted through all.
fn open(root: &Root, device: &Device, attempt: &Attempt) -> Result<Rtnl, SettingError> {
    if !root.is_real() {
        return Err(attempt.unsupported(
            "only the kernel tells that, and what is below --root is not the machine that it runs on",
        ));
    }
    let mut rtnl = Rtnl::open().map_err(|e| failed(e, device, attempt))?;
    rtnl.segment_sizes(device.index).map_err(|e| failed(e, device, attempt))?;
    Ok(rtnl)
}

fn failed(errno: Errno, device: &Device, attempt: &Attempt) -> SettingError {
    match errno {
        Errno::EPERM | Errno::EACCES => attempt.not_permitted(errno, NEEDS),
        Errno::EOPNOTSUPP => attempt.refused(
            errno,
            "the device does not take that",
            "use another device, or leave it as it is",
        ),
        errno => attempt.failed(errno, &format!("device {device}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::setting::Setting;

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
        // mq with the kernel's own children, and with one that somebody has put there.
        let mq = qdisc("mq", ROOT, 0);
        assert_eq!(why(&[mq.clone(), qdisc("fq_codel", 1, 0), qdisc("fq_codel", 2, 0)]), None);
        assert!(why(&[mq.clone(), qdisc("fq", 1, 0x8002_0000)]).unwrap().contains("fq"));
        // What packets arrive by is another matter.
        assert_eq!(why(&[mq, qdisc("clsact", 0xffff_fff1, 0xffff_0000)]), None);
    }

    #[test]
    fn a_device_that_is_gone_is_said_to_be() {
        let device = Device { name: "eth9".into(), index: 0x7fff_ffff };
        let setting = Setting::Queue(device.clone());
        let attempt = Attempt::reading(&setting);
        let gone = SettingError::Gone("device eth9".into());
        assert_eq!(read_queue(&Root::default(), &device, &attempt), Err(gone.clone()));
        assert_eq!(read_size(&Root::default(), &device, &attempt), Err(gone));
        let below = read_size(&Root::new("/nowhere"), &device, &attempt).unwrap_err();
        assert!(below.to_string().contains("--root"), "{below}");
    }
}
