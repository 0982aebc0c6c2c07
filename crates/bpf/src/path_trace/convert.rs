//! Converts records of the ring buffer into events of the model.
use super::EventWithPayload;
use super::types::{self, actor, delivery, point, record_type, role, thread_state, unknown, wake_context};
use teiji_model::event::{
    Delivery, DeviceInterrupt, Dropped, Event, EventKind, GroupRole, GuestEntry, Interrupt, Kick, Match,
    Packet, Point, Print, Role, Segment, Start, VcpuState, Wait, Waker, padded,
};
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::StreamId;

/// A record as an event; `None` if this version does not know its type.
pub(super) fn item(bytes: &[u8]) -> Option<EventWithPayload> {
    let head: types::rec_head = read(bytes)?;
    let mut payload = Vec::new();
    let kind = match record_type(head.r#type.into()) {
        record_type::REC_PACKET => {
            let r: types::rec_packet = read(bytes)?;
            EventKind::Packet(packet(&r)?)
        }
        record_type::REC_TAP => EventKind::Packet(tap(&read(bytes)?)?),
        record_type::REC_SIP => {
            let r: types::rec_tap = read(bytes)?;
            let at = std::mem::offset_of!(types::rec_sip, payload);
            let snap: u32 = read(bytes.get(std::mem::offset_of!(types::rec_sip, snap)..)?)?;
            payload = bytes.get(at..)?.get(..snap as usize)?.to_vec();
            EventKind::Packet(tap(&r)?)
        }
        record_type::REC_IRQ => {
            let r: types::rec_irq = read(bytes)?;
            EventKind::Interrupt(Interrupt {
                signalled: r.signalled,
                ifindex: head.ifindex,
                tid: r.tid,
                delivery: outcome(head.sub),
                vm: r.vm,
                vcpu: r.vcpu,
                index: known(r.index),
                vector: r.vector,
                state: state(r.state),
                clock: Split(r.clock),
            })
        }
        record_type::REC_ENTRY => {
            let r: types::rec_entry = read(bytes)?;
            EventKind::GuestEntry(GuestEntry {
                vm: r.vm,
                vcpu: r.vcpu,
                index: known(r.index).unwrap_or(u16::try_from(r.vcpu).unwrap_or(u16::MAX)),
                vector: r.vector,
                upto: r.upto,
                clock: Split(r.clock),
                preempted_by: r.preempted_by,
            })
        }
        record_type::REC_KICK => {
            let r: types::rec_kick = read(bytes)?;
            EventKind::Kick(Kick {
                ifindex: head.ifindex,
                queue: r.queue,
                vm: r.vm,
                vcpu: r.vcpu,
                clock: Split(r.clock),
                worker: state(r.worker_state).map(|_| Split(r.worker)),
                preempted_by: r.preempted_by,
            })
        }
        record_type::REC_DROP => {
            let r: types::rec_drop = read(bytes)?;
            let at = std::mem::offset_of!(types::rec_drop_sip, payload);
            if r.snap > 0 {
                payload = bytes.get(at..)?.get(..usize::from(r.snap))?.to_vec();
            }
            EventKind::Dropped(Dropped {
                fingerprint: r.packet.fingerprint,
                matching: matched(r.key, r.role, r.segment),
                ifindex: head.ifindex,
                tap: r.tap,
                why: r.why,
                unspecified: r.unspecified != 0,
                location: padded(&function(&r.location.map(|c| c as u8))),
            })
        }
        record_type::REC_PRINT => {
            let r: types::rec_print = read(bytes)?;
            EventKind::Print(Print { fingerprint: r.fingerprint, print: r.print })
        }
        record_type::REC_STATE => {
            let r: types::rec_state = read(bytes)?;
            EventKind::VcpuState(VcpuState {
                vm: r.vm,
                vcpu: r.vcpu,
                index: known(r.index),
                state: state(r.state)?,
                clock: Split(r.clock),
                preempted_by: r.preempted_by,
            })
        }
        record_type::REC_START => {
            let r: types::rec_start = read(bytes)?;
            EventKind::Start(Start {
                tid: r.tid,
                vm: r.vm,
                vcpu: (actor(head.sub.into()) == actor::ACTOR_VCPU).then_some(r.vcpu),
                left: r.left,
                slept: r.slept != 0,
                woken: (r.woken != 0).then_some(r.woken),
                waker: match wake_context(r.context.into()) {
                    wake_context::CONTEXT_THREAD => Waker::Thread(r.waker),
                    wake_context::CONTEXT_INTERRUPT => Waker::Interrupt,
                    _ => Waker::Unknown,
                },
                nth: r.nth,
            })
        }
        record_type::REC_DEVICE_IRQ => {
            let r: types::rec_device_irq = read(bytes)?;
            EventKind::DeviceInterrupt(DeviceInterrupt {
                began: r.began,
                irq: head.ifindex,
                delivery: outcome(head.sub),
                vm: r.vm,
                vcpu: r.vcpu,
                vector: r.vector,
                by_hardware: r.by_hardware != 0,
            })
        }
        record_type::REC_WAIT => {
            let r: types::rec_wait = read(bytes)?;
            EventKind::Wait(Wait {
                tid: r.tid,
                vm: r.vm,
                vcpu: (actor(head.sub.into()) == actor::ACTOR_VCPU).then_some(r.vcpu),
                state: state(r.state)?,
                clock: Split(r.clock),
                preempted_by: r.preempted_by,
            })
        }
        _ => return None,
    };
    Some(EventWithPayload {
        event: Event { ts: head.ts, stream: StreamId::HOST, cpu: head.cpu, kind },
        payload,
    })
}

