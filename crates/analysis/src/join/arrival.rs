//! Packets that reach a guest at once.

use super::Common;
use super::delivery::InboundPacket;
use crate::over_time::Waited;

/// The packets of one guest entry, or of one signal to a guest that is running.
#[derive(Default)]
pub(super) struct Arrival {
    vm: u32,
    packets: u64,
    /// The one that was put on its tap first.
    oldest: Waited,
}

impl Arrival {
    /// Adds a packet that has just reached the guest.
    pub(super) fn add(&mut self, packet: &InboundPacket) {
        self.packets += 1;
        if self.packets > 1 && self.oldest.enqueued <= packet.enqueued {
            return;
        }
        self.vm = packet.vm;
        let worker = packet.put_clock.zip(packet.taken_clock);
        let vcpu = packet.accept_clock.map(|accepted| (accepted, packet.entry_clock));
        self.oldest = Waited {
            enqueued: packet.enqueued,
            worker: (
                packet.dequeued.saturating_sub(packet.enqueued),
                worker.and_then(|(put, taken)| taken.checked_since(&put)),
            ),
            vcpu: (
                packet.entered.saturating_sub(packet.accepted),
                vcpu.and_then(|(accepted, entered)| entered.checked_since(&accepted)),
            ),
        };
    }

    /// Counts it. While events were lost, packets of several signals may look like those of one.
    pub(super) fn count(self, now: u64, c: &mut Common) {
        if self.packets > 0 && !c.lost.touches(self.oldest.enqueued, now) {
            c.vm_stats[self.vm as usize].over_time.arrival(now, self.packets, &self.oldest);
        }
    }
}
