//! The largest packet that enters a link's queue before it is split: a packet with a deadline may have to wait for one.
//!
//! A TCP stack hands over segments of up to 64 KiB (GSO), which only the NIC splits, not a queue. The device's
//! `gso_max_size` limits those of the host's own stack; nothing on the host limits those of guests.

use super::super::names::shown;
use super::super::{Draft, ErrorReported, HostAndHeld, steps};
use teiji_model::observed::ObservedLink;
use teiji_model::operator::one_frame_per_packet;
use teiji_model::policy::{LinkPolicy, Located};
use teiji_model::qdisc::frame::{self, HEADER, TAG, full};
use teiji_model::resource::{Resource, Value};

/// The largest segment, bytes of the IP packet, unless somebody has raised it: the kernel's `GSO_LEGACY_MAX_SIZE`.
const SEGMENT: u32 = 65_536;
/// Sizes to which segments may be reduced.
const SMALLER: [u32; 4] = [32_768, 16_384, 8192, 4096];

/// The largest packet that enters a link's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Largest {
    /// Bytes of the frame, before it is split.
    pub frame: u32,
    /// The `gso_max_size` that limits it; `None` if teiji does not set that.
    pub segment: Option<u32>,
    /// Why it is so large, for people who need a smaller one; empty if the policy sets it.
    pub why: String,
}

impl Largest {
    /// Bytes that it takes on the wire, without the overhead of its last frame.
    pub fn on_wire(&self, mtu: u32) -> u32 {
        frame::on_wire(self.frame, mtu)
    }
}

/// The possible sizes, largest first; never empty. If there are several, the host's own stack can be limited to each.
/// Warns of packets that cannot be limited.
///
/// # Errors
/// If `max_packet` is less than what the device's MTU allows; the problem is recorded.
pub(super) fn choices(
    device: &ObservedLink,
    section: Option<&LinkPolicy>,
    host: HostAndHeld<'_>,
    draft: &mut Draft,
) -> Result<Vec<Largest>, ErrorReported> {
    let (name, mtu) = (shown(&device.name), device.mtu);
    let setting = Resource::SegmentSize(device.device());
    // The value without teiji, so that a choice does not depend on earlier ones.
    let own = match steps::unwanted(&setting, host) {
        Some(Value::Bytes(bytes)) => Ok(*bytes),
        _ => Err(format!("{setting} cannot be read ({})", super::super::reason(&setting, host.observed))),
    };
    if let Some(Located { value: most, location }) = section.and_then(|s| s.max_packet.as_ref()) {
        let frame = mtu.saturating_add(HEADER);
        if *most < frame {
            let message = format!(
                "`max_packet` is less than the {frame} bytes of a frame of {name}'s MTU: write \"{frame}b\" or more, \
                 or make the MTU smaller first"
            );
            draft.problem(location, message);
            return Err(ErrorReported);
        }
        if *most < two(mtu).saturating_add(HEADER) {
            draft.warnings.push(format!(
                "TCP of this host makes packets of two frames, more than {name}'s `max_packet`: {} prevents that",
                one_frame_per_packet(&device.name)
            ));
        }
        if let Err(why) = &own {
            draft
                .warnings
                .push(format!("{why}, so this host's own TCP is not limited to {name}'s `max_packet`"));
        }
        let segment = own.ok().map(|own| own.min((most - HEADER).max(mtu)));
        return Ok(vec![Largest { frame: *most, segment, why: String::new() }]);
    }
    if device.guests {
        let why = format!(
            "guests send packets of up to 64 KiB by {name}, which the queue cannot split: turn host_tso4, \
             host_tso6, host_ufo and gso of their NICs off and write `max_packet` to get shorter guaranteed delays"
        );
        draft.warnings.push(why.clone());
        let segment = own.ok().map(|own| own.min(SEGMENT));
        return Ok(vec![Largest { frame: full(mtu).max(SEGMENT + HEADER), segment, why }]);
    }
    let framed = |segment: u32| segment.saturating_add(HEADER + TAG);
    let own = match own {
        Ok(own) => own,
        Err(why) => {
            let why = format!("{why}, so segments of 64 KiB are assumed");
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

/// The smallest limit for segments, bytes of the IP packet: TCP puts two frames of the MTU into one packet, whatever
/// `gso_max_size` is (`tcp_tso_autosize()`, net/ipv4/tcp_output.c; `net.ipv4.tcp_min_tso_segs`).
fn two(mtu: u32) -> u32 {
    mtu.saturating_mul(2)
}
