//! Where VMs are on a host with NUMA nodes.

use super::stages::bar;
use super::{WIDTH, wrap};
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, columns, printable, shorten};
use crate::units::{bytes, count, duration, percent};
use std::collections::BTreeSet;
use teiji_model::numa::{
    ByNode, HugePages, Node, NumaHost, ThreadPlacement, Uplink, VmPlacement, add, total,
};
use teiji_model::placement::{Advice, Move};

/// Columns of the bar of memory, and of that of time.
const MEMORY_BAR: usize = 8;
const TIME_BAR: usize = 6;
/// vCPUs whose nodes are listed one by one.
const VCPUS: usize = 64;

/// The nodes and the VMs as text of at most 100 columns.
pub fn text(host: &NumaHost, style: &Style) -> String {
    let mut lines = nodes(&host.nodes, style);
    for vm in &host.vms {
        lines.push(String::new());
        lines.extend(section(vm, host, style));
    }
    if host.vms.is_empty() {
        lines.push(String::new());
        lines.push("no VM ran during the whole observation".to_owned());
    }
    lines.iter().map(|line| format!("{}\n", style.ascii(line).trim_end())).collect()
}

/// Where VMs should be, as text of at most 100 columns.
pub fn advice(advice: &Advice, style: &Style) -> String {
    let mut lines = Vec::new();
    let lost = |cpus: f64| format!("{cpus:.2} CPUs");
    let headline = match advice.moves.len() as u64 {
        0 => "no VM should be moved".to_owned(),
        moved => format!("move {}", count(moved, "VM")),
    };
    let tone = if advice.moves.is_empty() { Tone::Good } else { Tone::Bad };
    lines.push(style.paint(tone, &format!("=> {headline}")));
    let text = match advice.moves.is_empty() {
        true => lost(advice.lost_before),
        false => format!("{} now, {} after it", lost(advice.lost_before), lost(advice.lost_after)),
    };
    lines.extend(labelled("lost", &format!("{text}, by distance and by overloaded nodes"), style));
    if !advice.moves.is_empty() {
        let mut table = Table::indented(2);
        let head = ["VM", "threads on", "memory on"].map(title);
        table.row(head.into_iter().chain(["to copy", "gain"].map(title_of_amount)));
        advice.moves.iter().for_each(|m| table.row(of_move(m)));
        lines.extend(table.lines(style));
    }
    for problem in &advice.problems {
        let text = format!("{}: {}", shorten(&printable(&problem.vm), 40), printable(&problem.why));
        lines.extend(labelled("problem", &text, style));
    }
    for text in &advice.assumed {
        lines.extend(labelled("assumed", text, style));
    }
    lines.iter().map(|line| format!("{}\n", style.ascii(line).trim_end())).collect()
}

fn of_move(m: &Move) -> Vec<Cell> {
    let nodes = |nodes: Vec<String>| match &nodes[..] {
        [one] => format!("node {one}"),
        several => format!("nodes {}", several.join(", ")),
    };
    let threads = nodes(m.threads.iter().map(u32::to_string).collect());
    let memory = m.memory.as_ref().map_or("as it is".to_owned(), |memory| {
        nodes(memory.iter().filter(|(_, bytes)| **bytes > 0).map(|(node, _)| node.to_string()).collect())
    });
    let gain = if m.gain > 0.0 { format!("{:.2} CPUs", m.gain) } else { "makes room".to_owned() };
    vec![
        shorten(&printable(&m.vm), 40).into(),
        shorten(&threads, 16).into(),
        shorten(&memory, 16).into(),
        Cell::right(bytes(m.bytes)),
        Cell::right(gain),
    ]
}

fn title(text: &str) -> Cell {
    Cell::from(text).tone(Tone::Faint)
}

fn title_of_amount(text: &str) -> Cell {
    Cell::right(text).tone(Tone::Faint)
}

