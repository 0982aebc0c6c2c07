//! Which copy of a request that was sent again a guest's application took.
//!
//! Copies may have equal prints: a client's kernel gives unfragmented datagrams no identification. Then what the guest
//! reports after a further copy has reached it is taken for that copy, and believed only if nothing else is possible: an
//! earlier copy with the same print had not come to a socket by then, and the guest reports each step of the later one
//! once, in order.

use super::{Guest, GuestPacket, InsideTable};
use crate::join::StreamId;

/// Earlier copies of packets that are known of a guest at once.
pub(super) const MAX_EARLIER: usize = 1 << 10;

/// A copy of a request that reached the guest.
#[derive(Clone, Copy, Debug)]
pub(in crate::join) struct Followed {
    pub(in crate::join) fingerprint: u64,
    /// How many earlier ones have the same fingerprint.
    pub(in crate::join) earlier_alike: u8,
    /// When it reached the guest, ns.
    pub(in crate::join) entered: u64,
}

impl InsideTable {
    /// Reports of a guest between `since` and `until` are missing.
    pub(in crate::join) fn lost(&mut self, stream: StreamId, since: u64, until: u64) {
        if let Some(guest) = self.guests.get_mut(&stream) {
            guest.lost.add(since, until);
        }
    }

    /// A further copy of a packet reaches a guest. Returns how many earlier ones with its print there were.
    pub(in crate::join) fn next_copy(&mut self, now: u64, pid: u32, fingerprint: u64) -> u8 {
        let Some(prints) = self.prints.get(&fingerprint).copied() else { return 0 };
        // A packet that the guest has not reported yet has the print of its tap, the latest.
        let own = self.latest(pid).and_then(|guest| guest.own(prints)).or(prints.0[0]);
        let Some((guest, print)) = self.guest(pid).zip(own) else { return 0 };
        let before = guest.packets.remove(&print).unwrap_or_default();
        let earlier = before.earlier.saturating_add(1);
        guest.earlier.insert((print, before.earlier), before, now);
        guest.packets.insert(print, GuestPacket { earlier, ..GuestPacket::default() }, now);
        earlier
    }

    /// Which of the copies the application of the guest took before it began to send the response `response`, which left
    /// at `left`. `copies` are in the order of their coming. `None` if that is not certain.
    pub(in crate::join) fn taken(
        &mut self,
        pid: u32,
        copies: &[Followed],
        response: u64,
        left: u64,
    ) -> Option<Vec<usize>> {
        let known = self.latest(pid)?;
        let own = |fingerprint: &u64| known.own(self.prints.get(fingerprint).copied()?);
        let prints: Option<Vec<u64>> = copies.iter().map(|copy| own(&copy.fingerprint)).collect();
        let (prints, response) = (prints?, own(&response)?);
        let guest = self.guest(pid)?;
        if guest.lost.touches(copies.first()?.entered, left) {
            return None;
        }
        let began = guest.packets.get(&response)?.began;
        if began == 0 {
            return None;
        }
        let error = guest.error_since(copies.first()?.entered);
        let mut taken = Vec::new();
        for (i, (copy, print)) in copies.iter().zip(&prints).enumerate() {
            let packet = guest.copy(*print, copy.earlier_alike)?;
            let next = copies[i + 1..].iter().zip(&prints[i + 1..]).find(|(_, other)| *other == print);
            let once = packet.queues <= 1 && packet.reads <= 1;
            let in_order = packet.received.saturating_add(error) >= copy.entered
                && (packet.queued == 0 || packet.queued >= packet.received)
                && (packet.read == 0 || packet.queued != 0 && packet.read >= packet.queued);
            if packet.received == 0 || !once || !in_order {
                return None;
            }
            // It is in a socket still when a packet like it comes: which of the two is read then is not known.
            if next.is_some() && packet.queued != 0 && packet.read == 0 {
                return None;
            }
            // What is reported at the moment when the next one comes may be of either.
            let last = packet.received.max(packet.queued).max(packet.read);
            if next.is_some_and(|(next, _)| last.saturating_add(error) >= next.entered) {
                return None;
            }
            if packet.read != 0 && packet.read <= began.saturating_add(error) {
                taken.push(i);
            }
        }
        Some(taken)
    }
}

impl Guest {
    /// The packet with this print that has so many earlier ones.
    fn copy(&self, print: u64, earlier: u8) -> Option<&GuestPacket> {
        let current = self.packets.get(&print).filter(|packet| packet.earlier == earlier);
        current.or_else(|| self.earlier.get(&(print, earlier)))
    }

    /// The same, with all others of that print forgotten.
    pub(super) fn take(&mut self, print: u64, earlier: u8) -> Option<GuestPacket> {
        let wanted = self.copy(print, earlier).copied();
        let last = self.packets.remove(&print)?.earlier;
        for n in 0..last {
            self.earlier.remove(&(print, n));
        }
        wanted
    }
}
