//! The stage `guest` in finer parts, by what guests report of them and what their vCPUs did: the evidence of causes in the guest.
//!
//! The cells of all complete requests of a VM add up to its stage `guest`, so that the shares of causes still add up: the time
//! of a request that is not divided is in [`Row::Undivided`], by the states of the vCPU as far as the host alone knows them.
//! What the stage `vcpu_wake` has taken over of a request's waits for a CPU (docs/decisions/0004) is left out here.

use crate::hash::Seeded;
use crate::heaviest::Heaviest;
use crate::join::Divided;
use crate::stats::Shares;
use crate::threads::{Thread, Threads};
use teiji_model::report::{GuestPart, Request};
use teiji_model::stage::{Split, Stage, ThreadState};

/// A kind of time in the guest that causes are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// [`GuestPart::GuestIrq`].
    Irq,
    /// [`GuestPart::GuestStack`].
    Stack,
    /// [`GuestPart::SocketWait`], until the reader is woken; all of it if the reader was not asleep.
    ReaderBusy,
    /// [`GuestPart::SocketWait`], from when the reader is woken.
    ReaderWoken,
    /// [`GuestPart::App`].
    App,
    /// The same if a thread was created to answer the request.
    NewThread,
    /// [`GuestPart::GuestTx`].
    Tx,
    /// Requests that are not divided.
    Undivided,
}

impl Row {
    /// How many there are.
    pub const COUNT: usize = 8;
    /// All.
    pub const ALL: [Row; Self::COUNT] = [
        Row::Irq,
        Row::Stack,
        Row::ReaderBusy,
        Row::ReaderWoken,
        Row::App,
        Row::NewThread,
        Row::Tx,
        Row::Undivided,
    ];

    /// The part of the time in the guest that it belongs to.
    pub fn part(self) -> Option<GuestPart> {
        Some(match self {
            Row::Irq => GuestPart::GuestIrq,
            Row::Stack => GuestPart::GuestStack,
            Row::ReaderBusy | Row::ReaderWoken => GuestPart::SocketWait,
            Row::App | Row::NewThread => GuestPart::App,
            Row::Tx => GuestPart::GuestTx,
            Row::Undivided => return None,
        })
    }
}

/// The shares of one kind of time, spent in one state of the vCPU concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuestCell {
    /// Which time.
    pub row: Row,
    /// The state; `None` if it is not known.
    pub state: Option<ThreadState>,
    /// Mean over all complete requests, ns.
    pub mean: f64,
    /// Its share of the response time.
    pub time_share: f64,
    /// Its share of the fluctuation of the response time.
    pub fluctuation_share: f64,
}

/// The states, and one more for what is not known.
const COLUMNS: usize = ThreadState::COUNT + 1;
const UNKNOWN: usize = ThreadState::COUNT;
const CELLS: usize = Row::COUNT * COLUMNS;

/// See the module.
#[derive(Clone)]
pub(crate) struct GuestCells {
    shares: Shares<CELLS>,
    divided: bool,
    waits: Heaviest<(Row, Thread)>,
}

impl GuestCells {
    pub(crate) fn new(hasher: Seeded) -> Self {
        GuestCells { shares: Shares::new(), divided: false, waits: Heaviest::new(hasher) }
    }

    /// Adds a complete request.
    pub(crate) fn add(&mut self, request: &Request, divided: Option<&Divided>, threads: &Threads) {
        let mut cells = [0; CELLS];
        let mut set = |row: Row, ns: u64, split: Option<Split>| {
            let at = row as usize * COLUMNS;
            match split {
                Some(split) => cells[at..at + UNKNOWN].copy_from_slice(&split.0),
                None => cells[at + UNKNOWN] = ns,
            }
        };
        match divided {
            Some(divided) => {
                self.divided = true;
                for row in Row::ALL {
                    let (ns, split) = divided.rows[row as usize];
                    set(row, ns, split);
                }
                deduct(&mut cells, request.preempted);
                // Otherwise they are among the waits of `vcpu_wake`.
                if request.preempted == 0 {
                    for (row, number, ns) in &divided.waits {
                        self.waits.add((*row, threads.thread(*number)), *ns);
                    }
                }
            }
            None => {
                if let Some(guest) = request.stages.get(Stage::Guest as usize) {
                    set(Row::Undivided, guest.ns, guest.split);
                }
            }
        }
        self.shares.record(&cells, request.total);
    }

    /// All cells; none if no request is divided.
    pub(crate) fn report(&self) -> Vec<GuestCell> {
        let states = || ThreadState::ALL.into_iter().map(Some).chain([None]);
        let all = Row::ALL.into_iter().flat_map(|row| states().map(move |state| (row, state)));
        let cell = |(i, (row, state)): (usize, (Row, Option<ThreadState>))| GuestCell {
            row,
            state,
            mean: self.shares.mean(i),
            time_share: self.shares.of_time(i),
            fluctuation_share: self.shares.of_fluctuation(i),
        };
        if self.divided { all.enumerate().map(cell).collect() } else { Vec::new() }
    }

    /// The waits for a CPU, each with the thread that had it meanwhile: sorted.
    pub(crate) fn waits(&self) -> Vec<(Row, Thread, u64)> {
        let mut waits: Vec<_> = self.waits.iter().map(|((row, thread), ns)| (row, thread, ns)).collect();
        waits.sort_unstable();
        waits
    }
}

/// Takes the waits for a CPU that belong to `vcpu_wake` out of the cells: where the vCPU waited, then where it is not known
/// what it did. The rest is within the error of clocks.
fn deduct(cells: &mut [u64; CELLS], mut ns: u64) {
    let column = |column: usize| (0..Row::COUNT).map(move |row| row * COLUMNS + column);
    let order = column(ThreadState::Ready as usize).chain(column(UNKNOWN)).chain(0..CELLS);
    for at in order {
        let less = cells[at].min(ns);
        cells[at] -= less;
        ns -= less;
    }
}
