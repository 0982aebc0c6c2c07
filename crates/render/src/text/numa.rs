//! Where VMs are on a host with NUMA nodes.

use super::labelled;
use super::stages::bar;
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, columns, printable, shorten};
use crate::units::{bytes, count, duration, percent};
use std::collections::BTreeSet;
use teiji_model::numa::{ByNode, HugePages, Node, NumaHost, ThreadNodes, Uplink, VmNodes, add, total};
use teiji_model::placement::{Advice, Move};

/// Columns of the bar of memory, and of that of time.
const MEMORY_BAR: usize = 5;
const TIME_BAR: usize = 4;
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
        lines.push("no VM was there during the whole observation".to_owned());
    }
    lines.iter().map(|line| format!("{}\n", style.ascii(line).trim_end())).collect()
}

/// Where VMs should be, as text of at most 100 columns.
pub fn advice(advice: &Advice, style: &Style) -> String {
    let mut lines = Vec::new();
    let (moved, stuck) = (advice.moves.len() as u64, advice.problems.len() as u64);
    let mut headline = match moved {
        0 => "no move is advised".to_owned(),
        moved => format!("move {}", count(moved, "VM")),
    };
    if stuck > 0 {
        headline += &format!("; {}", count(stuck, "problem"));
    }
    let tone = if moved + stuck == 0 { Tone::Good } else { Tone::Bad };
    lines.push(style.paint(tone, &format!("=> {headline}")));
    let after =
        if moved > 0 { format!(", {} after these moves", cpus(advice.lost_after)) } else { String::new() };
    let lost = format!("{} now{after}, to remote accesses and overloaded nodes", cpus(advice.lost_before));
    lines.extend(labelled("lost", &lost, style));
    let named = |name: &str, pid: u32| {
        let several = advice.moves.iter().filter(|m| m.vm == name && m.pid != pid).count() > 0
            || advice.problems.iter().any(|problem| problem.vm == name && problem.pid != pid);
        let pid = if several { format!(" (pid {pid})") } else { String::new() };
        format!("{}{pid}", shorten(&printable(name), 24 - pid.len()))
    };
    if !advice.moves.is_empty() {
        let mut table = Table::indented(2);
        let head = ["VM", "threads on", "go to", "memory goes to"].map(title);
        table.row(head.into_iter().chain(["to copy", "saves"].map(title_of_amount)));
        advice.moves.iter().for_each(|m| table.row(of_move(m, named(&m.vm, m.pid))));
        lines.extend(table.lines(style));
    }
    for problem in &advice.problems {
        let text = format!("{}: {}", named(&problem.vm, problem.pid), printable(&problem.why));
        lines.extend(labelled("problem", &text, style));
    }
    for text in &advice.assumed {
        lines.extend(labelled("assumed", text, style));
    }
    lines.iter().map(|line| format!("{}\n", style.ascii(line).trim_end())).collect()
}

/// An amount of CPUs.
fn cpus(amount: f64) -> String {
    if amount > 0.0 && amount < 0.005 { "< 0.01 CPUs".to_owned() } else { format!("{amount:.2} CPUs") }
}

fn of_move(m: &Move, name: String) -> Vec<Cell> {
    let nodes = |ids: Vec<String>| match &ids[..] {
        [] => "not known".to_owned(),
        [one] => format!("node {one}"),
        several => shorten(&format!("nodes {}", several.join(", ")), 12),
    };
    let of = |ids: &BTreeSet<u32>| nodes(ids.iter().map(u32::to_string).collect());
    let memory = m.memory.as_ref().map_or("stays".to_owned(), |memory| {
        nodes(memory.iter().filter(|(_, bytes)| **bytes > 0).map(|(node, _)| node.to_string()).collect())
    });
    let threads = if m.from == m.threads { "stay".to_owned() } else { of(&m.threads) };
    let saves = if m.gain > 0.0 { cpus(m.gain) } else { "makes room".to_owned() };
    vec![
        name.into(),
        of(&m.from).into(),
        threads.into(),
        memory.into(),
        Cell::right(bytes(m.bytes)),
        Cell::right(saves),
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
    head.extend(["memory", "free", "available", "kernel"].map(title_of_amount));
    head.extend([title("huge pages"), title(if several { "distances" } else { "" })]);
    head.push(title(if nodes.iter().any(|node| node.access.is_some()) { "latency" } else { "" }));
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
            Cell::right(bytes(node.available)),
            Cell::right(bytes(node.kernel)),
            shorten(&huge.join(", "), 22).into(),
            if several { shorten(&distances.join(" "), 12).into() } else { "".into() },
            read.into(),
        ]);
    }
    table.lines(style)
}

