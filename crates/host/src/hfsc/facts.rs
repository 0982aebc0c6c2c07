//! The facts of a tree of qdiscs, classes and filters that teiji sets: they are the same whether they are taken from
//! the requests that make the tree or from what the kernel lists.

use super::filter::{CLASSID, IP_PROTO, IPV4_SRC, IPV6_SRC, PORTS, VLAN_ETH_TYPE};
use super::tree::{Part, TCA_HFSC_FSC, TCA_HFSC_RSC, Tree};
use crate::rtnl::{Lister, Qdisc, TCA_KIND, TCA_OPTIONS, TCA_STAB, TCMSG, attributes, tcmsg, u32_at};
use std::collections::{BTreeMap, BTreeSet};

/// `TCA_STAB_BASE` in `TCA_STAB`, the only part that the kernel lists.
const STAB_BASE: u16 = 1;
/// `TCA_HTB_PARMS`, `TCA_HTB_RATE64`, `TCA_HTB_CEIL64`.
const HTB_PARMS: u16 = 1;
const HTB_64: [u16; 2] = [6, 7];

/// One qdisc, class or filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fact {
    /// `RTM_NEWQDISC` and the like.
    what: u16,
    /// `htb`, `hfsc`, `flower`, … with its terminating 0.
    kind: Vec<u8>,
    parent: u32,
    /// 0 if the kernel chose it.
    handle: u32,
    info: u32,
    /// Attributes that define what it does.
    options: BTreeMap<u16, Vec<u8>>,
}

/// The facts of the tree that the requests make.
pub(super) fn wanted(tree: &Tree, parts: &[Part]) -> BTreeSet<Fact> {
    let of = |(_, request): &Part| {
        let body = [&request.head[..], &request.attributes].concat();
        fact_in(tree, request.kind, &body)
    };
    parts.iter().filter_map(of).collect()
}

/// The facts of the tree with this handle: these qdiscs of the device, and the classes and filters that are listed.
///
/// # Errors
/// What the kernel answers.
pub(super) fn present(
    tree: &Tree,
    qdiscs: &[Qdisc],
    lister: &mut dyn Lister,
    ifindex: u32,
) -> nix::Result<BTreeSet<Fact>> {
    let of_qdisc = |q: &Qdisc| {
        let kind = [q.kind.as_bytes(), &[0]].concat();
        let all = [(TCA_KIND, &kind[..]), (TCA_OPTIONS, &q.options), (TCA_STAB, &q.table)];
        fact(tree, libc::RTM_NEWQDISC, [q.handle, q.parent, 0], &all)
    };
    let mut all: BTreeSet<Fact> = qdiscs.iter().filter_map(of_qdisc).collect();
    let lists = [
        (libc::RTM_GETTCLASS, libc::RTM_NEWTCLASS, 0),
        (libc::RTM_GETTFILTER, libc::RTM_NEWTFILTER, tree.inner()),
    ];
    for (ask, what, parent) in lists {
        let listed = lister.dump(ask, &tcmsg(ifindex, parent))?;
        let here = listed.iter().filter(|body| u32_at(body, 4) == Some(ifindex));
        all.extend(here.filter_map(|body| fact_in(tree, what, body)));
    }
    Ok(all)
}

/// The fact in a message, if it belongs to a tree with these handles.
fn fact_in(tree: &Tree, what: u16, body: &[u8]) -> Option<Fact> {
    let head = [u32_at(body, 8)?, u32_at(body, 12)?, u32_at(body, 16)?];
    fact(tree, what, head, &attributes(body.get(TCMSG..)?))
}

/// The fact with this handle, parent and info, and these attributes.
fn fact(tree: &Tree, what: u16, head: [u32; 3], all: &[(u16, &[u8])]) -> Option<Fact> {
    let [handle, parent, info] = head;
    let value = |wanted: u16| all.iter().find(|(k, _)| *k == wanted).map(|(_, v)| *v);
    let kind = value(TCA_KIND)?.to_vec();
    let options = value(TCA_OPTIONS).unwrap_or_default();
    let own = |id: u32| id >> 16 == u32::from(tree.outer) || id >> 16 == tree.inner() >> 16;
    let name = kind.strip_suffix(&[0]).unwrap_or(&kind);
    let mut fact = Fact { what, kind: kind.clone(), parent, handle, info: 0, options: BTreeMap::new() };
    let picked = |ids: &[u16], from: &[u8]| -> BTreeMap<u16, Vec<u8>> {
        attributes(from).into_iter().filter(|(k, _)| ids.contains(k)).map(|(k, v)| (k, v.to_vec())).collect()
    };
    if what == libc::RTM_NEWQDISC {
        if !own(handle) && !own(parent) {
            return None;
        }
        if !own(handle) {
            fact.handle = 0;
        }
        match name {
            b"htb" => fact.options = picked(&[STAB_BASE], value(TCA_STAB).unwrap_or_default()),
            // struct tc_hfsc_qopt, and struct tc_fifo_qopt, are not split into attributes.
            b"hfsc" => drop(fact.options.insert(0, options.get(..2)?.to_vec())),
            b"pfifo" => drop(fact.options.insert(0, options.get(..4).unwrap_or_default().to_vec())),
            _ => {}
        }
    } else if what == libc::RTM_NEWTCLASS {
        // HFSC lists itself as a class, and other qdiscs list their queues as classes.
        if !own(handle) || handle & 0xffff == 0 {
            return None;
        }
        // HTB lists its root class without a parent.
        if name == b"htb" {
            fact.parent = 0;
            fact.options = picked(&HTB_64, options);
            let parms = attributes(options).into_iter().find(|(k, _)| *k == HTB_PARMS)?.1;
            // Two struct tc_ratespec, buffer, cbuffer, quantum; of each tc_ratespec only the rate is compared.
            let rates = [parms.get(8..12)?, parms.get(20..24)?, parms.get(24..36)?].concat();
            fact.options.insert(HTB_PARMS, rates);
        } else {
            fact.options = picked(&[TCA_HFSC_RSC, TCA_HFSC_FSC], options);
        }
    } else {
        // An entry without a handle is the head of a list.
        if handle == 0 {
            return None;
        }
        fact.info = info;
        // The protocol of the list already has the frame's type; kernels differ in what they return for VLAN tags.
        let mut ids = vec![CLASSID, IP_PROTO, VLAN_ETH_TYPE];
        ids.extend((IPV4_SRC..IPV4_SRC + 4).chain(IPV6_SRC..IPV6_SRC + 4));
        ids.extend(PORTS.iter().flat_map(|(_, ids)| ids));
        fact.options = picked(&ids, options);
    }
    Some(fact)
}
