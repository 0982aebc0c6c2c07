//! What is said on standard error about changes.

use std::io::Write;
use teiji_agent::apply::Note;
use teiji_render::terminal::printable;

/// Prints what was met with on the way.
pub(super) fn tell(notes: &[Note]) {
    notes.iter().for_each(|note| say(&note.to_string()));
}

/// Says something.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "teiji: {}", printable(text));
}
