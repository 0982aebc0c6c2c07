//! The guarantees of a link's channels, as text.

use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, printable, shorten, wrap};
use crate::units;
use teiji_model::plan::{ChannelGuarantee, HandedOver, LinkGuarantee, PacketDeadlines, PacketVm};
use teiji_model::policy::PacketClass;
use teiji_model::qdisc::Scheduler;
use teiji_model::units::{RATE, SIZE};

/// How many channels of a link are shown.
const SHOWN: usize = 40;
/// Columns of a channel's name that are shown, and of the bar of its deadline.
const NAME: usize = 24;
const BAR: usize = 10;

/// A headline, and a line for each channel; of many channels, those with the least time between guaranteed delay and
/// deadline.
pub fn link(link: &LinkGuarantee, style: &Style) -> String {
    let reserved = link.reserved as f64 / link.rate.max(1) as f64;
    let slack = match link.scheduler {
        Scheduler::Edf => format!(", slack {}", units::duration(link.slack as f64)),
        Scheduler::Hfsc => String::new(),
    };
    let head = format!(
        "{}: {}, {}{slack}, {} reserved, frames up to {} bytes",
        shorten(&link.link, NAME),
        link.scheduler,
        RATE.write(link.rate),
        units::percent(reserved),
        link.largest
    );
    let mut out = String::new();
    for line in wrap(&style.ascii(&printable(&head)), 98) {
        out += &format!("{}\n", style.paint(Tone::Strong, &line));
    }
    let mut channels: Vec<&ChannelGuarantee> = link.channels.iter().collect();
    if channels.len() > SHOWN {
        // These stay, in the order of their names.
        channels.sort_by_key(|c| (c.deadline.saturating_sub(c.bound), &c.name));
        channels.truncate(SHOWN);
        channels.sort_by_key(|c| &c.name);
    }
    let mut table = Table::indented(2);
    let heads = ["rate", "burst", "deadline", "within", "of it"].map(Cell::right);
    table.row(std::iter::once("channel".into()).chain(heads).map(|cell: Cell| cell.tone(Tone::Faint)));
    for channel in &channels {
        table.row(row(channel, style));
    }
    for line in table.lines(style) {
        out += &format!("{line}\n");
    }
    for channel in &channels {
        out += &from_kick(channel, style);
    }
    let hidden = link.channels.len() - channels.len();
    if hidden > 0 {
        let more = format!("and {hidden} more with more room (--json lists all)");
        out += &format!("  {}\n", style.paint(Tone::Faint, &more));
    }
    out
}

/// How long a channel's packets take from the guest on; empty if that is not known.
fn from_kick(channel: &ChannelGuarantee, style: &Style) -> String {
    let Some(from_kick) = &channel.from_kick else { return String::new() };
    let [name, vm] = [&channel.name, &from_kick.vm].map(|name| shorten(&printable(name), NAME));
    let (within, burst) = (units::duration(from_kick.within as f64), SIZE.write(from_kick.burst));
    let text =
        format!("{name}: on the wire within {within} of the kick of {vm}, which may send {burst} at once");
    wrap(&style.ascii(&text), 98).iter().map(|line| format!("  {line}\n")).collect()
}

/// Whether a VM's deadlines are guaranteed, and how soon its frames are handed to the host; untrusted texts.
pub fn of_packet_vm(vm: &PacketVm) -> Vec<String> {
    use {HandedOver::Within, PacketDeadlines::Guaranteed};
    match (&vm.deadlines, &vm.handed_over) {
        (Some(PacketDeadlines::NotGuaranteed(why)), Some(HandedOver::Unknown(same))) if why == same => {
            vec![format!(
                "neither its deadlines nor the time from the kick to the host's network stack are guaranteed: {why}"
            )]
        }
        (deadlines, handed_over) => {
            let deadlines = deadlines.as_ref().map(|deadlines| match deadlines {
                Guaranteed { cpu } => {
                    format!(
                        "its deadlines are guaranteed on CPU {cpu}, under the assumptions in docs/policy.md"
                    )
                }
                PacketDeadlines::NotGuaranteed(why) => format!("its deadlines are not guaranteed: {why}"),
            });
            let handed_over = handed_over.as_ref().map(|handed_over| match handed_over {
                Within(ns) => format!(
                    "frames it sends reach the host's network stack within {} of the kick",
                    units::duration(*ns as f64)
                ),
                HandedOver::Unknown(why) => {
                    format!("how soon frames it sends reach the host's network stack is not known: {why}")
                }
            });
            deadlines.into_iter().chain(handed_over).collect()
        }
    }
}

/// What a VM is promised whose threads go by the deadlines of its packets; untrusted text.
pub fn packet_vm(name: &str, class: &PacketClass) -> String {
    let [runtime, deadline, period] =
        [class.runtime, class.deadline, class.period].map(|ns| units::duration(ns as f64));
    format!(
        "{}: packet deadline {deadline}; up to {runtime} of CPU in every {period} ahead of normal threads",
        shorten(name, NAME)
    )
}

fn row(channel: &ChannelGuarantee, style: &Style) -> Vec<Cell> {
    let share = channel.bound as f64 / channel.deadline.max(1) as f64;
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    let [on, off] = if style.unicode { ["█", "·"] } else { ["#", "."] };
    let bar = format!("{}{}", on.repeat(full), off.repeat(BAR - full));
    vec![
        shorten(&printable(&channel.name), NAME).into(),
        Cell::right(RATE.write(channel.rate)),
        Cell::right(SIZE.write(channel.burst)),
        Cell::right(units::duration(channel.deadline as f64)),
        Cell::right(units::duration(channel.bound as f64)),
        Cell::right(units::percent(share)),
        bar.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::resource::Task;

    #[test]
    fn one_reason_is_printed_once() {
        let known = |deadlines, handed_over| {
            let class = PacketClass { runtime: 1, deadline: 2, period: 3 };
            let process = Task { id: 1, started: 1 };
            of_packet_vm(&PacketVm {
                name: "a".into(),
                process,
                class,
                deadlines: Some(deadlines),
                handed_over,
            })
        };
        let unknown = |why: &str| PacketDeadlines::NotGuaranteed(why.into());
        assert_eq!(
            known(PacketDeadlines::Guaranteed { cpu: 3 }, Some(HandedOver::Within(2_000_000))),
            [
                "its deadlines are guaranteed on CPU 3, under the assumptions in docs/policy.md",
                "frames it sends reach the host's network stack within 2.00 ms of the kick"
            ]
        );
        assert_eq!(
            known(unknown("x"), Some(HandedOver::Unknown("x".into()))),
            [
                "neither its deadlines nor the time from the kick to the host's network stack are guaranteed: x"
            ]
        );
        let two = known(unknown("x"), Some(HandedOver::Unknown("y".into())));
        assert!(two.len() == 2 && two[0].ends_with(": x") && two[1].ends_with(": y"), "{two:?}");
        assert_eq!(known(unknown("x"), None), ["its deadlines are not guaranteed: x"]);
    }
}