fn nodes(nodes: &[Node], style: &Style) -> Vec<String> {
    let mut table = Table::indented(0);
    let several = nodes.len() > 1;
    let mut head = vec![title("node"), title("CPUs")];
    head.extend(["memory", "free", "kernel"].map(title_of_amount));
    head.extend([title("huge pages"), title(if several { "distances" } else { "" })]);
    head.push(title(if nodes.iter().any(|node| node.access.is_some()) { "read" } else { "" }));
    table.row(head);
    for node in nodes {
        let cpus = if node.cpus.is_empty() { "none".to_owned() } else { node.cpus.to_string() };
        let huge: Vec<String> = node.huge_pages.iter().map(huge_pages).collect();
        let distances: Vec<String> = node.distances.values().map(u32::to_string).collect();
        let read = node.access.map(|access| duration(access.read_latency as f64)).unwrap_or_default();
        table.row([
            node.id.to_string().into(),
            shorten(&cpus, 12).into(),
            Cell::right(bytes(node.memory)),
            Cell::right(bytes(node.free)),
            Cell::right(bytes(node.kernel)),
            shorten(&huge.join(", "), 23).into(),
            if several { shorten(&distances.join(" "), 18).into() } else { "".into() },
            read.into(),
        ]);
    }
    table.lines(style)
}

fn huge_pages(huge: &HugePages) -> String {
    format!("{} of {} free ({})", huge.free, huge.total, bytes(huge.size))
}

fn section(vm: &VmPlacement, host: &NumaHost, style: &Style) -> Vec<String> {
    let name = shorten(&printable(&vm.name), 40);
    let head = format!("  pid {}, observed for {}", vm.pid, duration(host.observed as f64));
    let mut lines = vec![format!("{}{head}", style.paint(Tone::Strong, &name))];
    let tone = if vm.remote.is_none_or(|remote| remote < 0.01) { Tone::Good } else { Tone::Bad };
    lines.push(style.paint(tone, &format!("=> {}", printable(&vm.headline))));
    lines.extend(by_node(vm, host, style));
    lines.extend(labelled("vCPUs", &single(&vm.vcpus), style));
    for nic in &vm.nics {
        let uplinks = nic.uplinks.iter().map(of_uplink);
        let by = uplinks.collect::<Vec<_>>().join(", ");
        let by = if by.is_empty() { "no NIC of the host found behind it" } else { &by };
        lines.extend(labelled("NIC", &format!("{}: {by}", shorten(&printable(&nic.name), 16)), style));
    }
    for text in &vm.unseen {
        lines.extend(labelled("not seen", &printable(text), style));
    }
    lines
}

/// A NIC of the host, its node, and where its interrupts came.
fn of_uplink(uplink: &Uplink) -> String {
    let node = uplink.node.map_or("node not known".to_owned(), |node| format!("node {node}"));
    let all = total(&uplink.interrupts);
    let share = |(node, count): (&u32, &u64)| {
        format!("{} on node {node}", percent(*count as f64 / all.max(1) as f64))
    };
    let came: Vec<String> = uplink.interrupts.iter().map(share).collect();
    let came = if all == 0 { String::new() } else { format!("; interrupts: {}", came.join(", ")) };
    format!("{} ({node}{came})", shorten(&printable(&uplink.name), 16))
}

/// A text beside its label.
fn labelled(label: &str, text: &str, style: &Style) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let label = |i| if i == 0 { label } else { "" };
    let beside = |(i, line): (usize, String)| {
        let blank = " ".repeat(10usize.saturating_sub(columns(label(i))));
        format!("  {}{blank}{line}", style.paint(Tone::Faint, label(i)))
    };
    wrap(text, WIDTH - 12).into_iter().enumerate().map(beside).collect()
}

/// Amounts with a title, each of which has a column of the table by node.
struct Column {
    title: &'static str,
    amounts: ByNode,
    /// The share of each node is shown, with a bar of so many columns.
    share: Option<usize>,
    shown: fn(u64) -> String,
}