fn huge_pages(huge: &HugePages) -> String {
    format!("{} of {} free ({})", huge.free, huge.total, bytes(huge.size))
}

fn section(vm: &VmNodes, host: &NumaHost, style: &Style) -> Vec<String> {
    let name = shorten(&printable(&vm.name), 40);
    let head = format!("  pid {}, observed for {}", vm.pid, duration(host.observed as f64));
    let mut lines = vec![format!("{}{head}", style.paint(Tone::Strong, &name))];
    let tone = if vm.well { Tone::Good } else { Tone::Bad };
    lines.push(style.paint(tone, &format!("=> {}", printable(&vm.headline))));
    lines.extend(by_node(vm, host, style));
    if let Some(each) = single(&vm.vcpus) {
        lines.extend(labelled("vCPUs", &each, style));
    }
    for nic in &vm.nics {
        let uplinks = nic.uplinks.iter().map(of_uplink);
        let by = uplinks.collect::<Vec<_>>().join(", ");
        let by = if by.is_empty() { "no NIC of the host found" } else { &by };
        lines.extend(labelled("NIC", &format!("{} -> {by}", shorten(&printable(&nic.name), 16)), style));
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

/// Amounts with a title, each of which has a column of the table by node.
struct Column {
    title: &'static str,
    amounts: ByNode,
    /// The share of each node is shown, with a bar of so many columns.
    share: Option<usize>,
    shown: fn(u64) -> String,
}

fn by_node(vm: &VmNodes, host: &NumaHost, style: &Style) -> Vec<String> {
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
        add_column("of it huge", guest.huge, None, bytes);
        add_column("of it shared", guest.shared, None, bytes);
        let bar = memory.guest.is_none().then_some(MEMORY_BAR);
        add_column("VMM", memory.vmm.clone(), bar, bytes);
        add_column("kernel", memory.kernel.clone().unwrap_or_default(), None, bytes);
    }
    add_column("vCPUs ran", ran(&vm.vcpus), Some(TIME_BAR), nothing);
    add_column("workers ran", ran(&vm.workers), Some(0), nothing);
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
fn ran(threads: &[ThreadNodes]) -> ByNode {
    let mut sum = ByNode::new();
    for (node, ns) in threads.iter().flat_map(|thread| &thread.ran) {
        add(&mut sum, *node, *ns);
    }
    sum
}

/// On which node each vCPU ran, if they were not all on one.
fn single(vcpus: &[ThreadNodes]) -> Option<String> {
    let place = |thread: &ThreadNodes| {
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
        return None;
    }
    let mut each: Vec<String> = vcpus.iter().take(VCPUS).map(place).collect();
    if vcpus.len() > VCPUS {
        each.push(format!("and {} more", count((vcpus.len() - VCPUS) as u64, "vCPU")));
    }
    Some(each.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::WIDTH;
    use std::collections::BTreeMap;
    use teiji_model::numa::{GuestMemory, NicNodes, VmMemory};
    use teiji_model::placement::Problem;

    const MIB: u64 = 1 << 20;

    fn node(id: u32, cpus: &str) -> Node {
        Node {
            id,
            cpus: cpus.parse().unwrap(),
            memory: 3000 * MIB,
            free: 2000 * MIB,
            available: 2500 * MIB,
            kernel: 14 * MIB,
            distances: BTreeMap::from([(0, 10 + 11 * id), (1, 21 - 11 * id)]),
            ..Node::default()
        }
    }

    fn thread(vcpu: Option<u16>, ran: &[(u32, u64)]) -> ThreadNodes {
        let ran = ran.iter().copied().collect();
        ThreadNodes { vcpu, last: Some(0), ran, ..ThreadNodes::default() }
    }

    fn vm() -> VmNodes {
        let guest =
            GuestMemory { bytes: ByNode::from([(0, 100 * MIB), (1, 300 * MIB)]), ..GuestMemory::default() };
        let uplink =
            |name: &str, node| Uplink { name: name.into(), node, interrupts: ByNode::from([(1, 17)]) };
        VmNodes {
            name: "sip\u{1b}[1m".into(),
            pid: 812,
            memory: Some(VmMemory { guest: Some(guest), vmm: ByNode::from([(0, 80 * MIB)]), kernel: None }),
            vcpus: vec![thread(Some(0), &[(0, 750), (1, 250)]), thread(Some(1), &[])],
            workers: vec![thread(None, &[(1, 5)])],
            nics: vec![NicNodes {
                name: "tap0".into(),
                uplinks: vec![uplink("eth0", Some(1)), uplink("eth1", None)],
            }],
            unseen: vec!["something".into()],
            remote_accesses: Some(0.6),
            headline: "60 % of its memory is remote".into(),
            ..VmNodes::default()
        }
    }

    #[test]
    fn nodes_and_vms_are_tables() {
        let mut first = node(0, "0-3");
        first.huge_pages = vec![HugePages { size: 2 * MIB, total: 140, free: 12, reserved: 0 }];
        let host = NumaHost { nodes: vec![first, node(1, "")], observed: 2_000_000_000, vms: vec![vm()] };
        let wanted = r"node  CPUs   memory     free  available  kernel  huge pages              distances
0     0-3   2.9 GiB  2.0 GiB    2.4 GiB  14 MiB  12 of 140 free (2 MiB)  10 21
1     none  2.9 GiB  2.0 GiB    2.4 GiB  14 MiB                          21 10

sip\u{1b}[1m  pid 812, observed for 2.00 s
=> 60 % of its memory is remote
  node  guest memory             VMM  vCPUs ran   workers ran
  0     #      25 %  100 MiB  80 MiB  ###   75 %    0 %
  1     ####   75 %  300 MiB     0 B  #     25 %  100 %
  vCPUs       0: node 0 75 %, node 1 25 %; 1: node 0 (did not run)
  NIC         tap0 -> eth0 (node 1; interrupts: 100 % on node 1), eth1 (node not known; interrupts:
              100 % on node 1)
  not seen    something
";
        assert_eq!(text(&host, &Style::PLAIN), wanted);
    }

    #[test]
    fn lines_are_short_on_large_hosts() {
        let nodes = (0..64).map(|id| Node {
            distances: (0..64).map(|to| (to, 100 + to)).collect(),
            huge_pages: vec![HugePages { size: 1 << 30, total: 1000, free: 1000, reserved: 0 }; 3],
            ..node(id % 2, "0-1000:2".split(':').next().unwrap())
        });
        let mut vm = vm();
        let all: ByNode = (0..64).map(|id| (id, 1 << 50)).collect();
        if let Some(memory) = &mut vm.memory {
            let guest = GuestMemory {
                bytes: all.clone(),
                huge: all.clone(),
                shared: all.clone(),
                ..GuestMemory::default()
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
        let set = |nodes: &[u32]| nodes.iter().copied().collect::<BTreeSet<u32>>();
        let moves = vec![
            Move {
                vm: "sip1".into(),
                pid: 7,
                from: set(&[0]),
                threads: set(&[1]),
                memory: None,
                bytes: 0,
                gain: 0.534,
            },
            Move {
                vm: "big".into(),
                pid: 8,
                from: set(&[0, 1]),
                threads: set(&[0, 1]),
                memory: Some(ByNode::from([(0, MIB), (1, MIB)])),
                bytes: MIB,
                gain: -0.1,
            },
        ];
        let problem = |vm: &str, pid| Problem { vm: vm.into(), pid, why: "it is too large".into() };
        let problems = vec![problem("sip1", 9)];
        let all = Advice { moves, lost_before: 1.5, lost_after: 0.0025, problems, assumed: vec!["x".into()] };
        let wanted = "=> move 2 VMs; 1 problem
  lost        1.50 CPUs now, < 0.01 CPUs after these moves, to remote accesses and overloaded nodes
  VM            threads on  go to   memory goes to  to copy       saves
  sip1 (pid 7)  node 0      node 1  stays               0 B   0.53 CPUs
  big           nodes 0, 1  stay    nodes 0, 1        1 MiB  makes room
  problem     sip1 (pid 9): it is too large
  assumed     x
";
        assert_eq!(advice(&all, &Style::PLAIN), wanted);
        let none = advice(&Advice::default(), &Style::PLAIN);
        let wanted =
            "=> no move is advised\n  lost        0.00 CPUs now, to remote accesses and overloaded nodes\n";
        assert_eq!(none, wanted);
    }

    #[test]
    fn lines_of_advice_are_short() {
        let nodes: BTreeSet<u32> = (100..200).collect();
        let one = |pid| Move {
            vm: "n".repeat(200),
            pid,
            from: nodes.clone(),
            threads: (0..100).collect(),
            memory: Some((0..100).map(|id| (id, 1 << 50)).collect()),
            bytes: u64::MAX,
            gain: 99999.0,
        };
        let all = Advice { moves: vec![one(1 << 22), one(1)], ..Advice::default() };
        for line in advice(&all, &Style::PLAIN).lines() {
            assert!(columns(line) <= WIDTH, "{}: {line}", columns(line));
        }
    }
}
