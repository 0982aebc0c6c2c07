//! The statistics of thread starts of a VM's requests.

use crate::hash::Seeded;
use crate::heaviest::Heaviest;
use crate::join::RequestStarts;
use crate::stats::Series;
use crate::threads::{Thread, Threads};
use teiji_model::event::Waker;
use teiji_model::threads::{RoleStarts, ThreadRole, ThreadsReport, WokenBy};

/// How many of those who woke threads are named for each role.
const NAMED: usize = 5;

/// Who woke a thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum By {
    Unknown,
    Interrupt,
    Thread(Thread),
    /// A thread of the guest, by its id there.
    OfGuest(u32),
}

/// See the module.
#[derive(Clone)]
pub(crate) struct ThreadStats {
    requests: u64,
    unknown: u64,
    per_request: Series,
    to_application: Series,
    starts: [u64; ThreadRole::COUNT],
    wake_up: [Series; ThreadRole::COUNT],
    woken_by: Heaviest<(ThreadRole, By)>,
}

impl ThreadStats {
    pub(crate) fn new(hasher: Seeded) -> Self {
        ThreadStats {
            requests: 0,
            unknown: 0,
            per_request: Series::default(),
            to_application: Series::default(),
            starts: [0; ThreadRole::COUNT],
            wake_up: Default::default(),
            woken_by: Heaviest::new(hasher),
        }
    }

    /// Adds a divided request; `None`: its starts are not all known.
    pub(crate) fn add(&mut self, found: Option<&RequestStarts>, threads: &Threads) {
        let Some(found) = found else {
            self.unknown += 1;
            return;
        };
        self.requests += 1;
        self.per_request.record(found.starts.len() as u64);
        if let Some(ns) = found.to_application {
            self.to_application.record(ns);
        }
        for (role, start) in &found.starts {
            self.starts[*role as usize] += 1;
            let Some(woken) = start.woken else { continue };
            self.wake_up[*role as usize].record(start.running - woken);
            let by = match (start.waker, &found.reader_woken_by) {
                (_, Some((tid, _))) if *role == ThreadRole::Reader => By::OfGuest(*tid),
                (Waker::Thread(number), _) => By::Thread(threads.thread(number)),
                (Waker::Interrupt, _) => By::Interrupt,
                (Waker::Unknown, _) => By::Unknown,
            };
            self.woken_by.add((*role, by), 1);
        }
    }

    /// See [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        self.wake_up
            .iter_mut()
            .chain([&mut self.per_request, &mut self.to_application])
            .for_each(Series::pack);
    }

    /// What was found; `None` if no start was reported. `name` returns a thread's name.
    pub(crate) fn report(&self, name: &dyn Fn(Thread) -> String) -> Option<ThreadsReport> {
        let role = |role: ThreadRole| {
            let mut by: Vec<(By, u64)> =
                self.woken_by.iter().filter(|((of, _), _)| *of == role).map(|((_, by), n)| (by, n)).collect();
            by.sort_unstable_by_key(|(by, n)| (std::cmp::Reverse(*n), *by));
            let named = |(by, n): (By, u64)| {
                let by = match by {
                    By::Unknown => WokenBy::Unknown,
                    By::Interrupt => WokenBy::Interrupt,
                    By::Thread(thread) if thread.tid == 0 => WokenBy::Unknown,
                    By::Thread(thread) => WokenBy::Thread { tid: thread.tid, name: name(thread) },
                    By::OfGuest(tid) => WokenBy::Thread { tid, name: String::new() },
                };
                (by, n)
            };
            let wake_up = &self.wake_up[role as usize];
            RoleStarts {
                role,
                starts: self.starts[role as usize],
                wake_up: (wake_up.count() > 0).then(|| wake_up.dist()),
                woken_by: by.into_iter().take(NAMED).map(named).collect(),
            }
        };
        (self.requests > 0).then(|| ThreadsReport {
            requests: self.requests,
            unknown: self.unknown,
            per_request: self.per_request.depth(),
            to_application: (self.to_application.count() > 0).then(|| self.to_application.dist()),
            roles: ThreadRole::ALL.into_iter().map(role).filter(|r| r.starts > 0).collect(),
        })
    }
}
