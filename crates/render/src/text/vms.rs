//! The VMs of a host with their threads and NICs.

use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, columns, printable, shorten};
use crate::units;
use teiji_model::host::{DataPlane, GivenNic, Identity, Nic, Vm};

/// Why a policy would not mean this VM by its name; `None` if it would. Untrusted text.
pub fn doubt(vm: &Vm, identity: &Identity) -> Option<String> {
    let whose = identity.doubt_by_default().filter(|_| vm.name != format!("pid:{}", vm.pid))?;
    Some(format!("named by itself, {whose}: [vm.NAME] means it only if vm_users has that user"))
}

/// The VMs as text of at most 100 columns.
pub fn table(vms: &[(Vm, Identity)], style: &Style) -> String {
    let blocks: Vec<String> = vms.iter().map(|(vm, identity)| block(vm, identity, style)).collect();
    blocks.join("\n")
}

fn block(vm: &Vm, identity: &Identity, style: &Style) -> String {
    let mut head = format!("  pid {}, {}", vm.pid, units::count(vm.vcpus.len() as u64, "vCPU"));
    if let Some(memory) = vm.memory {
        head += &format!(", {}", units::bytes(memory));
    }
    match &vm.memory_nodes[..] {
        [] => {}
        [resident] => head += &format!(", {} resident", units::bytes(*resident)),
        nodes => {
            let on = |(n, b): (usize, &u64)| (*b > 0).then(|| format!("{} on node {n}", units::bytes(*b)));
            let on: Vec<String> = nodes.iter().enumerate().filter_map(on).collect();
            head += &format!(", resident: {}", on.join(", "));
        }
    }
    let name = style.ascii(&shorten(&printable(&vm.name), 40));
    let mut out = format!("{}{}\n", style.paint(Tone::Strong, &name), shorten(&head, 98 - columns(&name)));

    if let Some(doubt) = doubt(vm, identity) {
        out += &format!("  {}\n", style.paint(Tone::Bad, &style.ascii(&shorten(&printable(&doubt), 96))));
    }

    if let Some(uuid) = identity.uuid {
        out += &format!("  {}\n", style.paint(Tone::Faint, &format!("UUID {uuid}")));
    }
    let mut threads = Table::indented(2);
    for v in &vm.vcpus {
        threads.row(thread(format!("vCPU {}", v.index), v.tid, &v.cpus, v.last_cpu, ""));
    }
    for w in &vm.workers {
        let kind = if w.kernel_thread { "kernel thread" } else { "thread of the VMM" };
        threads.row(thread("vhost worker".to_owned(), w.tid, &w.cpus, w.last_cpu, kind));
    }
    let mut nics = Table::indented(2);
    for n in &vm.nics {
        nics.row(nic(n, vm.given_nic(n)));
    }
    for line in threads.lines(style).into_iter().chain(nics.lines(style)) {
        out += &line;
        out.push('\n');
    }
    for (n, why) in vm.nics.iter().filter_map(|n| Some((n, n.unseen()?))) {
        let line = format!("{}: {why}", shorten(&printable(&n.tap), 16));
        out += &format!("  {}\n", style.paint(Tone::Faint, &style.ascii(&shorten(&line, 98))));
    }
    if vm.vcpus.is_empty() {
        out += "  its vCPU threads cannot be identified: start QEMU with -name guest=NAME,debug-threads=on\n";
    }
    if vm.nics.is_empty() {
        out += "  no tap: packets cannot be followed to it\n";
    }
    out
}

fn thread(what: String, tid: u32, cpus: &str, last: u32, kind: &str) -> Vec<Cell> {
    vec![
        what.into(),
        Cell::right(format!("thread {tid}")),
        format!("CPUs {}", shorten(&printable(cpus), 30)).into(),
        format!("last on {last}").into(),
        Cell::from(kind).tone(Tone::Faint),
    ]
}

fn nic(n: &Nic, given: Option<&GivenNic>) -> Vec<Cell> {
    let mac =
        n.mac.map_or_else(|| "MAC not known".to_owned(), |m| m.map(|byte| format!("{byte:02x}")).join(":"));
    let (plane, tone) = match n.data_plane {
        DataPlane::VhostNet => ("vhost-net", Tone::Plain),
        DataPlane::Userspace => ("by the VMM, not vhost", Tone::Plain),
        DataPlane::VhostMacvtap => ("vhost-net, macvtap", Tone::Plain),
        DataPlane::UserspaceMacvtap => ("by the VMM, macvtap", Tone::Bad),
        DataPlane::Passthrough => ("passed through", Tone::Bad),
        DataPlane::VhostUser => ("vhost-user", Tone::Bad),
    };
    let bridge = match &n.bridge {
        None if given.is_some() => {
            given.map(|given| shorten(&printable(&given.what()), 24)).unwrap_or_default()
        }
        Some(bridge) => format!("bridge {}", shorten(&printable(bridge), 16)),
        None if matches!(n.data_plane, DataPlane::Passthrough | DataPlane::VhostUser) => "no tap".to_owned(),
        None if n.ifindex == 0 => "other netns".to_owned(),
        None => "no bridge".to_owned(),
    };
    vec![
        format!("NIC {}", shorten(&printable(&n.tap), 16)).into(),
        bridge.into(),
        mac.into(),
        Cell::from(plane).tone(tone),
        if n.queues == 0 { String::new() } else { units::count(n.queues.into(), "queue") }.into(),
    ]
}
