//! Channels as qdiscs and classes, in the order in which they are made.
//!
//! ```text
//! htb  OUTER:      counts bytes on the wire (a size table), hands over at the link's rate
//! └─ OUTER:1
//!    └─ hfsc INNER:    decides what is next
//!       ├─ INNER:1     best effort: what the channels leave, at least 1 % ── fq_codel, or pfifo
//!       ├─ INNER:10    channel: its curve, and its rate of what is left ──── pfifo
//!       └─ INNER:11    …
//! ```
//! HFSC alone is not enough: packets that its real-time criterion sends are not paced, so channels that may all send
//! at once would fill the device's own queue, where the most urgent packet waits behind all others. HTB with a bucket
//! of [`TIMER_ERROR`] hands over one packet at a time, except to make up for a late timer. Every class has a share of
//! link-sharing, so that HFSC always has a packet for HTB to take; packets that exceed a channel's rate are sent by
//! this share.

use super::filter;
use crate::rtnl::{NetlinkRequest, ROOT, TCA_KIND, TCA_OPTIONS, TCMSG, attribute, tcmsg};
use serde::{Deserialize, Serialize};
use teiji_model::qdisc::frame::{full, on_wire};
use teiji_model::qdisc::{Channel, Curve, DeadlineQdisc, MIN_FRAME, OVERHEAD, TIMER_ERROR};

/// Handles (major numbers) of the outer qdisc; that of the inner one is the next number. There are two, so that a
/// change makes a new tree and does not modify the old one, and so that the handle says which of two notes belongs to
/// a tree.
pub(super) const OUTER: [u16; 2] = [0x7e13, 0x7e15];
/// Minor number of the best-effort class, and of HTB's only one.
const DEFAULT: u32 = 1;
/// Minor number of the first channel's class.
pub(super) const FIRST: u32 = 0x10;

const TCA_STAB: u16 = 8;
const TCA_STAB_BASE: u16 = 1;
const TCA_STAB_DATA: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
pub(super) const TCA_HFSC_RSC: u16 = 1;
pub(super) const TCA_HFSC_FSC: u16 = 2;
/// `TC_LINKLAYER_ETHERNET`: HTB then needs no rate table.
const ETHERNET: u8 = 1;
/// `HTB_VER >> 16` of net/sched/sch_htb.c.
const HTB_VERSION: u32 = 3;
/// The kernel counts burst in clock ticks of 2⁶ ns (`PSCHED_SHIFT`).
const TICK_SHIFT: u32 = 6;
/// Entries of the size table. For longer packets the kernel adds up parts of this size; twice as many entries would not
/// fit into an attribute.
const SIZES: usize = 16_384;
/// Headers and framing of one frame: a part of a long packet may contain more of these than its share.
const ROUNDING: u32 = 200;

/// A tree, without its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tree {
    /// One of [`OUTER`].
    pub outer: u16,
    /// The device's MTU, bytes.
    pub mtu: u32,
    /// Kind of the best-effort class's qdisc.
    pub leaf: String,
    /// The channels that it keeps.
    pub keeps: DeadlineQdisc,
}

/// The parameters of HFSC for a channel; `None` if HFSC cannot keep it.
pub type CurveOf = fn(&Channel) -> Option<Curve>;

/// A request, and a description for people of what it makes.
pub(super) type Part = (String, NetlinkRequest);

impl Tree {
    pub fn inner(&self) -> u32 {
        u32::from(self.outer + 1) << 16
    }

    fn outer_handle(&self) -> u32 {
        u32::from(self.outer) << 16
    }

    /// The requests that make it the device's root, in place of any other.
    ///
    /// # Errors
    /// Which of the channels HFSC cannot keep, and why.
    pub fn parts(&self, ifindex: u32, curve: CurveOf) -> Result<Vec<Part>, String> {
        let (outer, inner) = (self.outer_handle(), self.inner());
        let qdisc = |what: &str, parent, handle, kind: &str, options: &[u8], more: &[u8]| {
            let mut attributes = named(kind);
            if !options.is_empty() {
                attributes.extend(attribute(TCA_OPTIONS, options));
            }
            attributes.extend(more);
            let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
            let head = head(ifindex, parent, handle, 0);
            (what.to_owned(), NetlinkRequest { kind: libc::RTM_NEWQDISC, flags, head, attributes })
        };
        let class = |what: String, parent, id, kind: &str, options: &[u8]| {
            let mut attributes = named(kind);
            attributes.extend(attribute(TCA_OPTIONS, options));
            let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
            let head = head(ifindex, parent, id, 0);
            (what, NetlinkRequest { kind: libc::RTM_NEWTCLASS, flags, head, attributes })
        };
        let mut parts = vec![
            qdisc("qdisc htb", ROOT, outer, "htb", &htb_init(), &attribute(TCA_STAB, &self.sizes())),
            class("class of the link".into(), outer, outer | DEFAULT, "htb", &htb_class(self.keeps.rate)),
            qdisc("qdisc hfsc", outer | DEFAULT, inner, "hfsc", &(DEFAULT as u16).to_ne_bytes(), &[]),
            class("class of best effort".into(), inner, inner | DEFAULT, "hfsc", &self.best_effort()),
            qdisc(&format!("qdisc {}", self.leaf), inner | DEFAULT, 0, &self.leaf, &[], &[]),
        ];
        for (n, (name, channel)) in (FIRST..).zip(&self.keeps.channels) {
            let curve = curve(channel)
                .ok_or_else(|| format!("HFSC cannot count the burst and deadline of channel `{name}`"))?;
            let options = [
                attribute(TCA_HFSC_RSC, &service(curve)),
                attribute(TCA_HFSC_FSC, &service(Curve { m1: 0, d: 0, m2: curve.m2 })),
            ]
            .concat();
            parts.push(class(format!("class of channel `{name}`"), inner, inner | n, "hfsc", &options));
            let what = format!("queue of channel `{name}`");
            let limit = packets(channel.burst).to_ne_bytes();
            parts.push(qdisc(&what, inner | n, 0, "pfifo", &limit, &[]));
        }
        parts.extend(filter::parts(&self.keeps, inner, ifindex)?);
        Ok(parts)
    }

