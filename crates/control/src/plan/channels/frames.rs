//! The largest packet that comes to a link's queue unsplit: what a deadline may have to wait for.
//!
//! A TCP stack hands over segments of up to 64 KiB that only the NIC splits (GSO), and a queue cannot. Those of the
//! host's own stack are bounded by the device's `gso_max_size`, those of guests by nothing that the host can set.

use super::super::names::shown;
use super::super::{Draft, Host, Noted, steps};
use teiji_model::plan::ObservedLink;
use teiji_model::policy::{At, LinkPolicy};
use teiji_model::queue::frame::{self, HEADER, TAG, full};
use teiji_model::resource::{Resource, Value};

/// Largest segment, bytes of IP packet, unless somebody has raised it: the kernel's `GSO_LEGACY_MAX_SIZE`.
const SEGMENT: u32 = 65_536;
/// Sizes that segments are reduced to.
const SMALLER: [u32; 4] = [32_768, 16_384, 8192, 4096];

/// The largest packet that comes to a link's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Largest {
    /// Bytes of the frame, before anything splits it.
    pub frame: u32,
    /// `gso_max_size` that makes it so; `None` if it is not to be set.
    pub segment: Option<u32>,
    /// Why it is so large, for whom it is too large; empty if that was written.
    pub why: String,
}

impl Largest {
    /// Bytes that it takes on the wire, without the overhead of its last frame.
    pub fn on_wire(&self, mtu: u32) -> u32 {
        frame::on_wire(self.frame, mtu)
    }
}

/// What may be, the largest first; never empty. Where there are several, the host's own stack can be kept to each.
/// Warns of what cannot be kept to them.
///
/// # Errors
/// If `max_packet` is less than what the device's MTU allows, which is noted.
pub(super) fn choices(
    device: &ObservedLink,
    section: Option<&LinkPolicy>,
    host: Host<'_>,
    draft: &mut Draft,
) -> Result<Vec<Largest>, Noted> {
    let (name, mtu) = (shown(&device.name), device.mtu);
    let setting = Resource::SegmentSize(device.device());
    // What it is without teiji, so that a choice does not depend on those before it.
    let own = match steps::unwanted(&setting, host.observed, host.held) {
        Some(Value::Bytes(bytes)) => Ok(*bytes),
        _ => Err(format!("{setting} cannot be read ({})", super::super::reason(&setting, host.observed))),
    };
    if let Some(At { value: most, place }) = section.and_then(|s| s.max_packet.as_ref()) {
        let frame = mtu.saturating_add(HEADER);
        if *most < frame {
            let message = format!(
                "`max_packet` is less than the {frame} bytes of a frame of {name}'s MTU: write \"{frame}b\" or more, \
                 or make the MTU smaller first"
            );
            draft.problem(place, message);
            return Err(Noted);
        }
        if *most < two(mtu).saturating_add(HEADER) {
            draft.warnings.push(format!(
                "TCP of this host makes packets of two frames, more than {name}'s `max_packet`: `ip link set dev \
                 {name} gso_max_segs 1` keeps it from that"
            ));
        }
        if let Err(why) = &own {
            draft
                .warnings
                .push(format!("{why}, so this host's own TCP is not kept to {name}'s `max_packet`"));
        }
        let segment = own.ok().map(|own| own.min((most - HEADER).max(mtu)));
        return Ok(vec![Largest { frame: *most, segment, why: String::new() }]);
    }
    if device.guests {
        let why = format!(
            "guests hand over packets of up to 64 KiB by {name}, which the queue cannot split: turn host_tso4, \
             host_tso6, host_ufo and gso of their NICs off and write `max_packet`, and shorter delays are guaranteed"
        );
        draft.warnings.push(why.clone());
        let segment = own.ok().map(|own| own.min(SEGMENT));
        return Ok(vec![Largest { frame: full(mtu).max(SEGMENT + HEADER), segment, why }]);
    }
    let framed = |segment: u32| segment.saturating_add(HEADER + TAG);
    let own = match own {
        Ok(own) => own,
        Err(why) => {
            let why = format!("{why}, so segments of 64 KiB are allowed for");
            draft.warnings.push(why.clone());
            return Ok(vec![Largest { frame: framed(SEGMENT), segment: None, why }]);
        }
    };
    let least = two(mtu);
    let smaller = SMALLER.into_iter().chain([least]).filter(|size| (least..own).contains(size));
    let largest = |size: u32| {
        let why = format!("the host's own TCP hands over segments of up to {size} bytes");
        Largest { frame: framed(size.max(least)), segment: Some(size), why }
    };
    Ok(std::iter::once(own).chain(smaller).map(largest).collect())
}

/// The least that segments can be kept to, bytes of IP packet: TCP puts two frames of the MTU into one, whatever
/// `gso_max_size` is (`tcp_tso_autosize()`, net/ipv4/tcp_output.c; `net.ipv4.tcp_min_tso_segs`).
fn two(mtu: u32) -> u32 {
    mtu.saturating_mul(2)
}
