//! Sorts the events of several streams and CPUs by time.
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
//! Which events of the host are released, and when, does not depend on those of guests, whatever times and whatever number
//! of events a guest makes up: an event of the host is never late because of a guest. It is released even if newer events of
//! guests were released before. Each guest has room for [`GUEST_CAP`] events of its own, and those for which there is
//! none are refused.
//!
//! An event that is older than one already released is late: it is counted and refused, as conclusions made without it
//! cannot be taken back. At most `cap` events of the host wait; above that number the oldest events are released early. Events
//! that are late because of that alone, so within the window, are also counted apart.
//!
//! Room is bounded too. A queue consists of chunks of [`CHUNK`] events, which are freed as they become empty, so that a
//! CPU that was busy once keeps no room. Events in order need room for [`CHUNK`] more in the first and in the last chunk
//! of each CPU. Events of a CPU that are not in order leave chunks half full at worst. If there are more chunks than
//! twice what `cap` events fill, the oldest events are released early as well.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use teiji_model::event::Event;
use teiji_model::stream::StreamId;

/// How many events of a guest wait at most: 2 MB.
pub const GUEST_CAP: usize = 1 << 14;

/// The greatest number of events in a chunk: 4 kB.
const CHUNK: usize = 32;

/// The events of one CPU that wait, by time. No chunk is empty.
#[derive(Clone, Default)]
struct Queue {
    chunks: VecDeque<VecDeque<Event>>,
    /// The times of those of its events that are in [`Sorter::heads`], the first of them first: the head, and events that
    /// were the head until an older one came.
    in_heads: VecDeque<u64>,
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

/// The queues of a stream, by CPU.
#[derive(Clone, Default)]
struct Stream {
    queues: Vec<Queue>,
    len: usize,
    /// The number of chunks of all queues.
    chunks: usize,
}

/// Why an event is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Events have been released up to this time, ns.
    Late(u64),
    /// Too many events of that guest wait.
    NoRoom,
}

/// See the module.
#[derive(Clone)]
pub struct Sorter {
    window: u64,
    cap: usize,
    /// By number.
    streams: Vec<Stream>,
    /// The times of the heads, with stream and CPU; and of events that were a head before. Each event is in it once at most.
    heads: BinaryHeap<Reverse<(u64, u16, u16)>>,
    /// The times of the newest event of the host, and of the newest of them that was released, ns.
    newest: u64,
    released: u64,
    late: u64,
    late_no_room: u64,
}

impl Sorter {
    /// Waits `window` ns for late events, with at most `cap` events of the host.
    pub fn new(window: u64, cap: usize) -> Self {
        Sorter {
            window,
            cap,
            streams: Vec::new(),
            heads: BinaryHeap::new(),
            newest: 0,
            released: 0,
            late: 0,
            late_no_room: 0,
        }
    }

    /// Adds an event, whose time is on the host's clock.
    ///
    /// # Errors
    /// If the event comes too late, or is one too many of a guest.
    pub fn push(&mut self, event: Event) -> Result<(), Refused> {
        let of_host = event.stream.is_host();
        if self.is_late(event.ts) {
            if of_host {
                self.late += 1;
                // Until then nothing as new has been released, unless there was no room.
                self.late_no_room += u64::from(event.ts >= self.newest.saturating_sub(self.window));
            }
            return Err(Refused::Late(self.released));
        }
        let (number, cpu) = (usize::from(event.stream.0), usize::from(event.cpu));
        if number >= self.streams.len() {
            self.streams.resize_with(number + 1, Stream::default);
        }
        let stream = &mut self.streams[number];
        if !of_host && (stream.len >= GUEST_CAP || stream.chunks >= max_chunks(GUEST_CAP)) {
            return Err(Refused::NoRoom);
        }
        if cpu >= stream.queues.len() {
            stream.queues.resize_with(cpu + 1, Queue::default);
        }
        let queue = &mut stream.queues[cpu];
        let before = queue.chunks.len();
        if queue.push(event) {
            queue.in_heads.push_front(event.ts);
            self.heads.push(Reverse((event.ts, event.stream.0, event.cpu)));
        }
        stream.chunks += queue.chunks.len() - before;
        stream.len += 1;
        if of_host {
            self.newest = self.newest.max(event.ts);
        }
        Ok(())
    }

