//! Messages about changes on standard error.

use std::io::Write;
use teiji_agent::apply::Note;
use teiji_render::terminal::printable;

/// Prints the notes.
pub(super) fn tell(notes: &[Note]) {
    notes.iter().for_each(|note| say(&note.to_string()));
}

/// Prints a message.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "teiji: {}", printable(text));
}
