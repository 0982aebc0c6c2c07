//! The qdiscs that are compared, as an operator would set them up by tc(8) for the same channels and link.

use super::{CHANNELS, Case, DEADLINE_US, WIRE};
use std::fmt::Write;

/// The queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QdiscKind {
    /// No queue; subtracted from the others.
    Noqueue,
    /// No queue, and the sender passes deadlines; subtracted from etf.
    NoqueueWithDeadlines,
    /// teiji_edf.
    Teiji,
    /// One queue.
    Pfifo,
    /// Fair queueing.
    Fq,
    /// Earliest deadline first, with the deadlines that the sender passes.
    Etf,
    /// Hierarchical token buckets.
    Htb(Filters),
    /// Hierarchical fair service curves.
    Hfsc(Filters),
}

/// How HTB and HFSC find a packet's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// cls_flower: a hash table.
    Flower,
    /// cls_u32 with a hash table of 256 lists, chosen by the port's low byte.
    U32,
}

/// All kinds.
pub const KINDS: [QdiscKind; 10] = [
    QdiscKind::Noqueue,
    QdiscKind::NoqueueWithDeadlines,
    QdiscKind::Teiji,
    QdiscKind::Pfifo,
    QdiscKind::Fq,
    QdiscKind::Etf,
    QdiscKind::Htb(Filters::Flower),
    QdiscKind::Htb(Filters::U32),
    QdiscKind::Hfsc(Filters::Flower),
    QdiscKind::Hfsc(Filters::U32),
];

impl QdiscKind {
    /// Name in tables: that of the qdisc.
    pub fn name(self) -> &'static str {
        match self {
            QdiscKind::Noqueue => "noqueue",
            QdiscKind::NoqueueWithDeadlines => "noqueue, deadlines told",
            QdiscKind::Teiji => "teiji_edf",
            QdiscKind::Pfifo => "pfifo",
            QdiscKind::Fq => "fq",
            QdiscKind::Etf => "etf",
            QdiscKind::Htb(_) => "htb",
            QdiscKind::Hfsc(_) => "hfsc",
        }
    }

    /// How the qdisc finds classes; empty if it needs no filters.
    pub fn filters(self) -> &'static str {
        match self {
            QdiscKind::Htb(Filters::Flower) | QdiscKind::Hfsc(Filters::Flower) => "flower",
            QdiscKind::Htb(Filters::U32) | QdiscKind::Hfsc(Filters::U32) => "u32",
            _ => "",
        }
    }

    /// The deadline that the sender passes to the kernel, µs from now; 0: none.
    pub fn deadline_told_us(self) -> u64 {
        // The deadline is after the window's end: no packet is dropped as late.
        if matches!(self, QdiscKind::Etf | QdiscKind::NoqueueWithDeadlines) { 500_000 } else { 0 }
    }

    /// What is subtracted from this kind.
    pub fn zero(self) -> QdiscKind {
        if self.deadline_told_us() > 0 { QdiscKind::NoqueueWithDeadlines } else { QdiscKind::Noqueue }
    }
}

/// A device and its root qdisc.
#[derive(Clone, Copy, Debug)]
pub struct TestQdisc {
    /// Number of the device.
    pub index: usize,
    /// The qdisc.
    pub kind: QdiscKind,
    /// Number of channels.
    pub channels: u64,
}

/// Every kind with every number of channels.
pub fn all() -> Vec<TestQdisc> {
    let pairs = CHANNELS.iter().flat_map(|n| KINDS.iter().map(move |k| (*k, *n)));
    pairs.enumerate().map(|(index, (kind, channels))| TestQdisc { index, kind, channels }).collect()
}

/// Counts what a frame takes on the wire in addition to what the kernel counts: check sequence, preamble, gap.
const STAB: &str = "stab overhead 24 linklayer ethernet";
/// Class of best effort.
const REST: u64 = 9999;

impl TestQdisc {
    /// The device.
    pub fn device(&self) -> String {
        format!("e{}", self.index)
    }

    /// The address at the device's other end.
    pub fn peer(&self) -> String {
        format!("10.100.{}.2", self.index)
    }

    /// Commands for `ip -batch` that create the device, of a kind that frees every packet it is given.
    pub fn link(&self) -> String {
        let (dev, n) = (self.device(), self.index);
        format!(
            "link add {dev} type dummy\nlink set {dev} up\naddress add 10.100.{n}.1/24 dev {dev}\n\
             neighbour replace {} lladdr 52:54:00:99:00:02 nud permanent dev {dev}\n",
            self.peer()
        )
    }

    /// Commands for `tc -batch` that make the qdisc the root. Empty for teiji_edf.
    pub fn tc(&self, case: &Case) -> String {
        let dev = self.device();
        let mut t = String::new();
        // Kinds that do not shape are put below a token bucket filter if the link is the limit.
        let mut plain = |child: &str| {
            if case.turns == 0 {
                let _ = writeln!(t, "qdisc add dev {dev} root handle 1: {child}");
            } else {
                let burst = 2 * WIRE;
                let _ = writeln!(
                    t,
                    "qdisc add dev {dev} root handle 1: {STAB} tbf rate {}bit burst {burst} limit 8388608\n\
                     qdisc replace dev {dev} parent 1:1 handle 10: {child}",
                    case.link
                );
            }
        };
        match self.kind {
            QdiscKind::Noqueue | QdiscKind::NoqueueWithDeadlines | QdiscKind::Teiji => {}
            QdiscKind::Pfifo => plain("pfifo limit 2700"),
            QdiscKind::Fq => plain("fq limit 10000 flow_limit 2700"),
            QdiscKind::Etf => plain("etf clockid CLOCK_TAI delta 0 deadline_mode"),
            QdiscKind::Htb(filters) => {
                self.htb(&mut t, case);
                self.filters(&mut t, filters);
            }
            QdiscKind::Hfsc(filters) => {
                self.hfsc(&mut t, case);
                self.filters(&mut t, filters);
            }
        }
        t
    }

