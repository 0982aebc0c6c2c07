//! Copies of a request that was sent again before its response had left, and which of them was answered.
//!
//! ```text
//!  copy 1 ──► guest                 one copy had reached the guest when the response left: that one was answered
//!  copy 2 ──► guest ──► response    several: the one that the guest says its application took, if that is one
//! ```
//!
//! A copy is known not to have reached the guest if the kernel dropped it, if no worker took it, or if it was still on its
//! way behind one that did. If a later copy was answered, the request has its times. If it is not known which, those of
//! the first copy: the time until the response is then right, and how it divides in the guest may not be. If the first copy
//! is known not to be it, and there is more than one other, the request is ambiguous.

use super::{InboundPacket, Open, RequestTable};
use crate::expiring::EntryId;
use crate::join::inside::Followed;
use crate::join::outbound::OutboundPacket;
use crate::join::{Common, Exclusion, Validity};
use teiji_model::report::{Reason, SentAgain};

/// Further copies of a request that are followed. SIP sends an INVITE seven times at most (RFC 3261, 17.1.1.2).
pub(super) const MAX_FURTHER: usize = 7;
/// Further copies of all requests that are followed at once.
const MAX_ALL: usize = 1 << 14;

/// Identifies a copy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::join) struct CopyId {
    pub(super) request: EntryId,
    /// 0: the first.
    pub(super) copy: u8,
}

/// A further copy of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Further {
    validity: Validity,
    /// The kernel dropped it.
    dropped: bool,
    /// Its packet, once that is no longer followed.
    packet: Option<InboundPacket>,
}

impl CopyId {
    pub(super) fn first(request: EntryId) -> CopyId {
        CopyId { request, copy: 0 }
    }

    pub(super) fn is_first(self) -> bool {
        self.copy == 0
    }
}

impl Further {
    pub(super) fn mark(&mut self, validity: Validity) {
        self.validity = self.validity.worse(validity);
    }
}

/// Whether a copy reached the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// At this time, ns.
    Entered(u64),
    NotEntered,
    /// Nothing was seen of it after the tap.
    OnItsWay,
    Unknown,
}

/// Which copy was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Copy(u8),
    /// A later one than the first, but it is not known which.
    Later,
    Unknown,
}

impl Answered {
    /// The number of the copy, from 1; `None` if it is not known.
    pub(super) fn number(self) -> Option<u16> {
        match self {
            Answered::Copy(copy) => Some(u16::from(copy) + 1),
            Answered::Later | Answered::Unknown => None,
        }
    }
}

fn fate(validity: Validity, dropped: bool, packet: Option<&InboundPacket>, c: &Common) -> Fate {
    match packet {
        _ if dropped => Fate::NotEntered,
        _ if matches!(validity, Validity::Ambiguous(_)) => Fate::Unknown,
        None => Fate::OnItsWay,
        Some(packet) => match packet.stop {
            None if c.lost.touches(packet.start, packet.entered) => Fate::Unknown,
            None => Fate::Entered(packet.entered),
            Some(Exclusion { reason: Reason::DroppedIn | Reason::NotTaken, .. }) => Fate::NotEntered,
            Some(_) => Fate::Unknown,
        },
    }
}

impl RequestTable {
    /// A further copy of an open request has come. Returns it if there is room to follow it.
    pub(super) fn again(&mut self, request: EntryId, validity: Validity) -> Option<CopyId> {
        let open = self.open.get_mut(request)?;
        open.copies_seen = open.copies_seen.saturating_add(1);
        if open.further.len() >= MAX_FURTHER || self.followed_copies >= MAX_ALL {
            open.unfollowed = true;
            return None;
        }
        self.followed_copies += 1;
        open.further.push(Further { validity, ..Further::default() });
        Some(CopyId { request, copy: open.further.len() as u8 })
    }

    /// A request is no longer open.
    pub(super) fn forget_copies(&mut self, open: &Open) {
        self.followed_copies -= open.further.len();
    }

    /// The kernel dropped a further copy.
    pub(super) fn copy_dropped(&mut self, id: CopyId, exclusion: Exclusion) {
        if let Some(further) = self.further(id) {
            further.dropped = true;
            further.validity = further.validity.worse(Validity::Incomplete(exclusion));
        }
    }

    pub(super) fn further(&mut self, id: CopyId) -> Option<&mut Further> {
        self.open.get_mut(id.request)?.further.get_mut(usize::from(id.copy).checked_sub(1)?)
    }

