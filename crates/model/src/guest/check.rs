//! Limits on what a message may have. Decoding checks types; this checks sizes and consistency, so that those who use a
//! message need not.

use super::{Event, EventKind, Hello, Lost, Missing, Pong, Refused, Welcome};
use crate::recording::check_flow;
use serde::Deserializer;
use serde::de::{Error as _, SeqAccess, Visitor};

/// Longest name, bytes.
const MAX_NAME: usize = 64;
/// Longest text, bytes.
const MAX_TEXT: usize = 1024;
/// Longest text of a filter, bytes.
const MAX_FLOW: usize = 4096;

type Checked = Result<(), &'static str>;

fn ensure(right: bool, what: &'static str) -> Checked {
    if right { Ok(()) } else { Err(what) }
}

pub(super) fn hello(h: &Hello) -> Checked {
    ensure(h.watch.flow_text.len() <= MAX_FLOW, "a filter longer than 4096 bytes")?;
    check_flow(&h.watch.flow)
}

pub(super) fn welcome(w: &Welcome) -> Checked {
    ensure(w.teiji.len() <= MAX_NAME && w.kernel.len() <= MAX_NAME, "a name longer than 64 bytes")?;
    ensure(w.missing.len() <= Welcome::MAX_MISSING, "more than 64 missing hooks")?;
    for m in &w.missing {
        ensure(m.hook.len() <= MAX_NAME, "a name longer than 64 bytes")?;
        ensure(m.without.len() <= MAX_TEXT, "a text longer than 1024 bytes")?;
    }
    Ok(())
}

pub(super) fn pong(p: &Pong) -> Checked {
    ensure(p.tsc_before <= p.tsc_after, "a clock that was read before it was read")
}

pub(super) fn lost(l: &Lost) -> Checked {
    ensure(l.since <= l.until, "a loss that ends before it begins")
}

pub(super) fn refused(r: &Refused) -> Checked {
    ensure(r.text.len() <= MAX_TEXT, "a text longer than 1024 bytes")
}

pub(super) fn event(e: &Event) -> Checked {
    let right = match e.kind {
        EventKind::Received { interrupted, .. } => interrupted <= e.ts,
        EventKind::Queued { .. } | EventKind::Handed { .. } => true,
        EventKind::Read { woken, running, .. } => {
            woken <= running && running <= e.ts && (woken == 0) == (running == 0)
        }
        EventKind::Sent { tid, began, .. } => began <= e.ts && (began == 0 || tid != 0),
        EventKind::Thread { tid, started, parent, .. } => {
            tid != 0 && started <= e.ts && (started != 0 || parent == 0)
        }
        EventKind::Matched(m) => {
            m.interrupted <= e.ts
                && m.previous <= m.interrupted
                && (!m.own || m.interrupted != 0)
                && (!m.sent || m.interrupted == 0)
        }
    };
    ensure(right, "an event whose parts contradict each other")
}

/// Reads the list without taking memory by its claimed length.
pub(super) fn missing<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Missing>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<Missing>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {} missing hooks", Welcome::MAX_MISSING)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut list = Vec::new();
            while let Some(next) = all.next_element()? {
                if list.len() == Welcome::MAX_MISSING {
                    return Err(A::Error::custom("too many"));
                }
                list.push(next);
            }
            Ok(list)
        }
    }
    from.deserialize_seq(List)
}
