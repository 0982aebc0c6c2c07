//! What accesses to memory cost between the nodes of a host.

use super::stages::bar;
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, columns};
use crate::units::{bytes, duration};
use std::collections::BTreeSet;
use teiji_model::numa_bench::{NumaBench, Pair, Program, Run};

/// Columns of a bar.
const BAR: usize = 10;
/// Nodes whose memory is shown in the tables of latency and bandwidth; a host with more has them in JSON.
const MOST: usize = 8;
/// How many times as long a read of another node has to take, for the nodes to differ.
const DIFFER: f64 = 1.05;

/// What was measured as text of at most 100 columns.
pub fn text(measured: &NumaBench, style: &Style) -> String {
    let (tone, headline) = match measured.far_by_near() {
        None => (Tone::Good, "the host has one node with memory".to_owned()),
        Some((_, most)) if most < DIFFER => {
            (Tone::Bad, "all nodes are equally far: no real NUMA behind them".to_owned())
        }
        Some((_, most)) => (Tone::Good, format!("another node's memory takes up to {most:.2} times as long")),
    };
    let mut lines = vec![style.paint(tone, &format!("=> {headline}"))];
    if measured.far_by_near().is_some_and(|(_, most)| most < DIFFER) {
        lines.push("   a virtual machine may have nodes that are not those of the hardware".to_owned());
    }
    let cache = if measured.cache > 0 { bytes(measured.cache) } else { "not known".to_owned() };
    lines.push(String::new());
    lines.push(format!("reads of {}, one CPU (largest cache: {cache})", bytes(measured.large)));
    lines.extend(matrix("latency", &measured.pairs, style, |pair| ns(pair.latency)));
    lines.extend(matrix("bandwidth", &measured.pairs, style, |pair| {
        format!("{:.2} GB/s", pair.bandwidth / 1e9)
    }));
    for program in [Program::P, Program::Q] {
        lines.push(String::new());
        lines.push(match program {
            Program::P => "P: writes of 4 bytes to memory of its own".to_owned(),
            Program::Q => "Q: the kernel writes 4 bytes, by a system call each".to_owned(),
        });
        lines.extend(runs(measured, program, style));
    }
    lines.iter().map(|line| format!("{}\n", style.ascii(line).trim_end())).collect()
}

/// A short time with three digits.
fn ns(time: f64) -> String {
    match time {
        short if short < 9.995 => format!("{short:.2} ns"),
        short if short < 99.95 => format!("{short:.1} ns"),
        longer => duration(longer),
    }
}

fn title(text: impl Into<String>) -> Cell {
    Cell::from(text.into()).tone(Tone::Faint)
}

/// A figure for each pair of nodes.
fn matrix(what: &str, pairs: &[Pair], style: &Style, shown: impl Fn(&Pair) -> String) -> Vec<String> {
    let to: Vec<u32> =
        pairs.iter().map(|pair| pair.to).collect::<BTreeSet<_>>().into_iter().take(MOST).collect();
    let from: BTreeSet<u32> = pairs.iter().map(|pair| pair.from).collect();
    let mut table = Table::indented(2);
    let head = to.iter().map(|to| Cell::right(format!("node {to}")).tone(Tone::Faint));
    table.row([title(format!("{what}, memory on"))].into_iter().chain(head));
    for from in from {
        let cell = |to: &u32| {
            let pair = pairs.iter().find(|pair| pair.from == from && pair.to == *to);
            Cell::right(pair.map(&shown).unwrap_or_default())
        };
        table.row([title(format!("from node {from}"))].into_iter().chain(to.iter().map(cell)));
    }
    table.lines(style)
}

