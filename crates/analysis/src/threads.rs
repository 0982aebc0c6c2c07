//! Which thread a thread id means at a time. The kernel uses ids again, and a thread may change its name: then the same id
//! is another number here, so that nothing is credited to the former owner.

use crate::hash::{Map, Seeded, make_room};
use std::collections::VecDeque;
use teiji_model::event::ThreadName;

/// How many threads are known at once; of older ones only the id stays known where it is stored beside the number.
const MOST: usize = 1 << 16;

/// A thread: its id, and which of the threads that have had it. The default is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thread {
    number: u32,
    /// Its id.
    pub tid: u32,
}

#[cfg(test)]
impl Thread {
    pub(crate) fn with_id(tid: u32) -> Thread {
        Thread { number: tid, tid }
    }
}

/// See the module. Numbers grow by one from thread to thread; 0 is nobody's.
#[derive(Clone)]
pub(crate) struct Threads {
    current: Map<u32, u32>,
    /// Those with the numbers from `first` on: id and name, if it is known.
    known: VecDeque<(u32, Option<ThreadName>)>,
    first: u32,
}

impl Threads {
    pub(crate) fn new(hasher: Seeded) -> Self {
        Threads { current: Map::with_hasher(hasher), known: VecDeque::new(), first: 1 }
    }

    /// A thread has this name now.
    pub(crate) fn named(&mut self, name: &ThreadName) {
        let current = self.current.get(&name.tid).copied();
        match current.and_then(|number| self.place(number)) {
            Some((_, known)) if known.is_none_or(|known| known == *name) => *known = Some(*name),
            _ => {
                let number = self.begin(name.tid);
                if let Some((_, known)) = self.place(number) {
                    *known = Some(*name);
                }
            }
        }
    }

    /// The number of the thread that has this id now; 0 for id 0.
    pub(crate) fn number(&mut self, tid: u32) -> u32 {
        match self.current.get(&tid) {
            _ if tid == 0 => 0,
            Some(number) => *number,
            None => self.begin(tid),
        }
    }

    /// The thread with a number; nobody if it is not known any more.
    pub(crate) fn thread(&self, number: u32) -> Thread {
        let at = number.checked_sub(self.first).and_then(|at| self.known.get(at as usize));
        at.map_or(Thread::default(), |(tid, _)| Thread { number, tid: *tid })
    }

    /// A thread's name, empty if it is not known.
    pub(crate) fn name(&self, thread: Thread) -> String {
        let at = thread.number.checked_sub(self.first).and_then(|at| self.known.get(at as usize));
        at.and_then(|(_, name)| name.as_ref()).map(ThreadName::name).unwrap_or_default()
    }

    fn place(&mut self, number: u32) -> Option<&mut (u32, Option<ThreadName>)> {
        self.known.get_mut(number.checked_sub(self.first)? as usize)
    }

    fn begin(&mut self, tid: u32) -> u32 {
        if self.known.len() == MOST
            && let Some((former, _)) = self.known.pop_front()
        {
            if self.current.get(&former) == Some(&self.first) {
                self.current.remove(&former);
            }
            self.first += 1;
        }
        let number = self.first + self.known.len() as u32;
        self.known.push_back((tid, None));
        make_room(&mut self.current, MOST);
        self.current.insert(tid, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(tid: u32, name: &str) -> ThreadName {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        ThreadName { tid, comm }
    }

    #[test]
    fn an_id_that_is_used_again_is_another_thread() {
        let mut threads = Threads::new(Seeded::new(1));
        let now = |threads: &mut Threads| {
            let number = threads.number(5);
            threads.thread(number)
        };
        let nameless = now(&mut threads);
        threads.named(&named(5, "first"));
        let first = now(&mut threads);
        assert_eq!((first, threads.name(first)), (nameless, "first".into()));
        threads.named(&named(5, "first"));
        assert_eq!(now(&mut threads), first, "the same name again is the same thread");
        threads.named(&named(5, "second"));
        let second = now(&mut threads);
        assert!(first != second && first.tid == second.tid);
        assert_eq!((threads.name(first), threads.name(second)), ("first".into(), "second".into()));
        assert_eq!((threads.number(0), threads.thread(0)), (0, Thread::default()));
        assert_eq!(threads.name(Thread::default()), "");
    }

    #[test]
    fn a_full_table_does_not_grow() {
        let mut threads = Threads::new(Seeded::new(1));
        let mut full = 0;
        for tid in 1..=100 * MOST as u32 {
            threads.number(tid);
            if tid == MOST as u32 {
                full = threads.current.capacity();
            }
        }
        assert!(threads.current.capacity() <= full, "{full}, then {}", threads.current.capacity());
    }

    #[test]
    fn old_threads_make_room() {
        let mut threads = Threads::new(Seeded::new(1));
        let first = threads.number(1);
        for tid in 2..3 * MOST as u32 {
            threads.named(&named(tid, "x"));
        }
        assert!(threads.known.len() == MOST && threads.current.len() == MOST);
        assert_eq!(threads.thread(first), Thread::default());
        assert!(threads.number(1) != first);
        let last = threads.number(3 * MOST as u32 - 1);
        assert_eq!(threads.name(threads.thread(last)), "x");
    }
}
