//! SIP calls: how long they took, when each of their messages passed, and what was sent again.

use super::WIDTH;
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, wrap};
use crate::units::{count, duration};
use teiji_model::report::{CallMessage, Dist, Groups, SentAgain};

/// How far the lines below the first are indented.
const INDENT: usize = 11;

/// The calls, and a table of their messages.
pub(super) fn lines(g: &Groups, style: &Style) -> Vec<String> {
    let mut text = format!("SIP calls  {} complete", g.complete);
    if g.incomplete > 0 {
        text += &format!(", {} incomplete", g.incomplete);
    }
    if g.complete == 0 {
        return vec![text];
    }
    let figures = |d: &Dist| {
        format!(
            "p50 {}  p99 {}  max {}",
            duration(d.p50 as f64),
            duration(d.p99 as f64),
            duration(d.max as f64)
        )
    };
    let mut lines = vec![
        format!("{text}: {}", figures(&g.total)),
        format!("{}of which outside this host: {}", " ".repeat(INDENT), figures(&g.outside)),
    ];
    if !g.messages.is_empty() {
        lines.extend(messages(g, style));
    }
    lines
}

/// When the messages passed, after the INVITE.
fn messages(g: &Groups, style: &Style) -> Vec<String> {
    let mut table = Table::indented(INDENT);
    let head = ["after the INVITE", "calls", "sent again", "p50", "p99", "max", "slowest call"];
    table.row(head.into_iter().enumerate().map(|(i, text)| {
        let cell = if i == 0 { Cell::from(text) } else { Cell::right(text) };
        cell.tone(Tone::Faint)
    }));
    let slowest = |message: CallMessage| {
        let step = g.slowest.first()?.messages.iter().find(|step| step.message == message)?;
        Some(duration(step.at as f64))
    };
    for m in &g.messages {
        let mut row = vec![Cell::from(m.message.name()), Cell::right(m.at.count.to_string())];
        row.push(Cell::right(if m.copies > 0 { m.copies.to_string() } else { String::new() }));
        let times = [m.at.p50, m.at.p99, m.at.max].map(|ns| duration(ns as f64));
        // All are counted from the INVITE.
        let shown = |text: String| if m.message == CallMessage::Invite { String::new() } else { text };
        row.extend(times.into_iter().map(|text| Cell::right(shown(text))));
        row.push(Cell::right(shown(slowest(m.message).unwrap_or_default())));
        table.row(row);
    }
    table.lines(style)
}

/// Requests that were sent again before they were answered; empty if there are none.
pub(super) fn sent_again(s: &SentAgain) -> Vec<String> {
    if s.requests == 0 {
        return Vec::new();
    }
    let mut text = format!("{} sent again before the response", count(s.requests, "request"));
    let all = [
        (s.first, "the first copy was answered"),
        (s.later, "a later copy was answered"),
        (s.unknown, "not known which copy was answered (timed from the first)"),
    ];
    for (n, what) in all.into_iter().filter(|(n, _)| *n > 0) {
        text += &format!("; {n}: {what}");
    }
    let lines = wrap(&text, WIDTH - INDENT);
    lines.into_iter().map(|line| format!("{}{line}", " ".repeat(INDENT))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::columns;

    #[test]
    fn what_was_sent_again_is_said_if_anything_was() {
        assert!(sent_again(&SentAgain::default()).is_empty());
        let some = SentAgain { requests: 9, first: 0, later: 3, unknown: 4 };
        let text = sent_again(&some).join(" ");
        assert!(text.contains("9 requests sent again") && text.contains("3: a later copy"), "{text}");
        assert!(!text.contains("the first copy was") && text.contains("4: not known"), "{text}");
    }

    #[test]
    fn many_calls_fit_into_the_width() {
        let dist = |ns| Dist { count: 1_000_000, p50: ns, p99: ns, max: ns, ..Dist::default() };
        let message = |message| teiji_model::report::CallMessageReport {
            message,
            at: dist(31_999_000_000),
            copies: 1_000_000,
        };
        let step = |message| teiji_model::report::CallStep { message, at: 31_999_000_000, copies: 9 };
        let call = teiji_model::report::Call {
            group: 1,
            start: 0,
            total: 1,
            outside: 0,
            messages: CallMessage::ALL.map(step).to_vec(),
        };
        let groups = Groups {
            complete: 1_000_000,
            incomplete: 1_000_000,
            total: dist(31_999_000_000),
            outside: dist(31_999_000_000),
            messages: CallMessage::ALL.map(message).to_vec(),
            slowest: vec![call],
        };
        let lines = lines(&groups, &Style::PLAIN);
        assert_eq!(lines.len(), 2 + 1 + CallMessage::COUNT);
        assert!(lines.iter().all(|line| columns(line) <= WIDTH), "{lines:#?}");
    }
}
