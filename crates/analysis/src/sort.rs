//! Sorts the events of several CPUs by time.
//!
//! Events of one CPU come in order, those of different CPUs do not. Each CPU has its own queue. The queues are merged
//! by time, and an event is released once an event has come that is newer by the length of the window:
//!
//! ```text
//!  push ─► cpu 0: ▒▒▒▒▒▒
//!          cpu 1: ▒▒▒       ─► the oldest head, if older than newest − window ─► pop
//!          cpu 2: ▒▒▒▒▒▒▒▒▒
//! ```
//!
//! An event that is older than one already released is late: it is counted and refused, as conclusions made without it
//! cannot be taken back. At most `cap` events wait; above that number the oldest are released early.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use teiji_model::event::Event;

/// See the module.
pub struct Sorter {
    window: u64,
    cap: usize,
    queues: Vec<VecDeque<Event>>,
    /// The times of the heads. An entry that is not the head of its queue is outdated.
    heads: BinaryHeap<Reverse<(u64, u16)>>,
    newest: u64,
    released: u64,
    len: usize,
    late: u64,
}

impl Sorter {
    /// Waits `window` ns for late events, with at most `cap` events.
    pub fn new(window: u64, cap: usize) -> Self {
        Sorter {
            window,
            cap,
            queues: Vec::new(),
            heads: BinaryHeap::new(),
            newest: 0,
            released: 0,
            len: 0,
            late: 0,
        }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// If the event comes too late: the time up to which events have been released, ns.
    pub fn push(&mut self, event: Event) -> Result<(), u64> {
        if event.ts < self.released {
            self.late += 1;
            return Err(self.released);
        }
        let cpu = usize::from(event.cpu);
        if cpu >= self.queues.len() {
            self.queues.resize_with(cpu + 1, VecDeque::new);
        }
        let queue = &mut self.queues[cpu];
        match queue.back() {
            Some(last) if last.ts <= event.ts => queue.push_back(event),
            None => {
                queue.push_back(event);
                self.heads.push(Reverse((event.ts, event.cpu)));
            }
            Some(_) => {
                let at = queue.partition_point(|e| e.ts <= event.ts);
                queue.insert(at, event);
                if at == 0 {
                    self.heads.push(Reverse((event.ts, event.cpu)));
                }
            }
        }
        self.newest = self.newest.max(event.ts);
        self.len += 1;
        Ok(())
    }

    /// The next event in order, if it need not wait for others.
    pub fn pop(&mut self) -> Option<Event> {
        let then = if self.len > self.cap { u64::MAX } else { self.newest.checked_sub(self.window)? };
        self.pop_until(then)
    }

    /// The next event in order, even if others may still come.
    pub fn flush(&mut self) -> Option<Event> {
        self.pop_until(u64::MAX)
    }

    /// The number of events that came too late.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn pop_until(&mut self, then: u64) -> Option<Event> {
        loop {
            let mut head = self.heads.peek_mut()?;
            let Reverse((ts, cpu)) = *head;
            if ts > then {
                return None;
            }
            let queue = &mut self.queues[usize::from(cpu)];
            if queue.front().is_none_or(|e| e.ts != ts) {
                PeekMut::pop(head);
                continue;
            }
            let event = queue.pop_front();
            match queue.front() {
                Some(next) => *head = Reverse((next.ts, cpu)),
                None => {
                    PeekMut::pop(head);
                }
            }
            self.released = ts;
            self.len -= 1;
            return event;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use teiji_model::event::{EventKind, ThreadName};

    fn event(ts: u64, cpu: u16, tid: u32) -> Event {
        Event { ts, cpu, kind: EventKind::ThreadName(ThreadName { tid, comm: [0; 16] }) }
    }

    proptest! {
        #[test]
        fn all_come_out_once_and_in_order(
            events in prop::collection::vec((0u64..1000, 0u16..4), 0..200), window in 0u64..2000) {
            let mut s = Sorter::new(window, 1000);
            let (mut out, mut refused) = (Vec::new(), 0);
            for (i, (ts, cpu)) in events.iter().enumerate() {
                refused += usize::from(s.push(event(*ts, *cpu, i as u32)).is_err());
                while let Some(e) = s.pop() { out.push(e) }
            }
            while let Some(e) = s.flush() { out.push(e) }
            prop_assert_eq!(out.len() + refused, events.len());
            prop_assert_eq!(refused as u64, s.late());
            prop_assert!(out.windows(2).all(|w| w[0].ts <= w[1].ts));
            if window >= 1000 { prop_assert_eq!(refused, 0) }
            // Events of one CPU at the same instant keep their order.
            for w in out.windows(2) {
                if let (EventKind::ThreadName(a), EventKind::ThreadName(b)) = (w[0].kind, w[1].kind)
                    && w[0].ts == w[1].ts && w[0].cpu == w[1].cpu { prop_assert!(a.tid < b.tid) }
            }
        }
    }

    #[test]
    fn the_number_that_waits_is_bounded() {
        let mut s = Sorter::new(u64::MAX, 10);
        for i in 0..100 {
            s.push(event(i, 0, 0)).unwrap();
            while s.pop().is_some() {}
            assert!(s.len <= 10);
        }
    }
}