fn by_node(vm: &VmPlacement, host: &NumaHost, style: &Style) -> Vec<String> {
    let nothing = |_| String::new();
    let mut all = Vec::new();
    let mut add_column = |title, amounts: ByNode, share: Option<usize>, shown: fn(u64) -> String| {
        if total(&amounts) > 0 {
            all.push(Column { title, amounts, share, shown });
        }
    };
    if let Some(memory) = &vm.memory {
        let guest = memory.guest.clone().unwrap_or_default();
        add_column("guest memory", guest.bytes, Some(MEMORY_BAR), bytes);
        add_column("huge pages", guest.huge, None, bytes);
        add_column("shared", guest.shared, None, bytes);
        let bar = memory.guest.is_none().then_some(MEMORY_BAR);
        add_column("VMM", memory.vmm.clone(), bar, bytes);
        add_column("kernel", memory.kernel.clone().unwrap_or_default(), None, bytes);
    }
    add_column("vCPUs ran", ran(&vm.vcpus), Some(TIME_BAR), nothing);
    add_column("workers", ran(&vm.workers), Some(0), nothing);
    let used: BTreeSet<u32> = all.iter().flat_map(|column| column.amounts.keys().copied()).collect();
    let known: BTreeSet<u32> = host.nodes.iter().map(|node| node.id).collect();
    // Of a small host also the nodes with nothing.
    let rows: BTreeSet<u32> = if known.len() <= 2 { &used | &known } else { used };
    let mut table = Table::indented(2);
    let head = all.iter().map(|c| if c.share.is_some() { title(c.title) } else { title_of_amount(c.title) });
    table.row([title("node")].into_iter().chain(head));
    for node in rows {
        let cell = |column: &Column| {
            let amount = column.amounts.get(&node).copied().unwrap_or(0);
            let text = (column.shown)(amount);
            let Some(width) = column.share else { return Cell::right(text) };
            let share = amount as f64 / total(&column.amounts).max(1) as f64;
            let full = bar(share, width, style);
            let rest = " ".repeat(width.saturating_sub(columns(&full)) + usize::from(width > 0));
            format!("{full}{rest}{:>5}  {text}", percent(share)).trim_end().to_owned().into()
        };
        table.row([Cell::from(node.to_string())].into_iter().chain(all.iter().map(cell)));
    }
    table.lines(style)
}

/// How long threads ran on each node, together.
fn ran(threads: &[ThreadPlacement]) -> ByNode {
    let mut sum = ByNode::new();
    for (node, ns) in threads.iter().flat_map(|thread| &thread.ran) {
        add(&mut sum, *node, *ns);
    }
    sum
}

