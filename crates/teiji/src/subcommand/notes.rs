//! Messages about changes on standard error.

use std::io::Write;
use teiji_agent::apply::Note;
use teiji_render::terminal::printable;

/// One line for each.
pub(super) fn print_notes(notes: &[Note]) {
    notes.iter().for_each(|note| print_line(&note.to_string()));
}

/// Control characters are escaped; a closed standard error is no failure.
pub(super) fn print_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "teiji: {}", printable(text));
}
