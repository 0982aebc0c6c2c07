//! `teiji top`: the live view of a trace, in the terminal.
//!
//! The trace calls back for each snapshot, and never waits for the terminal. A second thread draws, and reads the keys, so that
//! they have an effect at once; it begins when the trace has given up its privileges, as each thread has its own.

use super::messages::print_line;
use super::signals::Gentle;
use super::trace::spec;
use crate::args::{Top, Usage};
use crate::screen::{Key, Screen, restore};
use crate::style;
use anyhow::Result;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use teiji_agent::service::{Service, advice};
use teiji_agent::trace::{Progress, TraceSpec};
use teiji_model::snapshot::Snapshot;
use teiji_render::text;
use teiji_render::top::{View, lines};

/// What is shown, and what would be.
#[derive(Default)]
struct Shown {
    before: Option<Snapshot>,
    now: Option<Snapshot>,
    /// What came while the picture stands still.
    next: Option<(Option<Snapshot>, Snapshot)>,
    view: View,
    /// Whether it has to be drawn.
    changed: bool,
}

impl Shown {
    fn take(&mut self, snapshot: Snapshot) {
        self.changed = true;
        if self.view.paused {
            let before = self.next.take().map(|(_, now)| now).or_else(|| self.now.clone());
            self.next = Some((before, snapshot));
        } else {
            self.before = self.now.replace(snapshot);
        }
    }

    fn press(&mut self, key: Key) {
        match (key, &self.now) {
            (Key::Up, Some(now)) => self.view.go(now, -1),
            (Key::Down, Some(now)) => self.view.go(now, 1),
            (Key::Letter('s'), _) => self.view.sort = self.view.sort.next(),
            (Key::Letter('p'), _) => {
                self.view.paused = !self.view.paused;
                if let Some((before, now)) = self.next.take() {
                    (self.before, self.now) = (before, Some(now));
                }
            }
            _ => {}
        }
    }

    /// The lines of the screen.
    fn lines(&self, size: (usize, usize)) -> Vec<String> {
        match &self.now {
            Some(now) => lines(now, self.before.as_ref(), &self.view, size, &style::stdout()),
            None => vec!["waiting for the first interval (q to quit)".to_owned()],
        }
    }
}

/// The screen, and the thread that reads its keys.
struct Live {
    screen: Screen,
    keys: JoinHandle<()>,
}

/// Traces, shows how it goes, and prints the report of the whole trace at the end.
pub(super) fn run(args: &Top, service: &Service) -> Result<()> {
    if !std::io::stdout().is_terminal() {
        let text = "standard output is not a terminal, so nothing can be drawn: use `teiji trace --every 1s`, with --json for \
                    programs";
        return Err(Usage(text.to_owned()).into());
    }
    if args.interval.is_zero() {
        return Err(Usage("--interval must be greater than 0".to_owned()).into());
    }
    let spec = TraceSpec { every: Some(args.interval), ..spec(&args.watched, service)? };
    print_line("attaching the probes");
    let signals = Gentle::catch()?;
    let shown = Arc::new(Mutex::new(Shown::default()));
    let mut live: Option<Result<Live>> = None;
    let traced = {
        let mut progress = |_: &Progress| {
            if live.is_none() {
                live = Some(Live::begin(&shown, &signals));
                if matches!(live, Some(Err(_))) {
                    signals.stop.store(true, Ordering::Relaxed);
                }
            }
        };
        let mut snapshot = |snapshot: &Snapshot| {
            shown.lock().unwrap_or_else(PoisonError::into_inner).take(snapshot.clone());
        };
        Service::trace(spec, &signals.stop, &mut progress, &mut snapshot, &mut |_| ())
    };
    if let Some(live) = live {
        live?.end(&signals.stop);
    }
    let report = traced?.outcome.report;
    let text = text::report(&report, &advice::of(&report), &style::stdout());
    crate::output::stdout(&text)
}

impl Live {
    fn begin(shown: &Arc<Mutex<Shown>>, signals: &Gentle) -> Result<Live> {
        signals.hold();
        let screen = Screen::enter()?;
        let (shown, stop, again) = (Arc::clone(shown), Arc::clone(&signals.stop), Arc::clone(&signals.again));
        let keys =
            std::thread::Builder::new().name("keys".into()).spawn(move || read(&shown, &stop, &again))?;
        Ok(Live { screen, keys })
    }

    /// Restores the terminal.
    fn end(self, stop: &AtomicBool) {
        stop.store(true, Ordering::Relaxed);
        drop(self.screen);
        if self.keys.join().is_err() {
            let _ = writeln!(std::io::stderr(), "teiji: the thread that reads keys panicked");
        }
    }
}

/// Reads keys until the screen is gone; draws if there is a snapshot, a key, or another size of the terminal.
fn read(shown: &Mutex<Shown>, stop: &AtomicBool, again: &AtomicBool) {
    let (mut size, mut ending) = (Screen::size(), false);
    loop {
        let keys = Screen::keys();
        if !Screen::is_taken() {
            return;
        }
        // Without a terminal nobody sees the picture, nor can end it.
        if keys.as_ref().is_none_or(|keys| keys.contains(&Key::Letter('q'))) {
            stop.store(true, Ordering::Relaxed);
        }
        let keys = keys.unwrap_or_default();
        // The first signal asks for the end, another one does not wait for it.
        if !ending && stop.load(Ordering::Relaxed) {
            ending = true;
            again.store(false, Ordering::Relaxed);
        } else if ending && again.load(Ordering::Relaxed) {
            restore();
            std::process::exit(130);
        }
        let resized = std::mem::replace(&mut size, Screen::size()) != size;
        let lines = {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            keys.iter().for_each(|key| shown.press(*key));
            let changed = std::mem::take(&mut shown.changed) || !keys.is_empty() || resized;
            changed.then(|| shown.lines(size))
        };
        // Without the lock: a terminal may block, and the trace must not.
        if lines.is_some_and(|lines| Screen::draw(&lines).is_err()) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}
