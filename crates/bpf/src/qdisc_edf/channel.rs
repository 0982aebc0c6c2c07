//! Links, channels and statistics as the operator sees them, and in the form that the kernel half reads.
//!
//! A *shape* is the set of fields that a channel looks at: how much of each address, which ports, whether the
//! protocol. The kernel half looks a packet up once for each shape that the link's channels have, the most
//! specific first, so what a packet costs depends on the number of shapes and not on that of channels.
use super::types;
use std::net::IpAddr;
use std::time::Duration;

/// Most channels, of all links (`MAX_CHANNELS` in `intf.h`; a test compares).
pub(super) const MAX_CHANNELS: usize = 4096;
/// Most shapes of a link (`MAX_SHAPES`).
const MAX_SHAPES: usize = 16;

/// How a link sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Bit/s on the wire, framing included; 0: as fast as the device takes packets, and then deadlines hold only
    /// up to the device's own queue.
    pub rate: u64,
    /// Best effort goes first while more than this would be left before the earliest deadline after all queued
    /// real-time packets have been sent. At least the time that the largest best-effort packet takes. With the
    /// longest deadline or more, real time always goes first.
    pub slack: Duration,
    /// Time that the link was idle, or the kernel's timer late, and is made up for by sending faster.
    pub credit: Duration,
    /// Most bit/s of all channels together, so that best effort is not starved; 0: no bound.
    pub rt_rate: u64,
    /// Bytes that all channels together may exceed that by at a time.
    pub rt_burst: u64,
    /// Bytes that each frame takes on the wire beside those which the kernel counts.
    pub overhead: u32,
    /// The shortest frame, as the kernel counts it, bytes.
    pub min_frame: u32,
    /// Most bytes that are queued of best effort, and as many of real time.
    pub limit_bytes: u32,
    /// Most packets that are queued of best effort, and as many of real time. At most 1,048,576.
    pub limit_packets: u32,
}

impl Default for LinkSettings {
    /// Ethernet: 4 bytes of check sequence, 8 of preamble and 12 of gap beside what the kernel counts, no frame
    /// shorter than 60 bytes; 2 ms of slack; a queue of 4 MiB.
    fn default() -> LinkSettings {
        LinkSettings {
            rate: 0,
            slack: Duration::from_millis(2),
            credit: Duration::from_micros(100),
            rt_rate: 0,
            rt_burst: 0,
            overhead: 24,
            min_frame: 60,
            limit_bytes: 4 << 20,
            limit_packets: 10_000,
        }
    }
}

/// One end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Address, of which the first `prefix` bits count.
    pub addr: IpAddr,
    /// 0 to 32, or to 128.
    pub prefix: u8,
    /// Port, if it counts.
    pub port: Option<u16>,
}

/// A one-way flow with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Sender.
    pub from: End,
    /// Receiver.
    pub to: End,
    /// IP protocol (6 TCP, 17 UDP), if it counts.
    pub proto: Option<u8>,
    /// From a packet's arrival at the queue until it is sent.
    pub deadline: Duration,
    /// Bit/s on the wire, framing included, that keep the deadline; what exceeds it is sent as best effort.
    pub rate: u64,
    /// Bytes on the wire that may come at once. At least the largest packet.
    pub burst: u64,
}

