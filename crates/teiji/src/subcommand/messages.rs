//! Messages about changes on standard error.

use std::io::Write;
use teiji_agent::apply::Note;
use teiji_render::terminal::printable;

/// Prints what happened during an operation.
pub(super) fn print_messages(notes: &[Note]) {
    notes.iter().for_each(|note| print_line(&note.to_string()));
}

/// Prints a message.
pub(super) fn print_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "teiji: {}", printable(text));
}
