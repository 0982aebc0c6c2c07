//! The qdiscs that are compared, as an operator would set them up by tc(8) for the same channels and link.

use super::{LINK, SIZE, WIRE, Workload};
use std::fmt::Write;

/// All qdiscs, this project's first.
pub const QDISCS: [&str; 6] = ["teiji_edf", "pfifo", "fq", "htb", "hfsc", "etf"];

/// Counts what a frame takes on the wire in addition to what the kernel counts: check sequence, preamble, gap.
const STAB: &str = "stab overhead 24 linklayer ethernet";
/// Two full frames: a shaper with a smaller burst stalls.
const BURST: u64 = 2 * WIRE + 28;
/// Packets in a best-effort queue: about as much as teiji_edf's 4 MiB.
const QUEUE: u64 = 2700;

/// The tc commands that make a qdisc the root of `va`; they are run in namespace a.
pub fn setup(qdisc: &str, workload: &Workload) -> String {
    let mut t = String::new();
    let reserved: u64 = workload.channels.iter().map(|c| c.rate).sum();
    let rest = LINK - reserved;
    // Kinds that do not shape are put below a token bucket filter.
    let shaped = |child: &str| {
        format!(
            "tc qdisc add dev va root handle 1: {STAB} tbf rate {LINK}bit burst {BURST} limit 8388608\n\
             tc qdisc replace dev va parent 1:1 handle 10: {child}\n"
        )
    };
    // Writing to a String cannot fail, here and below.
    let add = |t: &mut String, line: String| {
        let _ = writeln!(t, "{line}");
    };
    match qdisc {
        "pfifo" => t = shaped(&format!("pfifo limit {QUEUE}")),
        "fq" => t = shaped(&format!("fq limit 10000 flow_limit {QUEUE}")),
        "etf" => t = shaped("etf clockid CLOCK_TAI delta 0 deadline_mode"),
        "htb" => {
            add(&mut t, format!("tc qdisc add dev va root handle 1: {STAB} htb default 9999"));
            add(
                &mut t,
                format!(
                    "tc class add dev va parent 1: classid 1:1 htb rate {LINK}bit burst {BURST} cburst {BURST}"
                ),
            );
            for (i, c) in workload.channels.iter().enumerate() {
                let (id, burst) = (100 + i, c.burst * WIRE + BURST);
                add(
                    &mut t,
                    format!(
                        "tc class add dev va parent 1:1 classid 1:{id} htb rate {}bit ceil {LINK}bit prio 0 burst {burst} \
                         cburst {BURST} quantum {WIRE}",
                        c.rate
                    ),
                );
            }
            add(
                &mut t,
                format!(
                    "tc class add dev va parent 1:1 classid 1:9999 htb rate {rest}bit ceil {LINK}bit prio 1 burst {BURST} \
                     cburst {BURST} quantum {WIRE}"
                ),
            );
        }
        "hfsc" => {
            add(&mut t, format!("tc qdisc add dev va root handle 1: {STAB} hfsc default 9999"));
            add(
                &mut t,
                format!("tc class add dev va parent 1: classid 1:1 hfsc ls rate {LINK}bit ul rate {LINK}bit"),
            );
            for (i, c) in workload.channels.iter().enumerate() {
                let (id, umax) = (100 + i, c.burst * WIRE);
                add(
                    &mut t,
                    format!(
                        "tc class add dev va parent 1:1 classid 1:{id} hfsc rt umax {umax}b dmax {}us rate {}bit ls rate \
                         {}bit",
                        c.deadline_us, c.rate, c.rate
                    ),
                );
            }
            add(&mut t, format!("tc class add dev va parent 1:1 classid 1:9999 hfsc ls rate {rest}bit"));
        }
        _ => {}
    }
    if ["htb", "hfsc"].contains(&qdisc) {
        for i in 0..workload.channels.len() {
            add(
                &mut t,
                format!(
                    "tc filter add dev va parent 1: protocol ip prio 1 u32 match ip dport {} 0xffff flowid 1:{}",
                    6000 + i,
                    100 + i
                ),
            );
            add(&mut t, format!("tc qdisc add dev va parent 1:{} pfifo limit 1000", 100 + i));
        }
        add(&mut t, format!("tc qdisc add dev va parent 1:9999 pfifo limit {QUEUE}"));
    }
    t
}

/// The flows of the channels as arguments of `teiji-lab udp-flows`. Only for etf does the sender pass deadlines.
pub fn flows(qdisc: &str, workload: &Workload) -> String {
    let mut t = String::new();
    for (i, c) in workload.channels.iter().enumerate() {
        let _ = write!(t, " --flow 10.88.0.2:{},rate={},size={SIZE},burst={}", 6000 + i, c.rate, c.burst);
        if qdisc == "etf" {
            let _ = write!(t, ",deadline_us={}", c.deadline_us);
        }
    }
    t
}

/// The flood of best effort at twice the link's rate, as arguments of the same program. For etf, which drops packets
/// without a deadline, the deadline is one second.
pub fn flood(qdisc: &str) -> String {
    let deadline_option = if qdisc == "etf" { ",deadline_us=1000000" } else { "" };
    format!(" --flow 10.88.0.2:7000,rate={},size={SIZE}{deadline_option}", 2 * LINK)
}