impl Channel {
    /// What is wrong with it, and what would do.
    pub(super) fn check(&self) -> Result<(), String> {
        let width = |e: &End| if e.addr.is_ipv4() { 32 } else { 128 };
        if self.from.addr.is_ipv4() != self.to.addr.is_ipv4() {
            return Err("one end is IPv4 and the other IPv6; make it two channels".into());
        }
        if let Some(e) = [&self.from, &self.to].into_iter().find(|e| e.prefix > width(e)) {
            return Err(format!("{}/{} has a prefix longer than {}", e.addr, e.prefix, width(e)));
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_secs(60) {
            return Err("its deadline is not between 1 ns and 60 s".into());
        }
        if self.rate < 8 || self.rate > MAX_RATE {
            return Err("its rate is not between 8 bit/s and 1 Tbit/s".into());
        }
        if self.burst == 0 || self.burst > u64::from(u32::MAX) {
            return Err(
                "its burst is not between 1 byte and 4 GiB; the largest packet is the least that helps"
                    .into(),
            );
        }
        Ok(())
    }

    /// The fields that it looks at.
    pub(super) fn shape(&self) -> types::shape {
        let port = |p: Option<u16>| if p.is_some() { u16::MAX } else { 0 };
        types::shape {
            tag: u32::from(self.from.prefix)
                | u32::from(self.to.prefix) << 8
                | u32::from(self.from.port.is_some()) << 16
                | u32::from(self.to.port.is_some()) << 17
                | u32::from(self.proto.is_some()) << 18
                | 1 << 31,
            version: if self.from.addr.is_ipv4() { 4 } else { 6 },
            proto: if self.proto.is_some() { u8::MAX } else { 0 },
            ports: u8::from(self.from.port.is_some() || self.to.port.is_some()),
            sport: port(self.from.port),
            dport: port(self.to.port),
            src: mask(self.from.prefix),
            dst: mask(self.to.prefix),
            ..Default::default()
        }
    }

    /// What its packets look like on link `link` under its shape.
    pub(super) fn key(&self, link: u32) -> types::match_key {
        let shape = self.shape();
        let masked = |e: &End, mask: [u32; 4]| {
            let words = words(e.addr);
            std::array::from_fn(|i| words[i] & mask[i])
        };
        types::match_key {
            link,
            shape: shape.tag,
            version: shape.version,
            proto: self.proto.unwrap_or(0),
            sport: self.from.port.unwrap_or(0).to_be(),
            dport: self.to.port.unwrap_or(0).to_be(),
            src: masked(&self.from, shape.src),
            dst: masked(&self.to, shape.dst),
            ..Default::default()
        }
    }

    pub(super) fn settings(&self, id: u32) -> types::channel_settings {
        types::channel_settings {
            deadline: nanos(self.deadline),
            rate: self.rate / 8,
            burst: self.burst,
            id,
            ..Default::default()
        }
    }
}

/// Above this, bit/s, bytes times 10^9 divided by it says nothing any more.
const MAX_RATE: u64 = 1_000_000_000_000;

impl LinkSettings {
    pub(super) fn in_kernel(&self, id: u32, shapes: &Shapes) -> types::link_settings {
        let mut s = types::link_settings {
            rate: self.rate / 8,
            slack: nanos(self.slack),
            credit: nanos(self.credit),
            rt_rate: self.rt_rate / 8,
            rt_burst: self.rt_burst.min(u64::from(u32::MAX)),
            overhead: self.overhead,
            min_frame: self.min_frame,
            limit_bytes: self.limit_bytes,
            limit_packets: self.limit_packets.min(1 << 20),
            id,
            shapes: shapes.0.len() as u32,
            ..Default::default()
        };
        for (slot, (shape, _)) in s.shape.iter_mut().zip(&shapes.0) {
            *slot = *shape;
        }
        s
    }
}

/// The shapes of a link's channels, the most specific first, and how many channels have each.
#[derive(Clone, Default)]
pub(super) struct Shapes(Vec<(types::shape, usize)>);

impl Shapes {
    /// Counts a channel's shape; what is wrong if there are too many.
    pub(super) fn add(&mut self, channel: &Channel) -> Result<(), String> {
        let shape = channel.shape();
        let same = |s: &types::shape| s.tag == shape.tag && s.version == shape.version;
        if let Some((_, n)) = self.0.iter_mut().find(|(s, _)| same(s)) {
            *n += 1;
            return Ok(());
        }
        if self.0.len() == MAX_SHAPES {
            return Err(format!(
                "the link's channels have {MAX_SHAPES} kinds of ends (lengths of prefixes, with or without ports and \
                 protocol), which is the most; use one of theirs"
            ));
        }
        self.0.push((shape, 1));
        // Stable, so that equals keep the order in which they came.
        self.0.sort_by_key(|(s, _)| std::cmp::Reverse(fields(s)));
        Ok(())
    }

