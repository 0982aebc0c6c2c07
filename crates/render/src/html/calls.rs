//! SIP calls: when each of their messages passed, over all calls and in the longest ones.

use crate::units::duration;
use maud::{Markup, html};
use teiji_model::report::{CallMessage, Groups};

/// The messages of the calls; a column for each of the longest would not fit on a phone, so these are rows.
pub(super) fn calls(g: &Groups) -> Markup {
    let times: Vec<CallMessage> =
        g.messages.iter().map(|m| m.message).filter(|m| *m != CallMessage::Invite).collect();
    html! {
        h3 { "Messages of a SIP call, after the INVITE" }
        div.scroll { table {
            tr {
                th { "message" } th.n { "calls" } th.n { "sent again" } th.n { "p50" } th.n { "p99" } th.n { "max" }
            }
            @for m in &g.messages {
                tr {
                    td { (m.message.name()) } td.n { (m.at.count) } td.n { (m.copies) }
                    @for ns in [m.at.p50, m.at.p99, m.at.max] { td.n { (duration(ns as f64)) } }
                }
            }
        } }
        h3 { "Longest SIP calls" }
        div.scroll { table {
            tr {
                th.n { "call" } th.n { "outside" }
                @for message in &times { th.n { (message.name()) } }
                th { "sent again" }
            }
            @for call in &g.slowest {
                tr {
                    td.n { (duration(call.total as f64)) } td.n { (duration(call.outside as f64)) }
                    @for message in &times {
                        @let step = call.messages.iter().find(|step| step.message == *message);
                        td.n { @if let Some(step) = step { (duration(step.at as f64)) } }
                    }
                    td {
                        @for step in call.messages.iter().filter(|step| step.copies > 1) {
                            (step.message.name()) " " (step.copies.saturating_sub(1)) "× "
                        }
                    }
                }
            }
        } }
    }
}
