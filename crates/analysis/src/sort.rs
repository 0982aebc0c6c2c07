//! Sorts the events of several CPUs by time.
//!
//! Events of one CPU come nearly in order, those of different CPUs do not ([`teiji_model::event`]). Each CPU has its own
//! queue, in which an event that comes late is inserted at its place. The queues are merged by time, and an event is
//! released once an event has come that is newer by the length of the window:
//!
//! ```text
//!  push ─► cpu 0: ▒▒▒▒▒▒
//!          cpu 1: ▒▒▒       ─► the oldest head, if older than newest − window ─► pop
//!          cpu 2: ▒▒▒▒▒▒▒▒▒
//! ```
//!
//! An event that is older than one already released is late: it is counted and refused, as conclusions made without it
//! cannot be taken back. At most `cap` events wait; above that number the oldest are released early. Events that are
//! late because of that alone, so within the window, are also counted apart.
//!
//! Room is bounded too. A queue consists of chunks of [`CHUNK`] events, which are freed as they become empty, so that a
//! CPU that was busy once keeps no room. Events in order need room for [`CHUNK`] more in the first and in the last chunk
//! of each CPU. Events of a CPU that are not in order leave chunks half full at worst. If there are more chunks than
//! twice what `cap` events fill, the oldest events are released early as well.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use teiji_model::event::Event;

/// The greatest number of events in a chunk: 4 kB.
const CHUNK: usize = 32;

/// The events of one CPU that wait, by time. No chunk is empty.
#[derive(Clone, Default)]
struct Queue {
    chunks: VecDeque<VecDeque<Event>>,
}

impl Queue {
    fn front(&self) -> Option<&Event> {
        self.chunks.front()?.front()
    }

    /// Adds an event, after those of the same time; returns whether it is the first now.
    fn push(&mut self, event: Event) -> bool {
        match self.chunks.back_mut() {
            Some(last) if last.back().is_some_and(|e| e.ts > event.ts) => self.insert(event),
            Some(last) if last.len() < CHUNK => {
                last.push_back(event);
                false
            }
            // Grows step by step: a CPU with few events needs little room.
            None => {
                self.chunks.push_back(VecDeque::from([event]));
                true
            }
            Some(_) => {
                let mut chunk = VecDeque::with_capacity(CHUNK);
                chunk.push_back(event);
                self.chunks.push_back(chunk);
                false
            }
        }
    }

    /// Adds an event that is older than the last one; returns whether it is the first now.
    #[cold]
    fn insert(&mut self, event: Event) -> bool {
        let older = |e: &Event| e.ts <= event.ts;
        let place = |chunks: &VecDeque<VecDeque<Event>>| {
            chunks.partition_point(|chunk| chunk.back().is_some_and(older))
        };
        let mut chunk = place(&self.chunks);
        if self.chunks[chunk].len() == CHUNK {
            let rest = self.chunks[chunk].split_off(CHUNK / 2);
            self.chunks.insert(chunk + 1, rest);
            chunk = place(&self.chunks);
        }
        let at = self.chunks[chunk].partition_point(older);
        self.chunks[chunk].insert(at, event);
        chunk == 0 && at == 0
    }

    fn pop_front(&mut self) -> Option<Event> {
        let first = self.chunks.front_mut()?;
        let event = first.pop_front();
        if first.is_empty() {
            self.chunks.pop_front();
            if self.chunks.is_empty() {
                self.chunks = VecDeque::new();
            } else if self.chunks.len() < self.chunks.capacity() / 4 {
                self.chunks.shrink_to(self.chunks.capacity() / 2);
            }
        }
        event
    }
}