    pub(super) fn remove(&mut self, channel: &Channel) {
        let shape = channel.shape();
        if let Some((_, n)) =
            self.0.iter_mut().find(|(s, _)| s.tag == shape.tag && s.version == shape.version)
        {
            *n -= 1;
        }
        self.0.retain(|(_, n)| *n > 0);
    }
}

/// How many bits a shape looks at.
fn fields(s: &types::shape) -> u32 {
    s.src.iter().chain(&s.dst).map(|w| w.count_ones()).sum::<u32>()
        + s.sport.count_ones()
        + s.dport.count_ones()
        + s.proto.count_ones()
}

/// The first `prefix` bits, in network order.
fn mask(prefix: u8) -> [u32; 4] {
    std::array::from_fn(|i| {
        let here = u32::from(prefix).saturating_sub(32 * i as u32).min(32);
        if here == 0 { 0 } else { (u32::MAX << (32 - here)).to_be() }
    })
}

/// An address as it lies in a packet.
fn words(addr: IpAddr) -> [u32; 4] {
    let mut octets = [0u8; 16];
    match addr {
        IpAddr::V4(a) => octets[..4].copy_from_slice(&a.octets()),
        IpAddr::V6(a) => octets = a.octets(),
    }
    std::array::from_fn(|i| {
        u32::from_ne_bytes([octets[4 * i], octets[4 * i + 1], octets[4 * i + 2], octets[4 * i + 3]])
    })
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

/// What has become of a channel's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// Sent in the order of deadlines.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// The longest time that one of them was queued, ns.
    pub delay_max: u64,
    /// All of them together, ns.
    pub delay_sum: u64,
    /// How many were taken from the queue after their deadline.
    pub misses: u64,
    /// Packets over the rate, which were sent as best effort.
    pub excess: u64,
    /// Their bytes on the wire.
    pub excess_bytes: u64,
    /// Packets that did not fit into the queue.
    pub drops: u64,
    /// How many were queued for 2^i up to 2^(i+1) ns.
    pub delay: Vec<u64>,
}

impl From<&types::channel_stats> for ChannelStats {
    fn from(s: &types::channel_stats) -> Self {
        ChannelStats {
            packets: s.packets,
            bytes: s.bytes,
            delay_max: s.delay_max,
            delay_sum: s.delay_sum,
            misses: s.misses,
            excess: s.excess,
            excess_bytes: s.excess_bytes,
            drops: s.drops,
            delay: s.delay.to_vec(),
        }
    }
}

/// What has become of a link's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Real-time packets that were sent.
    pub rt_packets: u64,
    /// Their bytes on the wire.
    pub rt_bytes: u64,
    /// Best-effort packets that were sent.
    pub be_packets: u64,
    /// Their bytes on the wire.
    pub be_bytes: u64,
    /// Real-time packets that did not fit into the queue.
    pub rt_drops: u64,
    /// Best-effort packets that did not fit into the queue.
    pub be_drops: u64,
    /// Packets of channels that exceeded the bound of all of them.
    pub capped: u64,
    /// Packets that were sent without deadlines, since nobody had said that he lives.
    pub fallback_packets: u64,
    /// How often that began.
    pub fallbacks: u64,
    /// Largest best-effort packet, bytes on the wire: the packet with the earliest deadline may have to wait for it.
    pub largest: u64,
    /// Real-time packets that are queued.
    pub rt_queued: u32,
    /// Best-effort packets that are queued.
    pub be_queued: u32,
}

