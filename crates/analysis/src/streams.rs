//! The clocks of guests' streams: puts the times of their events on the host's clock.

use teiji_model::event::{Event, EventKind, Lost};
use teiji_model::guest;
use teiji_model::report::GuestStream;
use teiji_model::stream::{ClockMapping, StreamId};

/// A guest's stream.
#[derive(Clone, Copy, Debug)]
struct Stream {
    mapping: ClockMapping,
    report: GuestStream,
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Streams {
    /// By number; `None`: no clock has been measured.
    all: Vec<Option<Stream>>,
}

impl Streams {
    /// The clock of a stream, from the next event on. Returns whether the stream is followed: not if there are more than
    /// [`StreamId::MOST`].
    pub(crate) fn set(&mut self, id: StreamId, pid: u32, mapping: ClockMapping) -> bool {
        let number = usize::from(id.0);
        if id.is_host() || number >= StreamId::MOST {
            return false;
        }
        if number >= self.all.len() {
            self.all.resize(number + 1, None);
        }
        let mut report = self.all[number].map_or(GuestStream { pid, ..GuestStream::default() }, |s| s.report);
        report.clock_error = report.clock_error.max(mapping.error);
        self.all[number] = Some(Stream { mapping, report });
        true
    }

    /// The event with its time on the host's clock; `None` if the clock of its stream is not known.
    pub(crate) fn on_hosts_clock(&self, event: Event) -> Option<Event> {
        let stream = self.all.get(usize::from(event.stream.0))?.as_ref()?;
        // 0 stands for what is not known.
        let on_host = |own: u64| if own == 0 { 0 } else { stream.mapping.to_host(own) };
        let kind = match event.kind {
            EventKind::Guest(kind) => EventKind::Guest(match kind {
                guest::EventKind::Received { print, interrupted } => {
                    guest::EventKind::Received { print, interrupted: on_host(interrupted) }
                }
                guest::EventKind::Read { print, tid, woken, running, woken_by } => guest::EventKind::Read {
                    print,
                    tid,
                    woken: on_host(woken),
                    running: on_host(running),
                    woken_by,
                },
                guest::EventKind::Sent { print, tid, began } => {
                    guest::EventKind::Sent { print, tid, began: on_host(began) }
                }
                guest::EventKind::Thread { tid, process, parent, comm, started } => {
                    guest::EventKind::Thread { tid, process, parent, comm, started: on_host(started) }
                }
                guest::EventKind::Matched(m) => {
                    let (interrupted, previous) = (on_host(m.interrupted), on_host(m.previous));
                    guest::EventKind::Matched(guest::Matched { interrupted, previous, ..m })
                }
                kind @ (guest::EventKind::Queued { .. } | guest::EventKind::Handed { .. }) => kind,
            }),
            EventKind::Lost(lost) => {
                EventKind::Lost(Lost { since: stream.mapping.to_host(lost.since), ..lost })
            }
            kind => kind,
        };
        Some(Event { ts: stream.mapping.to_host(event.ts), kind, ..event })
    }

    /// Counts an event of a stream that is used.
    pub(crate) fn count(&mut self, id: StreamId) {
        if let Some(Some(stream)) = self.all.get_mut(usize::from(id.0)) {
            stream.report.events += 1;
        }
    }

    /// The streams of the guest of the VM with this process id.
    pub(crate) fn of(&self, pid: u32) -> Vec<StreamId> {
        let numbers = (0u16..).zip(&self.all);
        let of_vm = |(number, stream): (u16, &Option<Stream>)| {
            stream.filter(|stream| stream.report.pid == pid).map(|_| StreamId(number))
        };
        numbers.filter_map(of_vm).collect()
    }

    /// A guest lost events.
    pub(crate) fn lost(&mut self, id: StreamId, count: u64) {
        if let Some(Some(stream)) = self.all.get_mut(usize::from(id.0)) {
            stream.report.lost = stream.report.lost.saturating_add(count);
        }
    }

    /// What the guests reported.
    pub(crate) fn report(&self) -> Vec<GuestStream> {
        self.all.iter().flatten().map(|stream| stream.report).collect()
    }
}
