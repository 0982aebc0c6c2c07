//! Which packets cannot be followed because the VMM itself serves their tap: what it writes to the guest's rings is not seen.
//!
//! Which interrupt belongs to a queue is learnt, and a VMM that lost its CPU after it took a packet off the tap may have signalled
//! it or not (LIMITATIONS, Data planes). How many packets that concerns depends on what else the VMM and the machine do, and not on
//! the number of requests.
//!
//! The report's counts of such requests are made by teiji, so they excuse nothing by themselves. The recording has to show of each
//! packet one of two things: that no interrupt had been joined with the thread's packets yet, which excuses few of them, as it is
//! teiji that joins them; or, if no signal is said to have been sent for the packet, that the thread had waited for a
//! CPU by the next reading of its clock. A signal that was sent, and that no vCPU was seen to accept, is never excused.

use super::late::events;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use teiji_model::event::{Delivery, Event, EventKind, Interrupt, Point};
use teiji_model::host::{DataPlane, Nic};
use teiji_model::report::{Reason, Report};
use teiji_model::stage::ThreadState;

/// How many requests are left out for these reasons, or fewer if the recording shows fewer such packets.
///
/// # Errors
/// If the recording cannot be read.
pub fn left_out(report: &Report, recording: &Path) -> Result<u64> {
    let by_vmm = |nic: &&Nic| nic.data_plane == DataPlane::Userspace;
    let nics = report.meta.vms.iter().flat_map(|vm| &vm.nics);
    let taps: BTreeSet<u32> = nics.filter(by_vmm).map(|nic| nic.ifindex).collect();
    if taps.is_empty() {
        return Ok(0);
    }
    let of = |reason| -> u64 { report.vms.iter().map(|vm| vm.left_out_for(reason)).sum() };
    let Shown { learning, waited } = shown(events(recording)?, &taps);
    let no_interrupt = of(Reason::NoInterrupt);
    let all = of(Reason::NotLearnt) + of(Reason::NotSignalled) + no_interrupt;
    Ok(all.min(learning + no_interrupt.min(waited)))
}

/// What a thread of a VMM did with the packets of a tap.
enum Act {
    /// It took one; how long it had waited for a CPU in all, ns, if known.
    Took(Option<u64>),
    /// It sent a frame, after it had waited for so long.
    Sent(u64),
    /// It signalled, or is said not to have.
    Signalled(Interrupt),
}

/// Packets by what a recording shows of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    /// Taken before an interrupt was joined with packets, but for the one that it was joined with; of each thread and tap
    /// [`most_learning`] at most.
    learning: u64,
    /// Taken later, without a signal, by a thread that waited for a CPU.
    waited: u64,
}

/// How many of the packets that a thread takes off a tap may come before the tap's interrupt is known.
///
/// It is known when it was the first one after packets twice in a row (`serving.bpf.h`). If the guest wants an interrupt for each packet,
/// that is with the second packet. Packets for which it wants none come in addition, and one more for each interrupt of another device
/// that is the first after a packet. With one request at a time, and with a disk that is read meanwhile, up to 6 were counted.
fn most_learning(taken: u64) -> u64 {
    10.max(taken / 50)
}