impl From<&types::link_stats> for LinkStats {
    fn from(s: &types::link_stats) -> Self {
        LinkStats {
            rt_packets: s.rt_packets,
            rt_bytes: s.rt_bytes,
            be_packets: s.be_packets,
            be_bytes: s.be_bytes,
            rt_drops: s.rt_drops,
            be_drops: s.be_drops,
            capped: s.capped,
            fallback_packets: s.fallback_packets,
            fallbacks: s.fallbacks,
            largest: s.largest,
            rt_queued: s.rt_queued,
            be_queued: s.be_queued,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(addr: &str, prefix: u8, port: Option<u16>) -> End {
        End { addr: addr.parse().unwrap(), prefix, port }
    }

    fn channel(from: End, to: End) -> Channel {
        Channel {
            from,
            to,
            proto: Some(17),
            deadline: Duration::from_millis(3),
            rate: 2_000_000,
            burst: 3000,
        }
    }

    #[test]
    fn a_key_is_the_packet_under_the_mask() {
        let c = channel(end("10.1.2.3", 16, None), end("10.0.0.9", 32, Some(5060)));
        let (key, shape) = (c.key(7), c.shape());
        assert_eq!((key.link, key.version, key.proto), (7, 4, 17));
        assert_eq!(key.src[0].to_ne_bytes(), [10, 1, 0, 0]);
        assert_eq!(key.dst[0].to_ne_bytes(), [10, 0, 0, 9]);
        assert_eq!(key.dport.to_ne_bytes(), 5060u16.to_be_bytes());
        assert_eq!((key.sport, shape.sport, shape.dport, shape.ports), (0, 0, u16::MAX, 1));
        assert_eq!(shape.src[0].to_ne_bytes(), [255, 255, 0, 0]);
        assert_eq!(mask(33)[1].to_ne_bytes(), [0x80, 0, 0, 0]);
        assert_eq!((mask(0), mask(128)), ([0; 4], [u32::MAX; 4]));
    }

    #[test]
    fn shapes_are_counted_and_the_most_specific_is_first() {
        let wide = channel(end("10.0.0.0", 8, None), end("0.0.0.0", 0, None));
        let narrow = channel(end("10.0.0.1", 32, Some(1)), end("10.0.0.2", 32, Some(2)));
        let other = channel(end("10.9.0.0", 8, None), end("0.0.0.0", 0, None));
        let mut shapes = Shapes::default();
        for c in [&wide, &narrow, &other] {
            shapes.add(c).unwrap();
        }
        assert_eq!(
            shapes.0.iter().map(|(s, n)| (s.tag, *n)).collect::<Vec<_>>(),
            [(narrow.shape().tag, 1), (wide.shape().tag, 2)]
        );
        shapes.remove(&wide);
        shapes.remove(&narrow);
        assert_eq!(shapes.0.len(), 1);
        for prefix in 1..MAX_SHAPES as u8 {
            shapes.add(&channel(end("10.0.0.0", prefix + 8, None), end("0.0.0.0", 0, None))).unwrap();
        }
        let full = shapes.add(&channel(end("10.0.0.0", 32, None), end("0.0.0.0", 0, None))).unwrap_err();
        assert!(full.contains("16 kinds"), "{full}");
    }

    #[test]
    fn contradictions_are_refused() {
        let good = channel(end("10.0.0.1", 32, None), end("10.0.0.2", 32, None));
        assert_eq!(good.check(), Ok(()));
        for bad in [
            Channel { to: end("2001:db8::1", 128, None), ..good },
            Channel { from: end("10.0.0.1", 33, None), ..good },
            Channel { deadline: Duration::ZERO, ..good },
            Channel { rate: 0, ..good },
            Channel { rate: MAX_RATE + 1, ..good },
            Channel { burst: 0, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_bounds_are_those_of_the_kernel_half() {
        assert_eq!(types::link_settings::default().shape.len(), MAX_SHAPES);
        let object = super::super::open().unwrap();
        let channels = object.maps().find(|m| m.name() == "channels").unwrap();
        assert_eq!(channels.max_entries() as usize, MAX_CHANNELS);
    }
}
