//! What the other tools are told to do at the same points, as somebody would who follows packets with them: bpftrace's
//! script, and the arguments of trace-cmd and perf.
//!
//! All are made as cheap as their documentation suggests: raw tracepoints and fentry for bpftrace (the events of
//! tracepoints and kprobes cost more), filters in the kernel, no stack traces. A packet is identified by addresses, IP id,
//! ports and length: by less than what teiji hashes, but enough to follow it.

use super::packets::PORT;
use super::points::{ALL, Kind, Point, Subject};
use super::{Scope, Tool};
use std::fmt::Write;

/// What is traced.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The VMM's process.
    pub pid: u32,
    /// The guest's address.
    pub ip: [u8; 4],
    /// The port of the packets.
    pub port: u16,
}

impl Target {
    /// What is traced instead of a load's process and packets: `init`, and an address that nobody has.
    pub fn of(scope: Scope, pid: u32, ip: [u8; 4]) -> Target {
        match scope {
            Scope::Other | Scope::OtherAsked => Target { pid: 1, ip: [10, 66, 9, 9], port: PORT },
            Scope::Filtered => Target { pid, ip, port: PORT + 1 },
            Scope::This | Scope::Asked => Target { pid, ip, port: PORT },
        }
    }
}

/// bpftrace's script: a line for each event, or times in maps.
pub fn bpftrace(tool: Tool, points: usize, target: &Target) -> String {
    let mut t = String::new();
    for (number, point) in ALL.iter().enumerate().take(points) {
        let head = match point.kind {
            Kind::Tracepoint(_) => format!("rawtracepoint:{}", point.name),
            Kind::Function(module) => format!("fentry:{}:{}", module.unwrap_or("vmlinux"), point.name),
        };
        let body = match tool {
            Tool::BpftraceMaps => in_maps(number, point, target),
            _ => as_lines(number, point, target),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(t, "{head} {body}");
    }
    t
}

/// Runs `then` for a packet of the target, with `$skb`, `$ip` and `$udp`.
fn if_packet(point: &Point, argument: u8, received: bool, target: &Target, then: &str) -> String {
    let skb = match point.kind {
        Kind::Tracepoint(_) => format!("(struct sk_buff *)arg{argument}"),
        Kind::Function(_) => "args.first".to_owned(),
    };
    let data = if received { "$skb->head + $skb->mac_header + 14" } else { "$skb->data + 14" };
    let ip = u32::from_le_bytes(target.ip);
    let port = target.port.swap_bytes();
    format!(
        "{{ $skb = {skb}; $ip = (struct iphdr *)({data}); \
         if ($ip->saddr == {ip} || $ip->daddr == {ip}) {{ $udp = (struct udphdr *)($ip + 1); \
         if ($udp->source == {port} || $udp->dest == {port}) {{ {then} }} }} }}"
    )
}

fn as_lines(number: usize, point: &Point, target: &Target) -> String {
    let pid = target.pid;
    match point.subject {
        Subject::Packet(argument, received) => if_packet(
            point,
            argument,
            received,
            target,
            &format!(
                "printf(\"%lld {number} %d %x %x %x %x %x %d\\n\", nsecs, $skb->dev->ifindex, $ip->saddr, $ip->daddr, \
                 $ip->id, $udp->source, $udp->dest, $skb->len);"
            ),
        ),
        Subject::Switch => format!(
            "{{ $out = (struct task_struct *)arg1; $in = (struct task_struct *)arg2; \
             if ($out->tgid == {pid} || $in->tgid == {pid}) {{ \
             printf(\"%lld {number} %d %d %d %d\\n\", nsecs, cpu, $out->pid, $in->pid, arg3); }} }}"
        ),
        Subject::Thread => format!(
            "{{ $task = (struct task_struct *)arg0; if ($task->tgid == {pid}) {{ \
             printf(\"%lld {number} %d %d\\n\", nsecs, cpu, $task->pid); }} }}"
        ),
        Subject::Current => {
            format!("/pid == {pid}/ {{ printf(\"%lld {number} %d %d\\n\", nsecs, cpu, tid); }}")
        }
    }
}

fn in_maps(number: usize, point: &Point, target: &Target) -> String {
    let pid = target.pid;
    match point.subject {
        Subject::Packet(argument, received) => if_packet(
            point,
            argument,
            received,
            target,
            &format!("@at[{number}, $ip->saddr, $ip->daddr, $ip->id, $udp->source, $udp->dest] = nsecs;"),
        ),
        Subject::Switch => format!(
            "{{ $out = (struct task_struct *)arg1; $in = (struct task_struct *)arg2; \
             if ($out->tgid == {pid}) {{ @ran[$out->pid] += nsecs - @since[$out->pid]; @since[$out->pid] = nsecs; }} \
             if ($in->tgid == {pid}) {{ @waited[$in->pid] += nsecs - @since[$in->pid]; @since[$in->pid] = nsecs; }} }}"
        ),
        Subject::Thread => format!(
            "{{ $task = (struct task_struct *)arg0; if ($task->tgid == {pid}) {{ \
             @slept[$task->pid] += nsecs - @since[$task->pid]; @since[$task->pid] = nsecs; }} }}"
        ),
        Subject::Current if point.name == "kvm_exit" => {
            format!("/pid == {pid}/ {{ @guest[tid] += nsecs - @since[tid]; @since[tid] = nsecs; }}")
        }
        Subject::Current => {
            format!("/pid == {pid}/ {{ @host[tid] += nsecs - @since[tid]; @since[tid] = nsecs; }}")
        }
    }
}

/// The arguments of `trace-cmd start`. ftrace selects threads by their ids; packets are not selected.
pub fn trace_cmd(points: usize, only: Option<u32>) -> Vec<String> {
    let mut all: Vec<String> = vec!["start".into(), "-b".into(), "65536".into()];
    let chosen = &ALL[..points];
    let functions: Vec<&str> =
        chosen.iter().filter(|p| matches!(p.kind, Kind::Function(_))).map(|p| p.name).collect();
    if !functions.is_empty() {
        all.extend(["-p".into(), "function".into()]);
        all.extend(functions.iter().flat_map(|f| ["-l".to_owned(), (*f).to_owned()]));
    }
    for point in chosen {
        if let Kind::Tracepoint(system) = point.kind {
            all.extend(["-e".into(), format!("{system}:{}", point.name)]);
        }
    }
    if let Some(pid) = only {
        all.extend(["-P".into(), pid.to_string()]);
    }
    all
}

/// The events of perf; its functions are kprobes, which `perf probe` makes by the same lines as [`kprobes`].
pub fn perf_events(points: usize) -> String {
    let name = |p: &Point| match p.kind {
        Kind::Tracepoint(system) => format!("{system}:{}", p.name),
        Kind::Function(_) => format!("{KPROBES}:{}", p.name),
    };
    ALL[..points].iter().map(name).collect::<Vec<_>>().join(",")
}

/// The group of perf's kprobes.
pub const KPROBES: &str = "cost";

/// What is written to `kprobe_events` for [`perf_events`].
pub fn kprobes(points: usize) -> Vec<String> {
    let functions = ALL[..points].iter().filter(|p| matches!(p.kind, Kind::Function(_)));
    functions.map(|p| format!("p:{KPROBES}/{0} {0}", p.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::points::PASSED;

    #[test]
    fn each_tool_is_told_of_each_point() {
        let target = Target::of(Scope::This, 77, [10, 66, 0, 1]);
        for tool in [Tool::Bpftrace, Tool::BpftraceMaps] {
            for n in [1, PASSED, ALL.len()] {
                assert_eq!(bpftrace(tool, n, &target).lines().count(), n);
            }
        }
        let text = bpftrace(Tool::Bpftrace, PASSED, &target);
        assert!(text.contains("rawtracepoint:kvm_exit /pid == 77/"), "{text}");
        assert!(text.contains("$ip->saddr == 16794122 "), "10.66.0.1 in network order: {text}");
        let record = trace_cmd(ALL.len(), None);
        assert_eq!(record.iter().filter(|a| *a == "-e").count(), 13);
        assert_eq!(record.iter().filter(|a| *a == "-l").count(), 9);
        assert!(!trace_cmd(1, None).contains(&"-p".into()));
        assert_eq!(perf_events(ALL.len()).split(',').count(), ALL.len());
        assert_eq!(kprobes(ALL.len()).len(), 9);
    }

    #[test]
    fn a_trace_of_another_vm_is_not_of_this_one() {
        let own = Target::of(Scope::This, 77, [10, 66, 0, 1]);
        let other = Target::of(Scope::Other, 77, [10, 66, 0, 1]);
        assert!(own.pid != other.pid && own.ip != other.ip);
        assert_ne!(Target::of(Scope::Filtered, 77, [10, 66, 0, 1]).port, own.port);
    }
}
