//! A link with an earliest-deadline-first queue, simulated packet by packet. Written from the description of the queue;
//! the only code it shares with the admission control are the types of links and channels.
//!
//! Time is counted in ns × the link's rate in bit/s: a byte takes exactly 8·10⁹ and nothing is rounded.
//!
//! A run begins at the worst moment: best effort has just filled the driver's ring, and the limiter's timer fires late.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Time that one byte takes, ns × bit/s.
pub const BYTE: i128 = 8_000_000_000;

/// A packet of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    /// Arrival, ns; negative: before the run begins.
    pub arrival: i64,
    /// Its channel, from 0.
    pub channel: usize,
    /// Bytes on the wire.
    pub bytes: u64,
}

/// The link and its best-effort traffic.
#[derive(Clone, Debug)]
pub struct Wire<'a> {
    /// bit/s.
    pub rate: u64,
    /// Size of best effort's packets, bytes on the wire.
    pub best_effort: u64,
    /// The next packet is handed over only while at most this many bytes are in the ring.
    pub ring: u64,
    /// The link sends nothing for this long at the start, ns.
    pub stall: u64,
    /// Best effort goes first while the earliest deadline is further away than this, ns.
    pub slack: u64,
    /// Each channel's deadline, ns.
    pub deadlines: &'a [u64],
    /// Whether best effort has a packet the n-th time that it may send; if not, a real-time packet is sent, or the link
    /// waits.
    pub waiting: fn(u64) -> bool,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The longest delay of each channel, from arrival to the last bit sent, ns × bit/s.
    pub longest: Vec<i128>,
    /// Packets later than their deadline.
    pub missed: u64,
    /// Packets sent.
    pub sent: u64,
}

/// Sends the packets, which must be in the order of their arrival.
pub fn send(wire: &Wire<'_>, packets: &[Packet]) -> Outcome {
    let rate = i128::from(wire.rate);
    let size = |bytes: u64| i128::from(bytes) * BYTE;
    let mut out = Outcome { longest: vec![0; wire.deadlines.len()], ..Outcome::default() };
    // By deadline: (deadline, index in `packets`).
    let mut queue: BinaryHeap<Reverse<(i128, usize)>> = BinaryHeap::new();
    let mut arrivals = packets.iter().enumerate().peekable();
    // In the ring: (time at which the last bit is sent, bytes).
    let mut ring: VecDeque<(i128, u64)> = VecDeque::new();
    let (mut held, mut last) = (0, i128::from(wire.stall) * rate);
    let mut push = |ring: &mut VecDeque<(i128, u64)>, held: &mut u64, now: i128, bytes: u64| {
        last = last.max(now) + size(bytes);
        ring.push_back((last, bytes));
        *held += bytes;
        last
    };
    // Best effort fills the ring as far as it can.
    let mut fill = wire.ring + wire.best_effort;
    while fill > 0 {
        let bytes = fill.min(wire.best_effort);
        push(&mut ring, &mut held, 0, bytes);
        fill -= bytes;
    }
    let (mut now, mut turn) = (0, 0);
    loop {
        while held > wire.ring
            && let Some((end, bytes)) = ring.pop_front()
        {
            now = now.max(end);
            held -= bytes;
        }
        while let Some((i, p)) = arrivals.next_if(|(_, p)| i128::from(p.arrival) * rate <= now) {
            let deadline = i128::from(p.arrival) + i128::from(wire.deadlines[p.channel]);
            queue.push(Reverse((deadline * rate, i)));
        }
        let urgent = queue.peek().is_some_and(|Reverse((d, _))| d - now <= i128::from(wire.slack) * rate);
        if !urgent {
            let next = arrivals.peek().map(|(_, p)| i128::from(p.arrival) * rate);
            if queue.is_empty() && next.is_none() {
                return out;
            }
            turn += 1;
            if (wire.waiting)(turn) {
                push(&mut ring, &mut held, now, wire.best_effort);
                continue;
            }
            if queue.is_empty() {
                now = now.max(next.unwrap_or(now));
                // What has been sent by now has left the ring.
                while let Some((_, bytes)) = ring.front().copied().filter(|(end, _)| *end <= now) {
                    ring.pop_front();
                    held -= bytes;
                }
                continue;
            }
        }
        if let Some(Reverse((deadline, i))) = queue.pop() {
            let p = &packets[i];
            let end = push(&mut ring, &mut held, now, p.bytes);
            let delay = end - i128::from(p.arrival) * rate;
            out.longest[p.channel] = out.longest[p.channel].max(delay);
            out.missed += u64::from(end > deadline);
            out.sent += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 Gbit/s: one byte takes 1 ns.
    const WIRE: Wire<'static> = Wire {
        rate: 8_000_000_000,
        best_effort: 100,
        ring: 0,
        stall: 0,
        slack: 1000,
        deadlines: &[300, 500],
        waiting: |_| true,
    };

    fn packet(arrival: i64, channel: usize, bytes: u64) -> Packet {
        Packet { arrival, channel, bytes }
    }

    fn ns(outcome: &Outcome) -> Vec<i128> {
        outcome.longest.iter().map(|l| l / BYTE).collect()
    }

    #[test]
    fn the_earliest_deadline_goes_first_and_is_not_interrupted() {
        // b's packet is chosen at 100; a's arrives just after, with the earlier deadline, and waits for it.
        let out = send(&WIRE, &[packet(0, 1, 50), packet(101, 0, 20), packet(101, 1, 30)]);
        assert_eq!((ns(&out), out.missed, out.sent), (vec![69, 150], 0, 3));
    }

    #[test]
    fn best_effort_goes_first_until_the_slack_is_used_up() {
        // The deadline is at 300; at 200 it is 100 away.
        let out = send(&Wire { slack: 100, ..WIRE }, &[packet(0, 0, 50)]);
        assert_eq!((ns(&out)[0], out.missed), (250, 0));
        // At 200 the deadline is further away than the slack by 1.
        let out = send(&Wire { slack: 99, ..WIRE }, &[packet(0, 0, 50)]);
        assert_eq!((ns(&out)[0], out.missed), (350, 1));
        // Without best effort the packet is sent as soon as it can be.
        let out =
            send(&Wire { slack: 99, waiting: |_| false, ..WIRE }, &[packet(0, 0, 50), packet(400, 0, 50)]);
        assert_eq!(ns(&out)[0], 150);
    }

    #[test]
    fn ring_and_stall_come_first() {
        let out = send(&Wire { ring: 30, stall: 7, ..WIRE }, &[packet(0, 0, 50)]);
        assert_eq!(ns(&out)[0], 7 + 100 + 30 + 50);
    }
}
