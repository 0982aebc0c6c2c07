//! Messages about changes on standard error.

use std::io::Write;
use teiji_agent::apply::Message;
use teiji_render::terminal::printable;

/// Prints what happened during an operation, one line for each message.
pub(super) fn print_messages(messages: &[Message]) {
    messages.iter().for_each(|message| print_line(&message.to_string()));
}

/// Control characters are escaped; a closed standard error is no failure.
pub(super) fn print_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "teiji: {}", printable(text));
}