    /// A guest has ended: what waits of its stream is dropped.
    pub fn forget(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(usize::from(id.0)).filter(|_| !id.is_host()) {
            *stream = Stream::default();
            self.heads.retain(|Reverse((_, number, _))| *number != id.0);
        }
    }

    /// Whether an event of this time would come too late.
    pub fn is_late(&self, ts: u64) -> bool {
        ts < self.released
    }

    /// The next event in order, if it need not wait for others.
    pub fn pop(&mut self) -> Option<Event> {
        let host = self.streams.first();
        let full = host.is_some_and(|host| host.len > self.cap || host.chunks > max_chunks(self.cap));
        let then = if full { u64::MAX } else { self.newest.checked_sub(self.window)? };
        self.pop_until(then)
    }

    /// The next event in order, even if others may still come.
    pub fn flush(&mut self) -> Option<Event> {
        self.pop_until(u64::MAX)
    }

    /// The number of events of the host that came too late.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The number of [late](Sorter::late) events that came within the window, but after others had been released early
    /// because too many waited.
    pub fn late_no_room(&self) -> u64 {
        self.late_no_room
    }

    fn pop_until(&mut self, then: u64) -> Option<Event> {
        let mut head = self.heads.peek_mut()?;
        let Reverse((ts, number, cpu)) = *head;
        if ts > then {
            return None;
        }
        let stream = &mut self.streams[usize::from(number)];
        let queue = &mut stream.queues[usize::from(cpu)];
        let before = queue.chunks.len();
        let event = queue.pop_front();
        stream.chunks -= before - queue.chunks.len();
        queue.in_heads.pop_front();
        match queue.front().map(|next| next.ts) {
            // It was the head before.
            Some(next) if queue.in_heads.front() == Some(&next) => {
                PeekMut::pop(head);
            }
            Some(next) => {
                queue.in_heads.push_front(next);
                *head = Reverse((next, number, cpu));
            }
            None => {
                queue.in_heads = VecDeque::new();
                PeekMut::pop(head);
            }
        }
        stream.len -= 1;
        if number == StreamId::HOST.0 {
            self.released = ts;
        }
        event
    }
}

