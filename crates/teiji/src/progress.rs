//! The line on standard error while a trace runs.

use std::io::{IsTerminal, Write};
use std::time::Duration;
use teiji_agent::trace::Progress;
use teiji_render::terminal::{columns, pad};
use teiji_render::units;

/// Prints progress: on a terminal one line that is overwritten, otherwise one line every two seconds.
pub struct ProgressLine {
    terminal: bool,
    duration: Option<Duration>,
    last: Option<Duration>,
    width: usize,
}

impl ProgressLine {
    /// A line for a trace of this length.
    pub fn new(duration: Option<Duration>) -> Self {
        ProgressLine { terminal: std::io::stderr().is_terminal(), duration, last: None, width: 0 }
    }

    /// Shows how far the trace has come, if it is time to do so.
    pub fn show(&mut self, progress: &Progress) {
        let every = Duration::from_millis(if self.terminal { 200 } else { 2000 });
        let since = self.last.map_or(progress.elapsed, |last| progress.elapsed.saturating_sub(last));
        if since < every {
            return;
        }
        self.last = Some(progress.elapsed);
        let text = line(progress, self.duration);
        let mut stderr = std::io::stderr();
        let _ = if self.terminal {
            write!(stderr, "\r{}", pad(&text, self.width))
        } else {
            writeln!(stderr, "{text}")
        };
        self.width = columns(&text);
    }

    /// Removes the line from the terminal.
    pub fn clear(&mut self) {
        if self.terminal && self.width > 0 {
            let _ = write!(std::io::stderr(), "\r{:width$}\r", "", width = self.width);
            self.width = 0;
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(progress: &Progress, duration: Option<Duration>) -> String {
    let mut text = format!("tracing, {:.0} s", progress.elapsed.as_secs_f64());
    if let Some(duration) = duration {
        text += &format!(" of {:.0} s", duration.as_secs_f64());
    }
    text += &format!(
        ": {}, {}",
        units::count(progress.events, "event"),
        units::count(progress.complete, "complete request")
    );
    if progress.lost > 0 {
        text += &format!(", {} lost", progress.lost);
    }
    if duration.is_none() {
        text += "; Ctrl-C ends it";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_what_was_lost() {
        let progress = Progress { elapsed: Duration::from_secs(3), events: 1, complete: 2, lost: 4 };
        let text = line(&progress, Some(Duration::from_secs(10)));
        assert_eq!(text, "tracing, 3 s of 10 s: 1 event, 2 complete requests, 4 lost");
        assert!(line(&progress, None).ends_with("Ctrl-C ends it"));
    }
}
