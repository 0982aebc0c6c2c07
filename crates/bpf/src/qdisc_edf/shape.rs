//! Converts channels to and from the form in which the kernel half looks them up.
//!
//! A *shape* is the set of fields that a channel compares: the prefix length of each address, which ports, and whether
//! the protocol. The kernel half looks a packet up once for each shape of the link's channels, the most specific first,
//! so the cost of a packet depends on the number of shapes and not on that of channels.
//!
//! A shape's tag describes all of it (except the IP version, which is stored beside it), so a channel can be read back
//! from what the kernel half uses.
use super::types;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use teiji_model::policy::Endpoint;
use teiji_model::qdisc::{Channel, MAX_SHAPES};

/// Bits of a tag: the prefix lengths are in the lowest two bytes.
const FROM_PORT: u32 = 1 << 16;
const TO_PORT: u32 = 1 << 17;
const PROTO: u32 = 1 << 18;
/// Set in every tag, so that none is 0.
const TAG: u32 = 1 << 31;

/// The packets of a channel, for each IP version that it applies to: the fields that are compared, and their values.
/// `generation` is the id of the link's settings.
///
/// # Errors
/// If the two endpoints have different IP versions, a prefix is longer than the address, or the address has bits
/// beyond its prefix.
pub(super) fn entries(
    channel: &Channel,
    generation: u32,
) -> Result<Vec<(types::shape, types::match_key)>, String> {
    let ends = [&channel.from, &channel.to];
    let widest = |e: &Endpoint| if e.address.is_ipv4() { 32 } else { 128 };
    if let Some(e) = ends.into_iter().flatten().find(|e| e.prefix > widest(e)) {
        return Err(format!("{}/{} has a prefix longer than {}", e.address, e.prefix, widest(e)));
    }
    // These bits would be missing when the channel is read back.
    let beyond = |e: &&Endpoint| (0..4).any(|i| words(e.address)[i] & !mask(e.prefix)[i] != 0);
    if let Some(e) = ends.into_iter().flatten().find(beyond) {
        return Err(format!("{}/{} has bits beyond its prefix, which have to be 0", e.address, e.prefix));
    }
    let versions: &[u8] = match ends.map(|e| e.as_ref().map(|e| e.address.is_ipv4())) {
        [Some(a), Some(b)] if a != b => {
            return Err("one end is IPv4 and the other IPv6; make it two channels".into());
        }
        [Some(v4), _] | [None, Some(v4)] => {
            if v4 {
                &[4]
            } else {
                &[6]
            }
        }
        [None, None] => &[4, 6],
    };
    Ok(versions
        .iter()
        .map(|v| {
            let shape = shape(channel, *v);
            (shape, key(channel, &shape, generation))
        })
        .collect())
}

fn shape(channel: &Channel, version: u8) -> types::shape {
    let prefix = |e: &Option<Endpoint>| e.as_ref().map_or(0, |e| e.prefix);
    let port = |e: &Option<Endpoint>| e.as_ref().is_some_and(|e| e.port.is_some());
    let mask16 = |there: bool| if there { u16::MAX } else { 0 };
    let (from, to) = (&channel.from, &channel.to);
    let flag = |there: bool, flag: u32| if there { flag } else { 0 };
    types::shape {
        tag: TAG
            | u32::from(prefix(from))
            | u32::from(prefix(to)) << 8
            | flag(port(from), FROM_PORT)
            | flag(port(to), TO_PORT)
            | flag(channel.proto.is_some(), PROTO),
        version,
        proto: if channel.proto.is_some() { u8::MAX } else { 0 },
        ports: u8::from(port(from) || port(to)),
        sport: mask16(port(from)),
        dport: mask16(port(to)),
        src: mask(prefix(from)),
        dst: mask(prefix(to)),
        ..Default::default()
    }
}

fn key(channel: &Channel, shape: &types::shape, link: u32) -> types::match_key {
    let masked = |e: &Option<Endpoint>, mask: [u32; 4]| {
        let words = e.as_ref().map_or([0; 4], |e| words(e.address));
        std::array::from_fn(|i| words[i] & mask[i])
    };
    let port = |e: &Option<Endpoint>| e.as_ref().and_then(|e| e.port).unwrap_or(0).to_be();
    types::match_key {
        link,
        shape: shape.tag,
        version: shape.version,
        proto: channel.proto.unwrap_or(0),
        sport: port(&channel.from),
        dport: port(&channel.to),
        src: masked(&channel.from, shape.src),
        dst: masked(&channel.to, shape.dst),
        ..Default::default()
    }
}

/// Sender, receiver and protocol that a key stands for.
pub(super) fn endpoints(key: &types::match_key) -> (Option<Endpoint>, Option<Endpoint>, Option<u8>) {
    let end = |prefix: u32, words: [u32; 4], flag: u32, port: u16| {
        let port = (key.shape & flag != 0).then(|| u16::from_be(port));
        let prefix = prefix as u8;
        (prefix > 0 || port.is_some()).then(|| Endpoint {
            address: address(words, key.version == 4),
            prefix,
            port,
        })
    };
    (
        end(key.shape & 0xff, key.src, FROM_PORT, key.sport),
        end(key.shape >> 8 & 0xff, key.dst, TO_PORT, key.dport),
        (key.shape & PROTO != 0).then_some(key.proto),
    )
}

/// The shapes of a link's channels, the most specific first.
#[derive(Default)]
pub(super) struct Shapes(Vec<types::shape>);

