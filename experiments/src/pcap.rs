//! Reads captures of `teiji-lab capture`, and pairs their requests with responses.
//!
//! teiji's pairing is checked against this one, so it shares no code with teiji: echoes are recognised by their whole
//! payload, ICMP by identifier and sequence number, SIP by the text of Call-ID and CSeq, DNS
//! by its id and the text of its question, TCP by the text of HTTP.

use anyhow::{Result, bail};
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

/// Bytes of the file header, of a record header, and of the LINUX_SLL2 header in a record.
const FILE: usize = 24;
const RECORD: usize = 16;
const SLL2: usize = 20;
/// `sll_pkttype` of a packet that this machine sent.
const OUTGOING: u8 = 4;

/// A captured IPv4 packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Time stamp, ns of CLOCK_REALTIME.
    pub ts: u64,
    /// Whether it left through the interface (otherwise it came in).
    pub out: bool,
    /// Source address.
    pub from: Ipv4Addr,
    /// Destination address.
    pub to: Ipv4Addr,
    /// IP protocol.
    pub proto: u8,
    /// The data after the IP header, as far as captured.
    pub data: &'a [u8],
    /// How many bytes that is in whole.
    pub len: usize,
}

/// How requests and responses are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// UDP; the response repeats the request's payload.
    Udp,
    /// ICMP echo.
    Icmp,
    /// SIP over UDP.
    Sip,
    /// DNS over UDP.
    Dns,
    /// UDP; the response repeats some bytes of the request's payload.
    Key {
        /// How many bytes precede them.
        offset: usize,
        /// How many they are.
        len: usize,
    },
    /// HTTP over TCP; the response repeats the request's path in a header `X-Request`.
    Http,
}

/// An answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Identifies the exchange: the same in every capture.
    pub id: u64,
    /// Time of the request, ns of CLOCK_REALTIME.
    pub start: u64,
    /// Time from the request to its response, ns.
    pub total: u64,
}

/// The requests of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Answered requests, by start time.
    pub exchanges: Vec<Exchange>,
    /// Requests captured, each counted once.
    pub requests: usize,
    /// Requests captured again.
    pub repeated: usize,
}

/// Where a capture was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// On an interface where requests enter the host: the uplink.
    Uplink,
    /// On an interface where requests leave toward the guest: its tap, or the other end of the wire.
    Downlink,
}

/// The IPv4 packets of a capture.
///
/// # Errors
/// If the file is not a capture by that tool.
pub fn packets(file: &[u8]) -> Result<Vec<Seen<'_>>> {
    let word =
        |b: &[u8], at: usize| b.get(at..at + 4).and_then(|w| w.try_into().ok()).map_or(0, u32::from_le_bytes);
    if file.len() < FILE || word(file, 0) != 0xa1b2_3c4d || word(file, 20) != 276 {
        bail!("this is not a nanosecond pcap of LINUX_SLL2 packets");
    }
    let mut seen = Vec::new();
    let mut rest = &file[FILE..];
    while rest.len() >= RECORD {
        let (seconds, ns, kept) = (word(rest, 0), word(rest, 4), word(rest, 8) as usize);
        let Some(record) = rest.get(RECORD..RECORD + kept) else { bail!("the capture is cut off") };
        rest = &rest[RECORD + kept..];
        let Some((head, ip)) = record.split_at_checked(SLL2) else { continue };
        if head[..2] != [8, 0] || ip.len() < 20 || ip[0] >> 4 != 4 {
            continue;
        }
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        let header = usize::from(ip[0] & 15) * 4;
        let Some(data) = ip.get(header..) else { continue };
        seen.push(Seen {
            ts: u64::from(seconds) * 1_000_000_000 + u64::from(ns),
            out: head[10] == OUTGOING,
            from: address(12),
            to: address(16),
            proto: ip[9],
            data,
            len: usize::from(u16::from_be_bytes([ip[2], ip[3]])).saturating_sub(header),
        });
    }
    Ok(seen)
}