    /// The rate of best effort: what the channels leave of the link, at least one hundredth of it.
    fn best_effort(&self) -> Vec<u8> {
        let reserved = self.keeps.channels.values().fold(0_u64, |sum, c| sum.saturating_add(c.rate));
        let rest = self.keeps.rate.saturating_sub(reserved).max(self.keeps.rate / 100) / 8;
        let m2 = u32::try_from(rest).unwrap_or(u32::MAX).max(1);
        attribute(TCA_HFSC_FSC, &service(Curve { m1: 0, d: 0, m2 }))
    }

    /// Bytes that frames take on the wire, by their length with [`OVERHEAD`] (`__qdisc_calculate_pkt_len()`,
    /// net/sched/sch_api.c).
    fn sizes(&self) -> Vec<u8> {
        let wire = |counted: usize| {
            let frame = u32::try_from(counted).unwrap_or(u32::MAX).saturating_sub(OVERHEAD).max(MIN_FRAME);
            on_wire(frame, self.mtu).saturating_add(OVERHEAD)
        };
        // The kernel counts a longer packet as a multiple of the last entry plus one of the others.
        let part = (wire(9 * SIZES) - wire(SIZES)).div_ceil(8) + ROUNDING;
        let table = (0..SIZES).map(|n| if n + 1 == SIZES { part } else { wire(n) });
        let table = table.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
        // struct tc_sizespec: cell_log, size_log, cell_align, overhead, linklayer, mpu, mtu, tsize
        let mut base = vec![0; 4];
        for word in [OVERHEAD, ETHERNET.into(), MIN_FRAME + OVERHEAD, full(self.mtu), SIZES as u32] {
            base.extend(word.to_ne_bytes());
        }
        let table: Vec<u8> = table.flat_map(u16::to_ne_bytes).collect();
        [attribute(TCA_STAB_BASE, &base), attribute(TCA_STAB_DATA, &table)].concat()
    }
}

/// `struct tcmsg` with all its fields.
pub(super) fn head(ifindex: u32, parent: u32, handle: u32, info: u32) -> [u8; TCMSG] {
    let mut m = tcmsg(ifindex, parent);
    m[8..12].copy_from_slice(&handle.to_ne_bytes());
    m[16..20].copy_from_slice(&info.to_ne_bytes());
    m
}

pub(super) fn named(kind: &str) -> Vec<u8> {
    attribute(TCA_KIND, &[kind.as_bytes(), &[0]].concat())
}

/// `struct tc_service_curve`.
fn service(curve: Curve) -> Vec<u8> {
    [curve.m1, curve.d, curve.m2].into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// How many packets a channel's queue holds: twice its burst in the shortest frames.
fn packets(burst: u64) -> u32 {
    let frames = burst / u64::from(MIN_FRAME + OVERHEAD) * 2;
    u32::try_from(frames).unwrap_or(u32::MAX).clamp(128, 65_536)
}

/// `struct tc_htb_glob`: version, rate2quantum, defcls, debug, direct_pkts.
fn htb_init() -> Vec<u8> {
    let words = [HTB_VERSION, 10, DEFAULT, 0, 0];
    attribute(TCA_HTB_INIT, &words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>())
}

/// `struct tc_htb_opt`: two of `struct tc_ratespec`, then buffer, cbuffer, quantum, level, prio.
fn htb_class(rate: u64) -> Vec<u8> {
    let bytes = rate / 8;
    let mut spec = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    spec.extend(u32::try_from(bytes).unwrap_or(u32::MAX).to_ne_bytes());
    let mut parms = [spec.clone(), spec].concat();
    let burst = (TIMER_ERROR >> TICK_SHIFT) as u32;
    // The quantum is for sharing among classes; there is only one class.
    for word in [burst, burst, 16_384, 0, 0_u32] {
        parms.extend(word.to_ne_bytes());
    }
    let mut options = attribute(TCA_HTB_PARMS, &parms);
    if u32::try_from(bytes).is_err() {
        options.extend(attribute(TCA_HTB_RATE64, &bytes.to_ne_bytes()));
        options.extend(attribute(TCA_HTB_CEIL64, &bytes.to_ne_bytes()));
    }
    options
}
