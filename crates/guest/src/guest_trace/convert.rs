//! Records of the kernel half as events.
use super::types::{self, guest_record_type as record};
use teiji_model::event::Role;
use teiji_model::guest::{Event, EventKind, Matched};

/// A record as an event; `None` if this version does not know its type.
///
/// The protocol forbids times that contradict each other. Where the kernel's are so (an interrupt came again while a probe
/// ran), they become "not known".
pub(super) fn event(bytes: &[u8]) -> Option<Event> {
    let head: types::guest_head = read(bytes)?;
    let not_later = |t: u64| if t <= head.ts { t } else { 0 };
    let print = head.print;
    let kind = match record(head.r#type.into()) {
        record::GUEST_RECEIVED => {
            let r: types::guest_received = read(bytes)?;
            EventKind::Received { print, interrupted: not_later(r.interrupted) }
        }
        record::GUEST_QUEUED => {
            let r: types::guest_queued = read(bytes)?;
            EventKind::Queued { print, backlog: r.backlog }
        }
        record::GUEST_READ => {
            let r: types::guest_read = read(bytes)?;
            let asleep = r.woken != 0 && r.woken <= r.running && r.running <= head.ts;
            EventKind::Read {
                print,
                tid: r.tid,
                woken: if asleep { r.woken } else { 0 },
                running: if asleep { r.running } else { 0 },
                woken_by: if asleep { r.woken_by } else { 0 },
            }
        }
        record::GUEST_SENT => {
            let r: types::guest_sent = read(bytes)?;
            let began = if r.tid == 0 { 0 } else { not_later(r.began) };
            EventKind::Sent { print, tid: r.tid, began }
        }
        record::GUEST_HANDED => EventKind::Handed { print },
        record::GUEST_THREAD => {
            let r: types::guest_thread = read(bytes)?;
            let started = not_later(r.started);
            EventKind::Thread {
                tid: Some(r.tid).filter(|tid| *tid != 0)?,
                process: r.process,
                parent: if started == 0 { 0 } else { r.parent },
                comm: r.comm.map(|c| c as u8),
                started,
            }
        }
        record::GUEST_MATCHED => {
            let r: types::guest_matched = read(bytes)?;
            let sent = r.sent != 0;
            let interrupted = if sent { 0 } else { not_later(r.interrupted) };
            let previous = r.previous.min(interrupted);
            let role = match types::role(r.role.into()) {
                types::role::ROLE_EITHER => Role::Either,
                types::role::ROLE_REQUEST => Role::Request,
                types::role::ROLE_FINAL => Role::Final,
                _ => return None,
            };
            EventKind::Matched(Matched {
                print,
                key: r.key,
                role,
                sent,
                interrupted,
                previous,
                own: interrupted != 0 && r.own != 0,
                vendor: r.vendor,
                device: r.device,
            })
        }
        _ => return None,
    };
    Some(Event { ts: head.ts, cpu: head.cpu, kind })
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
    use proptest::prelude::*;
    use teiji_model::guest::{Message, ToHost};

    proptest! {
        /// Whatever is in the buffer becomes an event that the protocol takes, or none.
        #[test]
        fn every_event_can_be_sent(mut bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0u8..9) {
            if let Some(at) = bytes.get_mut(18) {
                *at = kind;
            }
            if let Some(event) = event(&bytes) {
                prop_assert!(ToHost::Events(vec![event]).frame().is_ok(), "{event:?}");
            }
        }
    }
}