fn packet(r: &types::rec_packet) -> Option<Packet> {
    Some(Packet {
        point: match point(r.head.sub.into()) {
            point::POINT_HOST_RX => Point::HostRx,
            point::POINT_TAP_ENQUEUE => Point::TapEnqueue,
            point::POINT_TAP_DEQUEUE => Point::TapDequeue,
            point::POINT_TAP_SEND => Point::TapSend,
            point::POINT_DEV_QUEUE => Point::DevQueue,
            point::POINT_QDISC_DEQUEUE => Point::QdiscDequeue,
            point::POINT_DEV_XMIT => Point::DevXmit,
            _ => return None,
        },
        fingerprint: r.fingerprint,
        matching: None,
        ifindex: r.head.ifindex,
        len: r.len,
        tid: r.tid,
        queue: None,
        depth: 0,
        worker: None,
        preempted_by: 0,
    })
}

fn tap(r: &types::rec_tap) -> Option<Packet> {
    Some(Packet {
        queue: known(r.queue).filter(|_| r.packet.head.sub == point::POINT_TAP_SEND.0 as u8),
        matching: matched(r.key, r.role, r.segment),
        depth: if r.packet.head.sub == point::POINT_TAP_DEQUEUE.0 as u8 { r.depth } else { r.segments },
        worker: state(r.worker_state).map(|_| Split(r.worker)),
        preempted_by: r.preempted_by,
        ..packet(&r.packet)?
    })
}

fn outcome(sub: u8) -> Delivery {
    match delivery(sub.into()) {
        delivery::DELIVERY_ACCEPTED => Delivery::Accepted,
        delivery::DELIVERY_POSTED => Delivery::Posted,
        delivery::DELIVERY_SUPPRESSED => Delivery::Suppressed,
        _ => Delivery::Unknown,
    }
}

/// A number of 16 bits; one value stands for none.
fn known(n: u16) -> Option<u16> {
    (u32::from(n) != unknown::NOT_KNOWN.0).then_some(n)
}