    /// The packet of a further copy is no longer followed.
    pub(super) fn further_arrived(&mut self, id: CopyId, mut packet: InboundPacket, c: &Common) {
        let Some(open) = self.open.get_mut(id.request) else { return };
        let before = open.inbound.iter().chain(open.further.iter().filter_map(|f| f.packet.as_ref()));
        let alike = |p: &InboundPacket| p.fingerprint == packet.fingerprint && p.stop.is_none();
        if packet.stop.is_none() && before.into_iter().any(alike) {
            // What the guest reports from now on is of this copy.
            packet.earlier_alike =
                self.inside.next_copy(packet.entered, c.pids[packet.vm as usize], packet.fingerprint);
        }
        if let Some(further) = self.further(id) {
            further.validity = further.validity.worse(packet.validity);
            further.packet = Some(packet);
        }
    }

    /// Which copy of a request was answered by the packet `sent`.
    pub(super) fn answered(&mut self, id: EntryId, sent: &OutboundPacket, c: &Common) -> Answered {
        let Some(open) = self.open.get(id) else { return Answered::Unknown };
        if open.copies_seen <= 1 {
            return Answered::Copy(0);
        }
        let left = open.kick.map_or(sent.sent, |(ts, _)| ts);
        let first = fate(open.validity, open.first_dropped, open.inbound.as_ref(), c);
        let others = open.further.iter().map(|f| fate(f.validity, f.dropped, f.packet.as_ref(), c));
        let fates: Vec<Fate> = std::iter::once(first).chain(others).collect();
        let in_time = |fate: &Fate| matches!(fate, Fate::Entered(at) if *at <= left);
        let Some(entered) = fates.iter().position(in_time) else { return Answered::Unknown };
        let before = |i: usize| i < entered && fates[i] == Fate::OnItsWay;
        if open.unfollowed || fates.iter().enumerate().any(|(i, f)| *f == Fate::Unknown || before(i)) {
            return Answered::Unknown;
        }
        let copies: Vec<u8> = (0u8..).zip(&fates).filter(|(_, f)| in_time(f)).map(|(i, _)| i).collect();
        if let [only] = copies[..] {
            return Answered::Copy(only);
        }
        let followed: Vec<Followed> = copies
            .iter()
            .filter_map(|copy| open.packet_of(*copy))
            .map(|p| Followed {
                fingerprint: p.fingerprint,
                earlier_alike: p.earlier_alike,
                entered: p.entered,
            })
            .collect();
        let pid = c.pids[open.vm as usize];
        let Some(taken) = self.inside.taken(pid, &followed, open.response, left) else {
            return Answered::Unknown;
        };
        match taken[..] {
            [only] => Answered::Copy(copies[only]),
            [first, ..] if copies[first] > 0 => Answered::Later,
            _ => Answered::Unknown,
        }
    }
}

impl Open {
    /// When the earliest of its copies reached the guest, ns.
    pub(super) fn entered(&self) -> u64 {
        let all = self.inbound.iter().chain(self.further.iter().filter_map(|f| f.packet.as_ref()));
        all.filter(|packet| packet.entered > 0).map(|packet| packet.entered).min().unwrap_or(u64::MAX)
    }

    fn packet_of(&self, copy: u8) -> Option<&InboundPacket> {
        match usize::from(copy).checked_sub(1) {
            None => self.inbound.as_ref(),
            Some(further) => self.further.get(further)?.packet.as_ref(),
        }
    }

    /// The request has the times of this copy from now on.
    pub(super) fn follow(&mut self, copy: u8) {
        let Some(further) = usize::from(copy).checked_sub(1).and_then(|i| self.further.get_mut(i)) else {
            return;
        };
        self.inbound = further.packet.take();
        self.validity = further.validity;
        let entered = self.inbound.as_ref().map_or(u64::MAX, |packet| packet.entered);
        self.kick = self.kick.filter(|(ts, _)| *ts >= entered);
    }

    /// Counts a request that is complete.
    pub(super) fn count_answered(&self, answered: Answered, counts: &mut SentAgain) {
        if self.copies_seen > 1 {
            *match answered {
                Answered::Copy(0) => &mut counts.first,
                Answered::Copy(_) => &mut counts.later,
                Answered::Later | Answered::Unknown => &mut counts.unknown,
            } += 1;
        }
    }
}