/// On which node each vCPU ran, if they were not all on one.
fn single(vcpus: &[ThreadPlacement]) -> String {
    let place = |thread: &ThreadPlacement| {
        let all = total(&thread.ran);
        let share = |ns: u64| ns as f64 / all.max(1) as f64;
        let on: Vec<String> = match (all, thread.last) {
            (0, Some(node)) => vec![format!("node {node} (did not run)")],
            (0, None) => vec!["not known".to_owned()],
            _ if thread.ran.len() == 1 => thread.ran.keys().map(|node| format!("node {node}")).collect(),
            _ => thread.ran.iter().map(|(node, ns)| format!("node {node} {}", percent(share(*ns)))).collect(),
        };
        format!("{}: {}", thread.vcpu.unwrap_or_default(), on.join(", "))
    };
    let nodes: BTreeSet<&u32> = vcpus.iter().flat_map(|thread| thread.ran.keys()).collect();
    if nodes.len() < 2 || vcpus.len() < 2 {
        return String::new();
    }
    let mut each: Vec<String> = vcpus.iter().take(VCPUS).map(place).collect();
    if vcpus.len() > VCPUS {
        each.push(format!("and {} more", count((vcpus.len() - VCPUS) as u64, "vCPU")));
    }
    each.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use teiji_model::numa::{GuestMemory, NicPlacement, VmMemory};

    const MIB: u64 = 1 << 20;

    fn node(id: u32, cpus: &str) -> Node {
        Node {
            id,
            cpus: cpus.parse().unwrap(),
            memory: 3000 * MIB,
            free: 2000 * MIB,
            kernel: 14 * MIB,
            distances: BTreeMap::from([(0, 10 + 11 * id), (1, 21 - 11 * id)]),
            ..Node::default()
        }
    }

    fn thread(vcpu: Option<u16>, ran: &[(u32, u64)]) -> ThreadPlacement {
        let ran = ran.iter().copied().collect();
        ThreadPlacement { vcpu, last: Some(0), ran, ..ThreadPlacement::default() }
    }

    fn vm() -> VmPlacement {
        let guest =
            GuestMemory { bytes: ByNode::from([(0, 100 * MIB), (1, 300 * MIB)]), ..GuestMemory::default() };
        let uplink =
            |name: &str, node| Uplink { name: name.into(), node, interrupts: ByNode::from([(1, 17)]) };
        VmPlacement {
            name: "sip\u{1b}[1m".into(),
            pid: 812,
            memory: Some(VmMemory { guest: Some(guest), vmm: ByNode::from([(0, 80 * MIB)]), kernel: None }),
            vcpus: vec![thread(Some(0), &[(0, 750), (1, 250)]), thread(Some(1), &[])],
            workers: vec![thread(None, &[(1, 5)])],
            nics: vec![NicPlacement {
                name: "tap0".into(),
                uplinks: vec![uplink("eth0", Some(1)), uplink("eth1", None)],
            }],
            unseen: vec!["something".into()],
            remote: Some(0.6),
            headline: "60 % of its memory is remote".into(),
            ..VmPlacement::default()
        }
    }

    #[test]
    fn nodes_and_vms_are_tables() {
        let mut first = node(0, "0-3");
        first.huge_pages = vec![HugePages { size: 2 * MIB, total: 140, free: 12 }];
        let host = NumaHost { nodes: vec![first, node(1, "")], observed: 2_000_000_000, vms: vec![vm()] };
        let wanted = r"node  CPUs   memory     free  kernel  huge pages              distances
0     0-3   2.9 GiB  2.0 GiB  14 MiB  12 of 140 free (2 MiB)  10 21
1     none  2.9 GiB  2.0 GiB  14 MiB                          21 10

sip\u{1b}[1m  pid 812, observed for 2.00 s
=> 60 % of its memory is remote
  node  guest memory                VMM  vCPUs ran     workers
  0     ##        25 %  100 MiB  80 MiB  #####   75 %    0 %
  1     ######    75 %  300 MiB     0 B  ##      25 %  100 %
  vCPUs     0: node 0 75 %, node 1 25 %; 1: node 0 (did not run)
  NIC       tap0: eth0 (node 1; interrupts: 100 % on node 1), eth1 (node not known; interrupts: 100
            % on node 1)
  not seen  something
";
        assert_eq!(text(&host, &Style::PLAIN), wanted);
    }

    #[test]
    fn lines_are_short_on_large_hosts() {
        let nodes = (0..64).map(|id| Node {
            distances: (0..64).map(|to| (to, 100 + to)).collect(),
            huge_pages: vec![HugePages { size: 1 << 30, total: 1000, free: 1000 }; 3],
            ..node(id % 2, "0-1000:2".split(':').next().unwrap())
        });
        let mut vm = vm();
        let all: ByNode = (0..64).map(|id| (id, 1 << 50)).collect();
        if let Some(memory) = &mut vm.memory {
            let guest = GuestMemory {
                bytes: all.clone(),
                huge: all.clone(),
                huge_page: Some(1),
                shared: all.clone(),
            };
            *memory = VmMemory { guest: Some(guest), vmm: all.clone(), kernel: Some(all.clone()) };
        }
        vm.name = "n".repeat(200);
        vm.vcpus = (0..200).map(|n| thread(Some(n), &[(0, 1), (1, 1)])).collect();
        vm.nics[0].uplinks[0].interrupts = all;
        let host = NumaHost { nodes: nodes.collect(), observed: 1, vms: vec![vm] };
        for line in text(&host, &Style::PLAIN).lines() {
            assert!(columns(line) <= WIDTH, "{}: {line}", columns(line));
        }
    }

    #[test]
    fn advice_is_a_table() {
        let one = |vm: &str, threads: &[u32], memory: Option<ByNode>, bytes, gain| Move {
            vm: vm.into(),
            threads: threads.iter().copied().collect(),
            memory,
            bytes,
            gain,
        };
        let moves = vec![
            one("sip1", &[1], None, 0, 0.534),
            one("big", &[0, 1], Some(ByNode::from([(0, MIB), (1, MIB)])), MIB, -0.1),
        ];
        let problem = teiji_model::placement::Problem { vm: "big".into(), why: "it fits on 2".into() };
        let all = Advice {
            moves,
            lost_before: 1.5,
            lost_after: 0.25,
            problems: vec![problem],
            assumed: vec!["x".into()],
        };
        let wanted = "=> move 2 VMs
  lost      1.50 CPUs now, 0.25 CPUs after it, by distance and by overloaded nodes
  VM    threads on  memory on   to copy        gain
  sip1  node 1      as it is        0 B   0.53 CPUs
  big   nodes 0, 1  nodes 0, 1    1 MiB  makes room
  problem   big: it fits on 2
  assumed   x
";
        assert_eq!(advice(&all, &Style::PLAIN), wanted);
        let none = advice(&Advice::default(), &Style::PLAIN);
        assert_eq!(
            none,
            "=> no VM should be moved\n  lost      0.00 CPUs, by distance and by overloaded nodes\n"
        );
    }
}