    // Writing to a String cannot fail, here and below.

    fn htb(&self, t: &mut String, case: &Case) {
        let (dev, link) = (self.device(), case.link);
        let rest = link - case.rate(self.channels) * self.channels;
        // What a shaper may send at once: at least what the link sends while a timer is late.
        let burst = (2 * WIRE).max(link / 8 / 20_000);
        let _ = write!(
            t,
            "qdisc add dev {dev} root handle 1: {STAB} htb default {REST}\n\
             class add dev {dev} parent 1: classid 1:1 htb rate {link}bit burst {burst} cburst {burst} quantum 1600\n"
        );
        let mut class = |id: u64, rate: u64, prio: u64| {
            let _ = writeln!(
                t,
                "class add dev {dev} parent 1:1 classid 1:{id} htb rate {rate}bit ceil {link}bit prio {prio} \
                 burst {burst} cburst {burst} quantum 1600"
            );
        };
        (0..self.channels).for_each(|i| class(100 + i, case.rate(self.channels), 0));
        class(REST, rest, 1);
    }

    fn hfsc(&self, t: &mut String, case: &Case) {
        let (dev, link) = (self.device(), case.link);
        let (rate, bucket) = (case.rate(self.channels), case.bucket(self.channels));
        let rest = link - rate * self.channels;
        let _ = write!(
            t,
            "qdisc add dev {dev} root handle 1: {STAB} hfsc default {REST}\n\
             class add dev {dev} parent 1: classid 1:1 hfsc ls rate {link}bit ul rate {link}bit\n"
        );
        for i in 0..self.channels {
            let _ = writeln!(
                t,
                "class add dev {dev} parent 1:1 classid 1:{} hfsc rt umax {bucket}b dmax {DEADLINE_US}us \
                 rate {rate}bit ls rate {rate}bit",
                100 + i
            );
        }
        let _ = writeln!(t, "class add dev {dev} parent 1:1 classid 1:{REST} hfsc ls rate {rest}bit");
    }

    fn filters(&self, t: &mut String, filters: Filters) {
        let (dev, to) = (self.device(), self.peer());
        let add = format!("filter add dev {dev} parent 1: protocol ip prio 1");
        let ports = (0..self.channels).map(|i| (6000 + i, 100 + i));
        match filters {
            Filters::Flower => {
                for (port, class) in ports {
                    let _ = writeln!(
                        t,
                        "{add} flower ip_proto udp dst_ip {to} dst_port {port} classid 1:{class}"
                    );
                }
            }
            Filters::U32 => {
                let _ = writeln!(
                    t,
                    "filter add dev {dev} parent 1: prio 1 handle 2: protocol ip u32 divisor 256\n\
                     {add} u32 ht 800:: match ip protocol 17 0xff match ip dst {to}/32 \
                     hashkey mask 0x000000ff at 20 link 2:"
                );
                for (port, class) in ports {
                    let _ = writeln!(
                        t,
                        "{add} u32 ht 2:{:x}: match ip dport {port} 0xffff flowid 1:{class}",
                        port & 255
                    );
                }
            }
        }
    }

    /// The lines with which the driver sets up teiji_edf in the same way; empty for others.
    pub fn driver(&self, case: &Case) -> Vec<String> {
        if self.kind != QdiscKind::Teiji {
            return Vec::new();
        }
        let dev = self.device();
        let mut lines = vec![format!("link {dev} rate={}", case.link)];
        lines.extend((0..self.channels).map(|i| {
            format!(
                "channel {dev} c{i} to={}/32:{} deadline_us={DEADLINE_US} rate={} burst={}",
                self.peer(),
                6000 + i,
                case.rate(self.channels),
                case.bucket(self.channels)
            )
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edf_cost::{BACKLOGGED, FREE};

    #[test]
    fn each_device_has_its_own_and_as_many_classes_as_channels() {
        let all = all();
        assert_eq!(all.len(), KINDS.len() * CHANNELS.len());
        for q in &all {
            let t = q.tc(&BACKLOGGED);
            let channels = q.channels as usize;
            if q.kind.filters().is_empty() {
                assert!(!t.contains("class"), "{t}");
            } else {
                assert_eq!(t.matches("\nclass add").count(), channels + 2, "{:?}", q.kind);
                assert_eq!(
                    t.matches("filter add").count() - channels,
                    if q.kind.filters() == "u32" { 2 } else { 0 }
                );
            }
            assert_eq!(q.driver(&FREE).len(), if q.kind == QdiscKind::Teiji { channels + 1 } else { 0 });
            assert!(t.lines().all(|l| l.contains(&format!("dev {} ", q.device()))), "{t}");
        }
    }

    #[test]
    fn the_channels_fit_into_the_link_and_what_is_sent_into_the_channels() {
        for case in [FREE, BACKLOGGED] {
            for n in CHANNELS {
                assert!(case.rate(n) * n < case.link);
                assert!(case.bucket(n) * n >= case.burst / 2 * WIRE);
            }
        }
    }
}