impl Shapes {
    /// Adds a shape if it is not there yet. The error says what is wrong if there are too many.
    pub(super) fn add(&mut self, shape: types::shape) -> Result<(), String> {
        if self.0.iter().any(|s| s.tag == shape.tag && s.version == shape.version) {
            return Ok(());
        }
        if self.0.len() == MAX_SHAPES {
            return Err(format!(
                "the link's channels have more than {MAX_SHAPES} kinds of ends (IP version, lengths of prefixes, with or \
                 without ports and protocol), which is the most; use one that others have"
            ));
        }
        self.0.push(shape);
        Ok(())
    }

    /// How many there are, and as the kernel half has them.
    pub(super) fn into_kernel(mut self) -> (u32, [types::shape; MAX_SHAPES]) {
        // The order of equally specific shapes does not depend on the order in which the channels were added.
        self.0.sort_by_key(|s| (std::cmp::Reverse(fields(s)), s.tag, s.version));
        let mut all = [types::shape::default(); MAX_SHAPES];
        all[..self.0.len()].copy_from_slice(&self.0);
        (self.0.len() as u32, all)
    }
}

/// How many bits a shape compares.
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

/// An address as it is laid out in a packet.
fn words(address: IpAddr) -> [u32; 4] {
    let mut octets = [0u8; 16];
    match address {
        IpAddr::V4(a) => octets[..4].copy_from_slice(&a.octets()),
        IpAddr::V6(a) => octets = a.octets(),
    }
    std::array::from_fn(|i| {
        u32::from_ne_bytes([octets[4 * i], octets[4 * i + 1], octets[4 * i + 2], octets[4 * i + 3]])
    })
}

/// The address with this layout in a packet.
fn address(words: [u32; 4], v4: bool) -> IpAddr {
    if v4 {
        return Ipv4Addr::from(words[0].to_ne_bytes()).into();
    }
    let mut octets = [0u8; 16];
    for (four, word) in octets.chunks_exact_mut(4).zip(words) {
        four.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: &str, prefix: u8, port: Option<u16>) -> Option<Endpoint> {
        Some(Endpoint { address: address.parse().unwrap(), prefix, port })
    }

    fn channel(from: Option<Endpoint>, to: Option<Endpoint>) -> Channel {
        Channel { from, to, proto: Some(17), deadline: 3_000_000, rate: 2_000_000, burst: 3000 }
    }

    #[test]
    fn a_key_is_the_packet_under_the_mask() {
        let c = channel(end("10.1.0.0", 16, None), end("10.0.0.9", 32, Some(5060)));
        let (shape, key) = entries(&c, 7).unwrap()[0];
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
    fn what_is_written_is_read_back() {
        let sides = [
            None,
            end("10.1.0.0", 16, None),
            end("10.0.0.9", 32, Some(5060)),
            end("0.0.0.0", 0, Some(1)),
            end("2001:db8::", 32, None),
            end("2001:db8::1", 128, Some(u16::MAX)),
            end("::", 0, Some(0)),
            end("128.0.0.0", 1, None),
            end("8000::", 33, None),
        ];
        let mut seen = 0;
        for from in &sides {
            for to in &sides {
                for proto in [None, Some(0), Some(17)] {
                    let c = Channel { proto, ..channel(from.clone(), to.clone()) };
                    let Ok(entries) = entries(&c, 1) else { continue };
                    assert_eq!(entries.len(), if from.is_none() && to.is_none() { 2 } else { 1 });
                    for (_, key) in entries {
                        assert_eq!(endpoints(&key), (from.clone(), to.clone(), proto));
                        seen += 1;
                    }
                }
            }
        }
        // 81 pairs, of which 32 mix versions; the one of nothing has two entries.
        assert_eq!(seen, (81 - 32 + 1) * 3);
    }

    #[test]
    fn shapes_are_kept_once_and_the_most_specific_is_first() {
        let shape_of = |c: &Channel| entries(c, 1).unwrap()[0].0;
        let wide = shape_of(&channel(end("10.0.0.0", 8, None), None));
        let narrow = shape_of(&channel(end("10.0.0.1", 32, Some(1)), end("10.0.0.2", 32, Some(2))));
        let mut shapes = Shapes::default();
        for s in [wide, narrow, wide] {
            shapes.add(s).unwrap();
        }
        let (n, all) = shapes.into_kernel();
        assert_eq!((n, all[0].tag, all[1].tag), (2, narrow.tag, wide.tag));
        let mut shapes = Shapes::default();
        for prefix in 1..=MAX_SHAPES as u8 {
            shapes.add(shape_of(&channel(end("0.0.0.0", prefix, None), None))).unwrap();
        }
        let full = shapes.add(wide).map(|()| "one that is there");
        assert_eq!(full, Ok("one that is there"));
        let full = shapes.add(narrow).unwrap_err();
        assert!(full.contains("16 kinds"), "{full}");
    }

    #[test]
    fn contradictions_are_refused() {
        let mixed = channel(end("10.0.0.1", 32, None), end("2001:db8::1", 128, None));
        assert!(entries(&mixed, 1).unwrap_err().contains("IPv6"));
        assert!(entries(&channel(end("10.0.0.1", 33, None), None), 1).unwrap_err().contains("longer"));
        assert!(entries(&channel(end("10.88.0.0", 9, None), None), 1).unwrap_err().contains("beyond"));
    }

    #[test]
    fn the_bounds_are_those_of_the_kernel_half() {
        assert_eq!(types::link_settings::default().shape.len(), MAX_SHAPES);
    }
}