/// Pairs requests to `guest` with their responses. The time is from the first packet of the request to the first packet
/// of the final response.
pub fn pair(packets: &[Seen<'_>], guest: Ipv4Addr, by: Pairing, side: Side) -> Pairs {
    let mut open: HashMap<Vec<u8>, Option<u64>> = HashMap::new();
    let mut found = Pairs::default();
    for p in packets {
        let leaves_by_this = p.out == (side == Side::Downlink);
        let toward = leaves_by_this && p.to == guest;
        let back = !leaves_by_this && p.from == guest;
        let Some((key, is_request)) = key(p, by) else { continue };
        if toward && is_request != Some(false) {
            match open.entry(key) {
                Entry::Occupied(_) => found.repeated += 1,
                Entry::Vacant(new) => {
                    new.insert(Some(p.ts));
                    found.requests += 1;
                }
            }
        } else if back
            && is_request != Some(true)
            && let Some(start) = open.get_mut(&key).and_then(Option::take)
        {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            found.exchanges.push(Exchange { id: hasher.finish(), start, total: p.ts.saturating_sub(start) });
        }
    }
    found.exchanges.sort_by_key(|e| e.start);
    found
}

/// A SIP call that was answered and ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSeen {
    /// Its Call-ID.
    pub call: String,
    /// Time of its first INVITE, ns of CLOCK_REALTIME.
    pub start: u64,
    /// Time from then to the first final response to its BYE, ns.
    pub total: u64,
}

/// The calls to `guest`, by start time.
pub fn calls(packets: &[Seen<'_>], guest: Ipv4Addr, side: Side) -> Vec<CallSeen> {
    let mut begun: HashMap<String, u64> = HashMap::new();
    let mut ended: HashMap<String, u64> = HashMap::new();
    for p in packets.iter().filter(|p| p.proto == 17) {
        let Some((key, is_request)) = p.data.get(8..).and_then(sip) else { continue };
        let text = String::from_utf8_lossy(&key);
        let Some((call, cseq)) = text.split_once(' ') else { continue };
        let leaves_by_this = p.out == (side == Side::Downlink);
        let toward = leaves_by_this && p.to == guest && is_request == Some(true);
        let back = !leaves_by_this && p.from == guest && is_request == Some(false);
        if toward && cseq.ends_with("INVITE") {
            begun.entry(call.to_owned()).or_insert(p.ts);
        } else if back && cseq.ends_with("BYE") {
            ended.entry(call.to_owned()).or_insert(p.ts);
        }
    }
    let both = |(call, start): (String, u64)| {
        let total = ended.get(&call)?.saturating_sub(start);
        Some(CallSeen { call, start, total })
    };
    let mut calls: Vec<_> = begun.into_iter().filter_map(both).collect();
    calls.sort_by_key(|call| call.start);
    calls
}

/// The key that pairs this packet, and whether it is a request if the protocol tells.
fn key(p: &Seen<'_>, by: Pairing) -> Option<(Vec<u8>, Option<bool>)> {
    match by {
        Pairing::Udp if p.proto == 17 => Some((p.data.get(8..)?.to_vec(), None)),
        Pairing::Icmp if p.proto == 1 => {
            let kind = *p.data.first()?;
            matches!(kind, 0 | 8).then_some(())?;
            Some((p.data.get(4..8)?.to_vec(), Some(kind == 8)))
        }
        Pairing::Sip if p.proto == 17 => sip(p.data.get(8..)?),
        Pairing::Dns if p.proto == 17 => dns(p.data),
        Pairing::Http if p.proto == 6 => http(p.data),
        Pairing::Key { offset, len } if p.proto == 17 => {
            let mut ports = [p.data.get(..2)?, p.data.get(2..4)?];
            ports.sort();
            Some(([ports.concat(), p.data.get(8 + offset..8 + offset + len)?.to_vec()].concat(), None))
        }
        _ => None,
    }
}

fn sip(message: &[u8]) -> Option<(Vec<u8>, Option<bool>)> {
    let text = String::from_utf8_lossy(message);
    let (mut lines, mut call, mut cseq) = (text.split("\r\n"), None, None);
    let first = lines.next()?;
    for line in lines.take_while(|l| !l.is_empty()) {
        if let Some(v) = line.strip_prefix("Call-ID:") {
            call = Some(v.trim().to_owned());
        } else if let Some(v) = line.strip_prefix("CSeq:") {
            cseq = Some(v.trim().to_owned());
        }
    }
    let (call, cseq) = (call?, cseq?);
    let response = first.strip_prefix("SIP/2.0 ");
    if cseq.ends_with("ACK") || response.is_some_and(|r| r.starts_with('1')) {
        return None;
    }
    Some((format!("{call} {cseq}").into_bytes(), Some(response.is_none())))
}

/// The message of a datagram: its client's port, id and question as text.
fn dns(datagram: &[u8]) -> Option<(Vec<u8>, Option<bool>)> {
    let (head, message) = datagram.split_at_checked(8)?;
    let (header, mut rest) = message.split_at_checked(12)?;
    let response = header[2] & 0x80 != 0;
    let client = if response { &head[2..4] } else { &head[..2] };
    let mut text = format!("{client:?} {:?}", &header[..2]);
    loop {
        let (length, after) = rest.split_first()?;
        let (label, after) = after.split_at_checked(usize::from(*length))?;
        rest = after;
        if label.is_empty() {
            break;
        }
        text += &format!(".{}", String::from_utf8_lossy(label).to_lowercase());
    }
    text += &format!(" {:?}", rest.get(..4)?);
    Some((text.into_bytes(), Some(!response)))
}

/// The head of a message, if a segment begins with it: its client's port, and the request's path.
fn http(segment: &[u8]) -> Option<(Vec<u8>, Option<bool>)> {
    let header = usize::from(*segment.get(12)? >> 4) * 4;
    let text = String::from_utf8_lossy(segment.get(header..)?);
    let mut lines = text.split("\r\n");
    let first = lines.next()?;
    let (path, port, is_request) = if first.starts_with("HTTP/1.1 ") {
        (lines.find_map(|line| line.strip_prefix("X-Request: "))?, &segment[2..4], false)
    } else {
        let path = first.strip_suffix(" HTTP/1.1")?.split_once(' ')?.1;
        (path, &segment[..2], true)
    };
    Some((format!("{port:?} {path}").into_bytes(), Some(is_request)))
}

/// Segments of TCP with data that are not where the ones before them on their connection have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutOfOrder {
    /// They begin before that: sent again, or overtaken by others.
    pub behind: u64,
    /// They begin after that: others are lost, or come later.
    pub ahead: u64,
}