/// Twice what `cap` events fill.
fn max_chunks(cap: usize) -> usize {
    2 * cap.div_ceil(CHUNK) + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use teiji_model::event::{EventKind, ThreadName};

    fn event(ts: u64, cpu: u16, tid: u32) -> Event {
        Event {
            ts,
            stream: StreamId::HOST,
            cpu,
            kind: EventKind::ThreadName(ThreadName { tid, comm: [0; 16] }),
        }
    }

    impl Sorter {
        /// The number of events for which there is room.
        fn room(&self) -> usize {
            self.queues().flat_map(|q| &q.chunks).map(VecDeque::capacity).sum()
        }

        fn len(&self) -> usize {
            self.streams.iter().map(|stream| stream.len).sum()
        }

        fn chunks(&self) -> usize {
            self.streams.iter().map(|stream| stream.chunks).sum()
        }

        fn queues(&self) -> impl Iterator<Item = &Queue> {
            self.streams.iter().flat_map(|stream| &stream.queues)
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
                    prop_assert!(s.len() <= cap);
                    prop_assert_eq!(s.heads.len(), s.queues().map(|q| q.in_heads.len()).sum::<usize>());
                    prop_assert!(s.heads.len() <= s.len());
                    prop_assert_eq!(s.len(), s.queues().flat_map(|q| &q.chunks).map(VecDeque::len).sum::<usize>());
                    prop_assert_eq!(s.chunks(), s.queues().map(|q| q.chunks.len()).sum::<usize>());
                    prop_assert!(s.room() <= s.chunks() * CHUNK && s.chunks() <= max_chunks(cap));
                    if in_order { prop_assert!(s.room() <= s.len() + 4 * 2 * CHUNK) }
                }
                while s.flush().is_some() {}
                prop_assert_eq!((s.len(), s.chunks(), s.room()), (0, 0, 0));
                prop_assert_eq!(s.queues().map(|q| q.chunks.capacity()).sum::<usize>(), 0);
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

    fn of_guest(ts: u64, stream: u16) -> Event {
        Event { stream: StreamId(stream), ..event(ts, 0, 0) }
    }

    proptest! {
        /// Whatever times a guest gives its events, those of the host come out as without the guest.
        #[test]
        fn a_guest_changes_nothing_for_the_host(
            events in prop::collection::vec((0u64..5000, 0u16..4), 0..400),
            lies in prop::collection::vec((0usize..400, prop_oneof![any::<u64>(), 0u64..5000]), 0..400)) {
            let run = |lies: &[(usize, u64)]| {
                let mut s = Sorter::new(700, 50);
                let (mut out, mut last) = (Vec::new(), 0);
                let mut take = |e: Event| {
                    if e.stream.is_host() {
                        assert!(e.ts >= last);
                        last = e.ts;
                        out.push(e);
                    }
                };
                for (i, (ts, cpu)) in events.iter().enumerate() {
                    for (_, ts) in lies.iter().filter(|(at, _)| *at == i) {
                        let _ = s.push(of_guest(*ts, 3));
                    }
                    let _ = s.push(event(*ts, *cpu, i as u32));
                    while let Some(e) = s.pop() { take(e) }
                }
                let late = (s.late(), s.late_no_room());
                while let Some(e) = s.flush() { take(e) }
                (out, late)
            };
            let (mut honest, late) = run(&[]);
            let (mut lied_to, late_too) = run(&lies);
            // Events of several CPUs at one instant have no order of their own.
            let order = |e: &Event| (e.ts, e.cpu);
            honest.sort_by_key(order);
            lied_to.sort_by_key(order);
            prop_assert_eq!(honest, lied_to);
            prop_assert_eq!(late, late_too);
        }
    }

    /// An event far ahead stays, and each event before it becomes the head in turn.
    #[test]
    fn a_guest_that_is_ahead_takes_no_room_for_each_event() {
        let mut s = Sorter::new(1000, 1 << 10);
        s.push(of_guest(u64::MAX, 1)).unwrap();
        for ts in 2000..50_000 {
            s.push(event(ts, 0, 0)).unwrap();
            s.push(of_guest(ts - 1000, 1)).unwrap();
            while s.pop().is_some() {}
            assert!(s.heads.len() <= s.len(), "{} heads of {} events", s.heads.len(), s.len());
        }
        assert_eq!(s.streams[1].len, 1);
        s.forget(StreamId(1));
        assert_eq!((s.streams[1].len, s.heads.len()), (0, 1));
        while s.flush().is_some() {}
        assert_eq!(s.heads.len(), 0);
    }

    #[test]
    fn a_flooding_guest_has_the_room_of_one_guest() {
        let mut s = Sorter::new(1000, 10);
        s.push(event(1, 0, 0)).unwrap();
        for i in 0..3 * GUEST_CAP as u64 {
            assert_eq!(
                s.push(of_guest(u64::MAX - i, 1)),
                if i < GUEST_CAP as u64 { Ok(()) } else { Err(Refused::NoRoom) }
            );
        }
        // It takes room from nobody.
        s.push(of_guest(5, 2)).unwrap();
        for ts in 2..5000 {
            s.push(event(ts, 0, 0)).unwrap();
            while s.pop().is_some() {}
            assert!(s.streams[0].len <= 10);
        }
        assert_eq!(s.late(), 0);
        assert!(s.room() <= 2 * (GUEST_CAP + 1) + 4 * CHUNK);
    }

    #[test]
    fn the_number_that_waits_is_bounded() {
        let mut s = Sorter::new(u64::MAX, 10);
        for i in 0..100 {
            s.push(event(i, 0, 0)).unwrap();
            while s.pop().is_some() {}
            assert!(s.len() <= 10);
        }
    }

    #[test]
    fn a_cpu_that_was_busy_keeps_no_room() {
        let mut s = Sorter::new(1000, 1 << 18);
        for i in 0..100_000 {
            s.push(event(i, (i / 2000 % 16) as u16, 0)).unwrap();
            while s.pop().is_some() {}
            assert!(s.room() <= s.len() + 4 * CHUNK, "{} for {} at {i}", s.room(), s.len());
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
            assert_eq!(s.push(event(5000 - behind, 1, 0)), Err(Refused::Late(4990)));
            assert_eq!((s.late(), s.late_no_room()), (1, no_room), "{behind} behind");
        }
        // Enough room: nothing but the window makes an event late.
        let mut s = Sorter::new(1000, 5000);
        for ts in 1..=5000 {
            s.push(event(ts, 0, 0)).unwrap();
            while s.pop().is_some() {}
        }
        s.push(event(4000, 1, 0)).unwrap();
        assert_eq!(s.push(event(3999, 1, 0)), Err(Refused::Late(4000)));
        assert_eq!((s.late(), s.late_no_room()), (1, 0));
    }
}
