//! The packets of each channel, as filters of the kernel's `flower` (net/sched/cls_flower.c).
//!
//! A packet belongs to the most specific channel that matches, as in teiji's own queue: flower tries masks in the
//! order in which they were added. There is one list of filters for IPv4, one for IPv6 and one for both within a VLAN
//! tag. Ports exist only with TCP, UDP and SCTP, so a channel with ports and without a protocol becomes one filter for
//! each of these.

use super::tree::{FIRST, Part, head, named};
use crate::rtnl::{NetlinkRequest, TCA_OPTIONS, attribute};
use std::collections::BTreeSet;
use std::net::IpAddr;
use teiji_model::qdisc::{Channel, DeadlineQdisc};

pub(super) const CLASSID: u16 = 1;
const ETH_TYPE: u16 = 8;
pub(super) const IP_PROTO: u16 = 9;
/// The sender's IPv4 address. The next numbers are its mask, the receiver's address and its mask.
pub(super) const IPV4_SRC: u16 = 10;
pub(super) const IPV6_SRC: u16 = 14;
const FLAGS: u16 = 22;
pub(super) const VLAN_ETH_TYPE: u16 = 25;
/// `TCA_CLS_FLAGS_SKIP_HW`: the filters are not offloaded to the NIC.
const SKIP_HW: u32 = 1;

/// Protocol number, then the attributes of the sender's port, its mask, the receiver's port, its mask.
pub(super) const PORTS: [(u8, [u16; 4]); 3] =
    [(17, [20, 37, 21, 38]), (6, [18, 35, 19, 36]), (132, [41, 39, 42, 40])];

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;

/// One filter: its list, and its attributes except the class.
type Key = (u16, Vec<u8>);

/// The filters of all channels.
///
/// # Errors
/// The channel whose endpoints no filter can match.
pub(super) fn parts(keeps: &DeadlineQdisc, inner: u32, ifindex: u32) -> Result<Vec<Part>, String> {
    // Sorted by the number of bits that they compare, then by name.
    let mut order: Vec<(u32, &String, &Channel)> =
        (FIRST..).zip(&keeps.channels).map(|(n, (name, channel))| (n, name, channel)).collect();
    order.sort_by_key(|(_, _, channel)| std::cmp::Reverse(bits(channel)));
    let mut known: BTreeSet<Key> = BTreeSet::new();
    let mut parts = Vec::new();
    for (n, name, channel) in order {
        for key in keys(channel).map_err(|why| format!("channel `{name}` {why}"))? {
            // A channel with a protocol comes before one for any protocol, and gets the packets of its protocol.
            if !known.insert(key.clone()) {
                continue;
            }
            let (list, keys) = key;
            let handle = parts.len() as u32 + 1;
            let options = [
                attribute(CLASSID, &(inner | n).to_ne_bytes()),
                keys,
                attribute(FLAGS, &SKIP_HW.to_ne_bytes()),
            ];
            let mut attributes = named("flower");
            attributes.extend(attribute(TCA_OPTIONS, &options.concat()));
            let request = NetlinkRequest {
                kind: libc::RTM_NEWTFILTER,
                flags: libc::NLM_F_CREATE | libc::NLM_F_EXCL,
                head: head(ifindex, inner, handle, info(list)),
                attributes,
            };
            parts.push((format!("filter of channel `{name}`"), request));
        }
    }
    Ok(parts)
}

/// Priority and protocol of a list: `tcm_info`.
fn info(list: u16) -> u32 {
    let priority = match list {
        IPV4 => 1,
        IPV6 => 2,
        _ => 3,
    };
    priority << 16 | u32::from(list.to_be())
}

/// How many bits a channel compares.
fn bits(channel: &Channel) -> u32 {
    let end = |e: &Option<teiji_model::policy::Endpoint>| {
        e.as_ref().map_or(0, |e| u32::from(e.prefix) + if e.port.is_some() { 16 } else { 0 })
    };
    end(&channel.from) + end(&channel.to) + if channel.proto.is_some() { 8 } else { 0 }
}

fn keys(channel: &Channel) -> Result<Vec<Key>, String> {
    let ends = [&channel.from, &channel.to];
    let families = match ends.map(|e| e.as_ref().map(|e| e.address.is_ipv4())) {
        [Some(a), Some(b)] if a != b => return Err("has one IPv4 and one IPv6 endpoint".into()),
        [Some(v4), _] | [None, Some(v4)] => vec![v4],
        [None, None] => vec![true, false],
    };
    let ports = ends.iter().any(|e| e.as_ref().is_some_and(|e| e.port.is_some()));
    let protocols: Vec<Option<u8>> = match channel.proto {
        Some(proto) if ports && !PORTS.iter().any(|(p, _)| *p == proto) => {
            return Err(format!(
                "has ports of protocol {proto}, which filters cannot see; they see those of TCP, UDP and SCTP"
            ));
        }
        None if ports => PORTS.iter().map(|(p, _)| Some(*p)).collect(),
        proto => vec![proto],
    };
    let mut all = Vec::new();
    for v4 in families {
        for proto in &protocols {
            let kind = if v4 { IPV4 } else { IPV6 };
            let rest = fields(channel, v4, *proto);
            let plain = attribute(ETH_TYPE, &kind.to_be_bytes());
            let tagged =
                [attribute(ETH_TYPE, &VLAN.to_be_bytes()), attribute(VLAN_ETH_TYPE, &kind.to_be_bytes())]
                    .concat();
            all.push((kind, [plain, rest.clone()].concat()));
            all.push((VLAN, [tagged, rest].concat()));
        }
    }
    Ok(all)
}

fn fields(channel: &Channel, v4: bool, proto: Option<u8>) -> Vec<u8> {
    let mut keys = proto.map_or_else(Vec::new, |proto| attribute(IP_PROTO, &[proto]));
    let first = if v4 { IPV4_SRC } else { IPV6_SRC };
    let ports = PORTS.iter().find(|(p, _)| Some(*p) == proto).map(|(_, ids)| ids);
    for (i, end) in [&channel.from, &channel.to].into_iter().enumerate() {
        let Some(end) = end else { continue };
        if end.prefix > 0 {
            let octets = match end.address {
                IpAddr::V4(a) => a.octets().to_vec(),
                IpAddr::V6(a) => a.octets().to_vec(),
            };
            let mask = mask(end.prefix, octets.len());
            let id = first + 2 * i as u16;
            keys.extend(attribute(id, &octets));
            keys.extend(attribute(id + 1, &mask));
        }
        if let (Some(port), Some(ids)) = (end.port, ports) {
            keys.extend(attribute(ids[2 * i], &port.to_be_bytes()));
            keys.extend(attribute(ids[2 * i + 1], &u16::MAX.to_be_bytes()));
        }
    }
    keys
}

/// A mask of the first `prefix` bits, of this many bytes.
fn mask(prefix: u8, bytes: usize) -> Vec<u8> {
    let here = |i: usize| usize::from(prefix).saturating_sub(8 * i).min(8) as u32;
    (0..bytes).map(|i| u8::MAX.checked_shl(8 - here(i)).unwrap_or(0)).collect()
}