/// How many segments to `to` are out of order.
pub fn out_of_order(packets: &[Seen<'_>], to: Ipv4Addr) -> OutOfOrder {
    let mut ends: HashMap<&[u8], u32> = HashMap::new();
    let mut found = OutOfOrder::default();
    for p in packets.iter().filter(|p| p.proto == 6 && p.to == to) {
        let (Some(ports), Some(sequence), Some([offset, flags])) =
            (p.data.get(..4), p.data.get(4..8), p.data.get(12..14))
        else {
            continue;
        };
        const SYN: u8 = 0x02;
        if flags & SYN != 0 {
            ends.remove(ports); // The ports are used again.
        }
        let begin = u32::from_be_bytes(sequence.try_into().unwrap_or_default());
        let payload = p.len.saturating_sub(usize::from(*offset >> 4) * 4) as u32;
        if payload == 0 {
            continue;
        }
        let end = ends.entry(ports).or_insert(begin);
        // Modulo 2^32.
        let from = begin.wrapping_sub(*end).cast_signed();
        found.behind += u64::from(from < 0);
        found.ahead += u64::from(from > 0);
        if from.saturating_add_unsigned(payload) > 0 {
            *end = begin.wrapping_add(payload);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn seen(ts: u64, out: bool, proto: u8, data: &[u8]) -> Seen<'_> {
        let (from, to) = if out { (GUEST, PEER) } else { (PEER, GUEST) };
        Seen { ts, out, from, to, proto, data, len: data.len() }
    }

    fn times(pairs: &Pairs) -> Vec<(u64, u64)> {
        pairs.exchanges.iter().map(|e| (e.start, e.total)).collect()
    }

    #[test]
    fn a_call_lasts_from_its_first_invite_to_the_response_to_its_bye() {
        let message = |first: &str, cseq: &str| {
            let mut udp = vec![0; 8];
            udp.extend(format!("{first}\r\nCall-ID: c1@peer\r\nCSeq: {cseq}\r\n\r\n").into_bytes());
            udp
        };
        let [invite, ok, bye] =
            [("INVITE a SIP/2.0", "1 INVITE"), ("SIP/2.0 200 OK", "1 INVITE"), ("BYE a SIP/2.0", "2 BYE")]
                .map(|(first, cseq)| message(first, cseq));
        let ended = message("SIP/2.0 200 OK", "2 BYE");
        // On the downlink requests go out; the INVITE is sent again.
        let to = |ts, data| Seen { from: PEER, to: GUEST, ..seen(ts, true, 17, data) };
        let back = |ts, data| Seen { from: GUEST, to: PEER, ..seen(ts, false, 17, data) };
        let all = [to(10, &invite), to(20, &invite), back(30, &ok), to(40, &bye), back(55, &ended)];
        let found = calls(&all, GUEST, Side::Downlink);
        assert_eq!(found, [CallSeen { call: "c1@peer".into(), start: 10, total: 45 }]);
        assert_eq!(calls(&all[..4], GUEST, Side::Downlink), []);
    }

    #[test]
    fn the_tool_s_files_are_read() {
        let mut file = Vec::new();
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 148, 276, 5, 6, 20 + 28, 20 + 28] {
            file.extend(word.to_le_bytes());
        }
        let mut sll2 = [0; SLL2];
        sll2[0] = 8;
        sll2[10] = OUTGOING;
        file.extend(sll2);
        let mut ip = [0; 20];
        (ip[0], ip[2], ip[9], ip[12], ip[19]) = (0x45, 4, 17, 10, 9);
        file.extend(ip);
        file.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let found = packets(&file).unwrap();
        assert_eq!((found[0].ts, found[0].out, found[0].data.len()), (5_000_000_006, true, 8));
        assert_eq!(found[0].len, 1024 - 20);
        assert_eq!((found[0].from, found[0].to), (Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(0, 0, 0, 9)));
        assert!(packets(&file[..file.len() - 1]).is_err());
        assert!(packets(b"GIF89a").is_err());
    }

    #[test]
    fn echoes_are_paired_once() {
        let (a, b) = (*b"\0\0\0\0\0\0\0\0aa", *b"\0\0\0\0\0\0\0\0bb");
        let trace = [
            seen(1, false, 17, &a),
            seen(2, false, 17, &b),
            seen(4, false, 17, &a),
            seen(5, true, 17, &a),
            seen(6, true, 17, &a),
        ];
        let pairs = pair(&trace, GUEST, Pairing::Udp, Side::Uplink);
        assert_eq!(times(&pairs), [(1, 4)]);
        assert_eq!((pairs.requests, pairs.repeated), (2, 1));
    }

    #[test]
    fn icmp_is_paired_by_sequence() {
        let (q, r) = ([8, 0, 9, 9, 0, 1, 0, 7], [0, 0, 1, 1, 0, 1, 0, 7]);
        let other = [0, 0, 1, 1, 0, 1, 0, 8];
        let trace = [seen(1, false, 1, &q), seen(2, true, 1, &other), seen(9, true, 1, &r)];
        let pairs = pair(&trace, GUEST, Pairing::Icmp, Side::Uplink);
        assert_eq!(times(&pairs), [(1, 8)]);
        // On the guest's tap requests leave and responses come in.
        let tap = trace.map(|p| Seen { out: !p.out, ..p });
        assert_eq!(pair(&tap, GUEST, Pairing::Icmp, Side::Downlink), pairs);
        assert_eq!(pair(&tap, GUEST, Pairing::Icmp, Side::Uplink), Pairs::default());
    }

    #[test]
    fn dns_is_paired_by_id_and_question() {
        let say = |ports: [u8; 4], id: u8, qr: u8, name: &[u8]| {
            let head = [&ports[..], &[0, 0, 0, 0, 9, id, qr, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
            [&head, name, &[0, 0, 1, 0, 1]].concat()
        };
        let (to, from) = ([7, 7, 0, 53], [0, 53, 7, 7]);
        let (asked, other) = (say(to, 1, 1, b"\x01A\x02bc"), say(to, 2, 1, b"\x01a"));
        let wrong_name = say(from, 1, 0x81, b"\x01a");
        let wrong_port = say([0, 53, 7, 8], 2, 0x81, b"\x01a");
        let answer = say(from, 1, 0x81, b"\x01a\x02BC");
        let trace = [
            seen(1, false, 17, &asked),
            seen(2, false, 17, &other),
            seen(3, false, 17, &asked),
            seen(4, true, 17, &wrong_name),
            seen(5, true, 17, &wrong_port),
            seen(6, true, 17, &answer),
            seen(9, true, 17, b"cut off"),
        ];
        let pairs = pair(&trace, GUEST, Pairing::Dns, Side::Uplink);
        assert_eq!(times(&pairs), [(1, 5)]);
        assert_eq!((pairs.requests, pairs.repeated), (2, 1));
    }

    #[test]
    fn http_is_paired_by_its_path() {
        let say = |ports: [u8; 4], text: &str| {
            let head = [&ports[..], &[9; 8], &[0x60, 0x18], &[7; 10]].concat();
            [&head, text.as_bytes()].concat()
        };
        let (to, from) = ([7, 7, 0, 80], [0, 80, 7, 7]);
        let asked = say(to, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
        let other = say(to, "POST /2 HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = |path| format!("HTTP/1.1 200 OK\r\nServer: b\r\nX-Request: {path}\r\n\r\nbody");
        let (wrong_port, body) = (say([0, 80, 7, 8], &answer("/1")), say(to, "more"));
        let (right, wrong_path) = (say(from, &answer("/1")), say(from, &answer("/3")));
        let trace = [
            seen(1, false, 6, &asked),
            seen(2, false, 6, &other),
            seen(3, false, 6, &body),
            seen(4, false, 6, &asked),
            seen(5, true, 6, &wrong_port),
            seen(6, true, 6, &wrong_path),
            seen(7, true, 6, &right),
            seen(9, true, 6, b"cut off"),
        ];
        let pairs = pair(&trace, GUEST, Pairing::Http, Side::Uplink);
        assert_eq!(times(&pairs), [(1, 6)]);
        assert_eq!((pairs.requests, pairs.repeated), (2, 1));
    }

    #[test]
    fn segments_that_are_out_of_order_are_counted() {
        let segment = |port: u8, sequence: u32, payload: usize| {
            let head =
                [&[0, port, 0, 80], &sequence.to_be_bytes()[..], &[0; 4], &[0x50, 0x18], &[0; 6]].concat();
            [head, vec![b'x'; payload]].concat()
        };
        let opens = |port, sequence| {
            let mut syn = segment(port, sequence, 0);
            syn[13] = 0x02;
            syn
        };
        // The last byte of a sequence, then the first one; at the end another connection with the same ports.
        let all = [
            segment(1, u32::MAX, 1),
            segment(1, 0, 10),
            segment(2, 5, 10),
            segment(1, 10, 0),
            segment(1, 0, 10),
            segment(1, u32::MAX, 11),
            segment(1, 10, 5),
            opens(1, 3),
            segment(1, 4, 5),
            // One that overtakes another; then one that repeats a part of what was there.
            segment(2, 25, 10),
            segment(2, 15, 10),
            segment(2, 30, 10),
            segment(2, 40, 1),
        ];
        let packets: Vec<_> = all.iter().map(|data| seen(1, false, 6, data)).collect();
        assert_eq!(out_of_order(&packets, GUEST), OutOfOrder { behind: 4, ahead: 1 });
        assert_eq!(out_of_order(&packets, PEER), OutOfOrder::default());
    }

    #[test]
    fn sip_is_paired_by_its_final_response() {
        let say = |first: &str, cseq: &str| {
            format!("--------{first}\r\nVia: x\r\nCall-ID: 7@h\r\nCSeq: {cseq}\r\n\r\n").into_bytes()
        };
        let invite = say("INVITE sip:a@b SIP/2.0", "1 INVITE");
        let (ringing, ok) = (say("SIP/2.0 180 Ringing", "1 INVITE"), say("SIP/2.0 200 OK", "1 INVITE"));
        let (ack, bye) = (say("ACK sip:a@b SIP/2.0", "1 ACK"), say("BYE sip:a@b SIP/2.0", "2 BYE"));
        let gone = say("SIP/2.0 200 OK", "2 BYE");
        let trace = [
            seen(1, false, 17, &invite),
            seen(3, true, 17, &ringing),
            seen(4, true, 17, &ok),
            seen(5, false, 17, &ack),
            seen(6, false, 17, &bye),
            seen(9, true, 17, &gone),
        ];
        let pairs = pair(&trace, GUEST, Pairing::Sip, Side::Uplink);
        assert_eq!(times(&pairs), [(1, 3), (6, 3)]);
        assert_ne!(pairs.exchanges[0].id, pairs.exchanges[1].id);
    }
}