/// See the module.
#[derive(Clone)]
pub struct Sorter {
    window: u64,
    cap: usize,
    queues: Vec<Queue>,
    /// The times of the heads. An entry that is not the head of its queue is outdated.
    heads: BinaryHeap<Reverse<(u64, u16)>>,
    newest: u64,
    released: u64,
    len: usize,
    /// The number of chunks of all queues.
    chunks: usize,
    late: u64,
    late_no_room: u64,
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
            chunks: 0,
            late: 0,
            late_no_room: 0,
        }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// If the event comes too late: the time up to which events have been released, ns.
    pub fn push(&mut self, event: Event) -> Result<(), u64> {
        if event.ts < self.released {
            self.late += 1;
            // Until then nothing as young has been released, unless there was no room.
            self.late_no_room += u64::from(event.ts >= self.newest.saturating_sub(self.window));
            return Err(self.released);
        }
        let cpu = usize::from(event.cpu);
        if cpu >= self.queues.len() {
            self.queues.resize_with(cpu + 1, Queue::default);
        }
        let queue = &mut self.queues[cpu];
        let before = queue.chunks.len();
        if queue.push(event) {
            self.heads.push(Reverse((event.ts, event.cpu)));
        }
        self.chunks += queue.chunks.len() - before;
        self.newest = self.newest.max(event.ts);
        self.len += 1;
        Ok(())
    }

    /// The next event in order, if it need not wait for others.
    pub fn pop(&mut self) -> Option<Event> {
        let full = self.len > self.cap || self.chunks > self.max_chunks();
        let then = if full { u64::MAX } else { self.newest.checked_sub(self.window)? };
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

    /// The number of [late](Sorter::late) events that came within the window, but after others had been released early
    /// because too many waited.
    pub fn late_no_room(&self) -> u64 {
        self.late_no_room
    }

    /// Twice what `cap` events fill.
    fn max_chunks(&self) -> usize {
        2 * self.cap.div_ceil(CHUNK) + 2
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
            let before = queue.chunks.len();
            let event = queue.pop_front();
            self.chunks -= before - queue.chunks.len();
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

    impl Sorter {
        /// The number of events for which there is room.
        fn room(&self) -> usize {
            self.queues.iter().flat_map(|q| &q.chunks).map(VecDeque::capacity).sum()
        }
    }

    proptest! {
        #[test]
        fn room_follows_the_number_that_waits(
            events in prop::collection::vec((0u64..5000, 0u16..4), 0..3000), cap in 0usize..500) {
            // In no order at all, and in the order of the times.
            for in_order in [false, true] {
                let mut s = Sorter::new(1000, cap);
                let mut events = events.clone();
                if in_order { events.sort() }
                for (ts, cpu) in events {
                    let _ = s.push(event(ts, cpu, 0));
                    while s.pop().is_some() {}
                    prop_assert!(s.len <= cap);
                    prop_assert_eq!(s.len, s.queues.iter().flat_map(|q| &q.chunks).map(VecDeque::len).sum::<usize>());
                    prop_assert_eq!(s.chunks, s.queues.iter().map(|q| q.chunks.len()).sum::<usize>());
                    prop_assert!(s.room() <= s.chunks * CHUNK && s.chunks <= s.max_chunks());
                    if in_order { prop_assert!(s.room() <= s.len + 4 * 2 * CHUNK) }
                }
                while s.flush().is_some() {}
                prop_assert_eq!((s.len, s.chunks, s.room()), (0, 0, 0));
                prop_assert_eq!(s.queues.iter().map(|q| q.chunks.capacity()).sum::<usize>(), 0);
            }
        }

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

    #[test]
    fn a_cpu_that_was_busy_keeps_no_room() {
        let mut s = Sorter::new(1000, 1 << 18);
        for i in 0..100_000 {
            s.push(event(i, (i / 2000 % 16) as u16, 0)).unwrap();
            while s.pop().is_some() {}
            assert!(s.room() <= s.len + 4 * CHUNK, "{} for {} at {i}", s.room(), s.len);
        }
    }

    #[test]
    fn what_is_late_for_lack_of_room_is_counted_apart() {
        // Ten events fit, and the event of another CPU comes 20 or 2000 after its time: within the window, and not.
        for (behind, no_room) in [(20, 1), (1000, 1), (1001, 0), (2000, 0)] {
            let mut s = Sorter::new(1000, 10);
            for ts in 1..=5000 {
                s.push(event(ts, 0, 0)).unwrap();
                while s.pop().is_some() {}
            }
            assert_eq!(s.push(event(5000 - behind, 1, 0)), Err(4990));
            assert_eq!((s.late(), s.late_no_room()), (1, no_room), "{behind} behind");
        }
        // Enough room: nothing but the window makes an event late.
        let mut s = Sorter::new(1000, 5000);
        for ts in 1..=5000 {
            s.push(event(ts, 0, 0)).unwrap();
            while s.pop().is_some() {}
        }
        s.push(event(4000, 1, 0)).unwrap();
        assert_eq!(s.push(event(3999, 1, 0)), Err(4000));
        assert_eq!((s.late(), s.late_no_room()), (1, 0));
    }
}