fn matched(key: u64, part: u8, segment: types::segment) -> Option<Match> {
    let part = match role(part.into()) {
        role::ROLE_EITHER => Role::Either,
        role::ROLE_REQUEST => Role::Request,
        role::ROLE_FINAL => Role::Final,
        role::ROLE_SEGMENT => {
            let types::segment { seq, ack, payload, flags, .. } = segment;
            return Some(Match::of_segment(key, Segment { seq, ack, payload, flags }));
        }
        _ => return None,
    };
    Some(Match { key, role: part, group: 0, group_role: GroupRole::Within })
}

/// The function's name in a symbol as the kernel prints it: `function.constprop.0+0x12/0x340 [module]`. Empty for an
/// address without a name.
fn function(symbol: &[u8]) -> String {
    let text = String::from_utf8_lossy(symbol);
    let name = text.split(['+', '.', ' ', '\0']).next().unwrap_or_default();
    if name.starts_with("0x") { String::new() } else { name.to_owned() }
}

fn state(s: u8) -> Option<ThreadState> {
    Some(match thread_state(s.into()) {
        thread_state::STATE_GUEST => ThreadState::Guest,
        thread_state::STATE_POLL => ThreadState::Poll,
        thread_state::STATE_ASLEEP => ThreadState::Asleep,
        thread_state::STATE_READY => ThreadState::Ready,
        thread_state::STATE_RUN => ThreadState::Run,
        _ => return None,
    })
}

/// The value at the start of `bytes`, if there are enough of them.
fn read<T: Copy>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: there are enough bytes, the read tolerates any alignment, and T is one of the generated
    // record types, all of whose members are integers: every bit pattern is a value.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_have_the_models_states() {
        assert_eq!(thread_state::STATES.0 as usize, ThreadState::COUNT);
        for s in ThreadState::ALL {
            assert_eq!(state(s as u8), Some(s));
        }
        assert_eq!(state(thread_state::STATE_UNKNOWN.0 as u8), None);
    }

    #[test]
    fn segments_have_the_models_flags() {
        use types::segment_flag as f;
        let of = [f::SEGMENT_FIN, f::SEGMENT_SYN, f::SEGMENT_RST, f::SEGMENT_ACK];
        let ports = [f::SEGMENT_PORT_OF_GUEST, f::SEGMENT_PORT_OF_OTHER];
        let model = [Segment::FIN, Segment::SYN, Segment::RST, Segment::ACK];
        assert_eq!(of.map(|flag| flag.0), model.map(u32::from));
        assert_eq!(ports.map(|flag| flag.0), [Segment::PORT_OF_GUEST, Segment::PORT_OF_OTHER].map(u32::from));
    }

    #[test]
    fn a_packet_has_the_depth_or_the_segments_of_its_point() {
        for (at, right) in [
            (point::POINT_TAP_ENQUEUE, (9, 9)),
            (point::POINT_TAP_DEQUEUE, (4, 1)),
            (point::POINT_TAP_SEND, (9, 9)),
        ] {
            let mut r = types::rec_tap { depth: 4, segments: 9, ..types::rec_tap::default() };
            r.packet.head.sub = at.0 as u8;
            let p = tap(&r).unwrap();
            assert_eq!((p.depth, p.segments()), right, "{:?}", p.point);
        }
    }

    #[test]
    fn a_functions_name_is_what_precedes_its_offset() {
        let name = |s: &str| function(s.as_bytes());
        assert_eq!(name("tun_net_xmit+0x1b2/0x3c0 [tun]\0\0"), "tun_net_xmit");
        assert_eq!(name("__netif_receive_skb_core.constprop.0+0x2/0x9"), "__netif_receive_skb_core");
        assert_eq!(name("0xffffffffc0a81234\0"), "");
        assert_eq!(name(""), "");
    }

    #[test]
    fn short_and_strange_records_are_none() {
        for n in 0..size_of::<types::rec_sip>() {
            for t in 0..=11u8 {
                let mut bytes = vec![0xff; n];
                if n > 11 {
                    bytes[10] = t;
                    bytes[11] = 0;
                }
                let _ = item(&bytes);
            }
        }
        assert!(item(&[0; 4]).is_none());
    }
}
