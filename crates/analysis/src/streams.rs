//! The clocks of guests' streams: puts the times of their events on the host's clock.

use teiji_model::event::Event;
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
    /// The clock of a stream, from the next event on. More than [`StreamId::MOST`] streams are not followed.
    pub(crate) fn set(&mut self, id: StreamId, vm: u32, mapping: ClockMapping) {
        let number = usize::from(id.0);
        if id.is_host() || number >= StreamId::MOST {
            return;
        }
        if number >= self.all.len() {
            self.all.resize(number + 1, None);
        }
        let mut report = self.all[number].map_or(GuestStream { vm, ..GuestStream::default() }, |s| s.report);
        report.clock_error = report.clock_error.max(mapping.error);
        self.all[number] = Some(Stream { mapping, report });
    }

    /// The event with its time on the host's clock; `None` if the clock of its stream is not known.
    pub(crate) fn on_hosts_clock(&self, event: Event) -> Option<Event> {
        let stream = self.all.get(usize::from(event.stream.0))?.as_ref()?;
        Some(Event { ts: stream.mapping.to_host(event.ts), ..event })
    }

    /// Counts an event of a stream that was taken or refused.
    pub(crate) fn count(&mut self, id: StreamId, refused: bool) {
        if let Some(Some(stream)) = self.all.get_mut(usize::from(id.0)) {
            *(if refused { &mut stream.report.refused } else { &mut stream.report.events }) += 1;
        }
    }

    /// What the guests reported.
    pub(crate) fn report(&self) -> Vec<GuestStream> {
        self.all.iter().flatten().map(|stream| stream.report).collect()
    }
}
