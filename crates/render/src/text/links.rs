//! Links with channels: their settings and packet statistics.

use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, printable, shorten, wrap};
use crate::units;
use teiji_model::status::{LinkStatus, LinksStatus};
use teiji_model::units::RATE;

/// The longest name of a channel that is shown completely, columns.
const NAME: usize = 24;

/// The links as text of at most 100 columns; empty if there are no links, no problems and nothing hidden.
pub fn table(now: &LinksStatus, style: &Style) -> String {
    let mut out = String::new();
    for link in &now.links {
        out += &one(link, style);
    }
    for line in now.problem.iter().flat_map(|why| wrap(&style.ascii(&printable(why)), 100)) {
        out += &format!("{}\n", style.paint(Tone::Bad, &line));
    }
    for line in now.hidden.iter().flat_map(|why| wrap(&style.ascii(&printable(why)), 100)) {
        out += &format!("{line}\n");
    }
    out
}

fn one(now: &LinkStatus, style: &Style) -> String {
    let (set, sent) = (&now.settings, &now.stats);
    let reserved: u64 = set.channels.values().map(|c| c.rate).sum();
    let name = style.paint(Tone::Strong, &style.ascii(&shorten(&printable(&now.link), NAME)));
    let rate = if set.rate == 0 { "no rate".to_owned() } else { RATE.write(set.rate) };
    let mut out = format!(
        "{name}  {}, {rate}, slack {}, {} reserved by {}\n",
        set.scheduler,
        units::duration(set.slack as f64),
        RATE.write(reserved),
        units::count(set.channels.len() as u64, "channel"),
    );
    let mut line = format!(
        "sent {} with a deadline ({}) and {} without ({}); {} dropped",
        units::count(sent.rt_packets, "packet"),
        units::bytes(sent.rt_bytes),
        sent.be_packets,
        units::bytes(sent.be_bytes),
        sent.rt_drops + sent.be_drops,
    );
    if sent.fallbacks > 0 {
        line += &format!(
            "; {} without an agent: {} in the order of arrival",
            units::count(sent.fallbacks, "time"),
            units::count(sent.fallback_packets, "packet")
        );
    }
    for line in wrap(&line, 98) {
        out += &format!("  {}\n", style.paint(Tone::Faint, &style.ascii(&line)));
    }
    let mut table = Table::indented(2);
    let heads = ["channel", "deadline", "packets", "excess", "missed", "dropped", "p50", "p99", "max"];
    let head = |(i, text): (usize, &str)| {
        if i == 0 { Cell::from(text) } else { Cell::right(text) }.tone(Tone::Faint)
    };
    table.row(heads.into_iter().enumerate().map(head));
    for (name, stats) in &now.channels {
        let counted =
            |n: u64, tone: Tone| Cell::right(n.to_string()).tone(if n > 0 { tone } else { Tone::Plain });
        let delay = |share: f64| {
            let bound =
                stats.quantile(share).map_or("-".into(), |ns| format!("<{}", units::duration(ns as f64)));
            Cell::right(style.ascii(&bound))
        };
        let max = if stats.packets > 0 { units::duration(stats.delay_max as f64) } else { "-".into() };
        let deadline = set.channels.get(name).map_or("-".into(), |c| units::duration(c.deadline as f64));
        table.row([
            Cell::from(style.ascii(&shorten(&printable(name), NAME))),
            Cell::right(deadline),
            counted(stats.packets, Tone::Plain),
            counted(stats.excess, Tone::Plain),
            counted(stats.misses, Tone::Bad),
            counted(stats.drops, Tone::Bad),
            delay(0.5),
            delay(0.99),
            Cell::right(style.ascii(&max)),
        ]);
    }
    if !now.channels.is_empty() {
        out += &(table.lines(style).join("\n") + "\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::qdisc::{Channel, DeadlineQdisc, Scheduler};

    const UNICODE: Style = Style { colour: false, unicode: true };

    #[test]
    fn a_link_with_channels() {
        let channel =
            Channel { from: None, to: None, proto: None, deadline: 3_000_000, rate: 2_000_000, burst: 3000 };
        let names = ["quiet", "sip\x1b[2J\u{202e}"];
        let mut now = LinkStatus {
            link: "eth0".into(),
            index: 2,
            settings: DeadlineQdisc {
                scheduler: Scheduler::Edf,
                rate: 1_000_000_000,
                slack: 2_000_000,
                realtime_max: 0,
                channels: names.map(|name| (name.to_owned(), channel.clone())).into(),
            },
            stats: Default::default(),
            channels: names.map(|name| (name.to_owned(), Default::default())).into(),
        };
        let busy = now.channels.get_mut(names[1]).unwrap();
        busy.packets = 100;
        busy.misses = 3;
        busy.delay_max = 3_100_000;
        busy.delay = vec![0; 40];
        (busy.delay[10], busy.delay[21]) = (90, 10);
        now.stats.fallbacks = 1;
        let problem = Some("deadlines are not kept".to_owned());
        let links = LinksStatus { links: vec![now], problem, hidden: None };
        let text = table(&links, &UNICODE);
        let wanted = "\
eth0  EDF, 1gbit, slack 2.00 ms, 4mbit reserved by 2 channels
  sent 0 packets with a deadline (0 B) and 0 without (0 B); 0 dropped; 1 time without an agent: 0
  packets in the order of arrival
  channel               deadline  packets  excess  missed  dropped       p50       p99      max
  quiet                  3.00 ms        0       0       0        0         -         -        -
  sip\\u{1b}[2J\\u{202e}   3.00 ms      100       0       3        0  <2.05 µs  <3.10 ms  3.10 ms
deadlines are not kept
";
        assert_eq!(text, wanted);
        assert_eq!(table(&LinksStatus::default(), &UNICODE), "");
    }
}