fn shown(events: impl IntoIterator<Item = Event>, taps: &BTreeSet<u32>) -> Shown {
    // By thread and tap.
    let mut threads: BTreeMap<(u32, u32), Vec<(u64, Act)>> = BTreeMap::new();
    for event in events {
        let (at, act) = match event.kind {
            EventKind::Interrupt(i) => ((i.tid, i.ifindex), Act::Signalled(i)),
            EventKind::Packet(p) => {
                let ready = p.worker.map(|clock| clock.get(ThreadState::Ready));
                let act = match (p.point, ready) {
                    (Point::TapDequeue, _) => Act::Took(ready),
                    (Point::TapSend, Some(ready)) => Act::Sent(ready),
                    _ => continue,
                };
                ((p.tid, p.ifindex), act)
            }
            _ => continue,
        };
        if taps.contains(&at.1) {
            threads.entry(at).or_default().push((event.ts, act));
        }
    }
    let mut shown = Shown::default();
    for mut acts in threads.into_values() {
        // That a packet was not signalled is reported when the next one is taken, with the same time and before it.
        acts.sort_by_key(|(ts, _)| *ts);
        let taken = acts.iter().filter(|(_, act)| matches!(act, Act::Took(_))).count() as u64;
        let (mut learnt, mut learning, mut in_hand, mut ready) = (false, 0_u64, 0_u64, None);
        // Packets without a signal, and how long the thread had waited when it took the last of them.
        let mut unknown: Option<(u64, u64)> = None;
        for (ts, act) in acts {
            let read = match act {
                Act::Took(now) => Some(now),
                Act::Sent(now) => Some(Some(now)),
                Act::Signalled(_) => None,
            };
            if let Some(now) = read
                && let Some((packets, then)) = unknown.take()
                && now.is_some_and(|now| now > then)
            {
                shown.waited += packets;
            }
            match act {
                Act::Took(now) => {
                    in_hand += 1;
                    ready = now;
                }
                Act::Sent(_) => {}
                Act::Signalled(i) => {
                    let packets = std::mem::take(&mut in_hand);
                    if !learnt {
                        learnt = matches!(i.delivery, Delivery::Accepted | Delivery::Posted);
                        learning += packets.saturating_sub(learnt.into());
                    } else if i.delivery == Delivery::Unknown && i.vm == 0 && !i.arrival_is_unknown() {
                        // One that was sent began before it was given up.
                        let not_sent = i.signalled == ts;
                        unknown = ready.filter(|_| not_sent).map(|then| (packets, then));
                    }
                }
            }
        }
        if !learnt {
            learning += in_hand;
        }
        shown.learning += learning.min(most_learning(taken));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::late::tests::packet_at;
    use super::*;
    use teiji_model::stage::Split;
    use teiji_model::stream::StreamId;

    const THREAD: u32 = 7;
    const VM: u32 = 1;

    /// The thread had waited for a CPU for so long.
    fn packet(ts: u64, point: Point, ready: Option<u64>) -> Event {
        let mut event = packet_at(ts, 0, point, THREAD);
        if let EventKind::Packet(p) = &mut event.kind {
            p.worker = ready.map(|ns| Split([0, 0, 0, ns, 0]));
        }
        event
    }

    fn signal(ts: u64, delivery: Delivery, vm: u32) -> Event {
        let interrupt = Interrupt {
            signalled: ts,
            ifindex: 1,
            tid: THREAD,
            delivery,
            vm,
            vcpu: 0,
            index: None,
            vector: 0,
            state: None,
            clock: Split::default(),
        };
        Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::Interrupt(interrupt) }
    }

    /// An interrupt of the queue's was sent, and it was given up later.
    fn not_accepted(begun: u64, ts: u64) -> Event {
        let mut event = signal(ts, Delivery::Unknown, 0);
        if let EventKind::Interrupt(i) = &mut event.kind {
            i.signalled = begun;
        }
        event
    }

    #[test]
    fn packets_before_the_interrupt_is_learnt_and_those_of_a_thread_that_waited_are_counted_and_no_others() {
        use Point::{TapDequeue, TapSend};
        let events = [
            // The guest wanted no interrupt for the first; the second's was seen for the first time.
            packet(1, TapDequeue, Some(0)),
            packet(2, TapDequeue, Some(0)),
            signal(3, Delivery::Unknown, VM),
            packet(4, TapDequeue, Some(0)),
            signal(5, Delivery::Unknown, 0),
            packet(6, TapDequeue, Some(9)),
            signal(7, Delivery::Accepted, VM),
            // It waits before it takes the next one, which it signals.
            packet(10, TapDequeue, Some(9)),
            signal(12, Delivery::Unknown, 0),
            packet(12, TapDequeue, Some(10)),
            signal(13, Delivery::Accepted, VM),
            // It waits before it sends a frame.
            packet(20, TapDequeue, Some(10)),
            signal(21, Delivery::Unknown, 0),
            packet(22, TapSend, None),
            packet(23, TapSend, Some(11)),
            // It does not wait; another device's interrupt comes first.
            packet(30, TapDequeue, Some(11)),
            signal(31, Delivery::Unknown, 0),
            packet(31, TapDequeue, Some(11)),
            signal(32, Delivery::Unknown, VM),
            packet(33, TapDequeue, Some(12)),
            signal(34, Delivery::Accepted, VM),
            // It sends a signal that no vCPU accepts, and waits then.
            packet(40, TapDequeue, Some(12)),
            not_accepted(41, 43),
            packet(44, TapDequeue, Some(13)),
        ];
        assert_eq!(shown(events, &[1].into()), Shown { learning: 3, waited: 2 });
        assert_eq!(shown(events, &[2].into()), Shown::default(), "another tap");
        // Nothing is ever learnt.
        assert_eq!(shown(events[..4].to_vec(), &[1].into()), Shown { learning: 3, waited: 0 });
    }

    /// That no interrupt is joined with packets is teiji's conclusion: if none ever were, it would excuse itself.
    #[test]
    fn few_packets_come_before_the_interrupt_is_learnt() {
        for (packets, learning) in [(9, 9), (30, 10), (500, 10), (700, 14)] {
            let each = |n: u64| {
                [packet(2 * n, Point::TapDequeue, Some(0)), signal(2 * n + 1, Delivery::Unknown, VM)]
            };
            let events = (0..packets).flat_map(each);
            assert_eq!(shown(events, &[1].into()), Shown { learning, waited: 0 }, "{packets}");
        }
    }
}