/// The runs of a program: bars compare the later passes of a size and a stride.
fn runs(measured: &NumaBench, program: Program, style: &Style) -> Vec<String> {
    let all: Vec<&Run> = measured.runs.iter().filter(|run| run.program == program).collect();
    let mut kinds: Vec<(u64, u64)> = all.iter().map(|run| (run.size, run.stride)).collect();
    kinds.sort_unstable_by_key(|(size, stride)| (*size, std::cmp::Reverse(*stride)));
    kinds.dedup();
    let mut table = Table::indented(2);
    let amounts =
        ["writes", "first pass", "faults", "later passes"].map(|text| Cell::right(text).tone(Tone::Faint));
    let head = ["size", "every", "type", "from", "memory"].map(title);
    table.row(head.into_iter().chain(amounts).chain([title(""), Cell::right("a write").tone(Tone::Faint)]));
    for kind in kinds {
        let of_kind = || all.iter().filter(|run| (run.size, run.stride) == kind);
        let longest = of_kind().map(|run| run.later()).max().unwrap_or(0).max(1);
        for (n, run) in of_kind().enumerate() {
            let full = bar(run.later() as f64 / longest as f64, BAR, style);
            let rest = " ".repeat(BAR.saturating_sub(columns(&full)));
            let first = |text: String| if n == 0 { text } else { String::new() };
            table.row([
                first(bytes(run.size)).into(),
                first(format!("{} B", run.stride)).into(),
                if run.is_near() { "0A near" } else { "0B far" }.into(),
                format!("node {}", run.from).into(),
                format!("node {}", run.to).into(),
                Cell::right(run.writes.to_string()),
                Cell::right(duration(run.first() as f64)),
                Cell::right(run.faults.0.to_string()),
                Cell::right(duration(run.later() as f64)),
                format!("{full}{rest}").into(),
                Cell::right(ns(run.later() as f64 / run.writes.max(1) as f64)),
            ]);
        }
    }
    table.lines(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: Program, from: u32, to: u32, passes: &[u64]) -> Run {
        Run {
            program,
            from,
            to,
            size: 1 << 25,
            stride: 64,
            writes: 1 << 19,
            passes: passes.to_vec(),
            faults: (8192, 0),
        }
    }

    fn measured(far: f64) -> NumaBench {
        let pair =
            |from, to| Pair { from, to, latency: if from == to { 80.0 } else { far }, bandwidth: 1.2e10 };
        NumaBench {
            cache: 20 << 20,
            large: 80 << 20,
            pairs: vec![pair(0, 0), pair(0, 1), pair(1, 0), pair(1, 1)],
            runs: vec![
                run(Program::P, 0, 0, &[21_030_000, 4_270_000]),
                run(Program::P, 0, 1, &[24_000_000, 6_050_000]),
                run(Program::Q, 0, 0, &[170_000_000, 168_000_000]),
            ],
        }
    }

    #[test]
    fn pairs_and_programs_are_tables() {
        let wanted = "=> another node's memory takes up to 1.42 times as long

reads of 80 MiB, one CPU (largest cache: 20 MiB)
  latency, memory on   node 0   node 1
  from node 0         80.0 ns   114 ns
  from node 1          114 ns  80.0 ns
  bandwidth, memory on      node 0      node 1
  from node 0           12.00 GB/s  12.00 GB/s
  from node 1           12.00 GB/s  12.00 GB/s

P: writes of 4 bytes to memory of its own
  size    every  type     from    memory  writes  first pass  faults  later passes              a write
  32 MiB  64 B   0A near  node 0  node 0  524288     21.0 ms    8192       4.27 ms  #######     8.14 ns
                 0B far   node 0  node 1  524288     24.0 ms    8192       6.05 ms  ##########  11.5 ns

Q: the kernel writes 4 bytes, by a system call each
  size    every  type     from    memory  writes  first pass  faults  later passes              a write
  32 MiB  64 B   0A near  node 0  node 0  524288      170 ms    8192        168 ms  ##########   320 ns
";
        assert_eq!(text(&measured(113.6), &Style::PLAIN), wanted);
    }

    #[test]
    fn nodes_that_do_not_differ_are_told() {
        let said = text(&measured(81.0), &Style::PLAIN);
        assert!(said.starts_with("=> all nodes are equally far: no real NUMA behind them\n"), "{said}");
        let one = NumaBench { pairs: measured(80.0).pairs[..1].to_vec(), ..NumaBench::default() };
        assert!(text(&one, &Style::PLAIN).starts_with("=> the host has one node with memory\n"));
    }
}
