//! The host's request, in the form that the kernel half reads.
use super::types::{self, direction, end};
use crate::Error;
use libbpf_rs::OpenObject;
use std::net::SocketAddr;
use teiji_model::flow::{Direction, End, Flow, Matching, Net, Proto, Watch};
use teiji_model::guest::Secret;

/// Writes the settings into the image of the object's constants.
///
/// # Errors
/// [`Error::Kernel`] if the object has no place for them.
pub(super) fn fill(
    object: &mut OpenObject,
    symbols: types::guest_symbols,
    secret: &Secret,
    watch: &Watch,
    own: Option<SocketAddr>,
) -> Result<(), Error> {
    let image = object
        .maps_mut()
        .find(|m| m.name().to_string_lossy().ends_with(".rodata"))
        .and_then(|mut m| m.initial_value_mut().map(|image| (image.as_mut_ptr(), image.len())));
    let none = || Error::Kernel {
        doing: "set the guest's probes".into(),
        reason: "their settings have no place".into(),
    };
    let (at, len) = image.ok_or_else(none)?;
    if len < size_of::<types::rodata>() {
        return Err(none());
    }
    // SAFETY: libbpf keeps the image until the object is dropped, which is borrowed mutably here; it is large enough, and
    // page-aligned, as libbpf maps it; any bits are a value of these types of integers.
    let constants = unsafe { &mut *at.cast::<types::rodata>() };
    constants.settings = settings(secret, watch);
    constants.symbols = symbols;
    constants.own.end = own.map(tcp_end).unwrap_or_default();
    Ok(())
}

fn settings(secret: &Secret, watch: &Watch) -> types::settings {
    let flow = &watch.flow;
    let mut s = types::settings {
        secret: secret.0,
        version: flow.version.unwrap_or(0),
        proto: match flow.proto {
            None => 0,
            Some(Proto::Icmp) => 1,
            Some(Proto::Tcp) => 6,
            Some(Proto::Udp) => 17,
        },
        nets: flow.nets.len().min(Flow::MAX_NETS) as u8,
        ports: flow.ports.len().min(Flow::MAX_PORTS) as u8,
        directions: match watch.direction {
            Direction::In => direction::DIR_IN.0,
            Direction::Out => direction::DIR_OUT.0,
            Direction::Both => direction::DIR_IN.0 | direction::DIR_OUT.0,
        } as u8,
        // Which packets are a request and its response is the host's to say, where it sees them.
        matching: match watch.matching {
            Matching::Echo => types::matching::MATCH_ECHO.0,
            _ => types::matching::MATCH_NONE.0,
        } as u8,
        ..Default::default()
    };
    for (slot, net) in s.net.iter_mut().zip(&flow.nets) {
        (slot.addr, slot.mask) = net.words();
        slot.end = end_of(net.end);
        slot.version = if net.addr.is_ipv4() { 4 } else { 6 };
    }
    for (slot, port) in s.port.iter_mut().zip(&flow.ports) {
        slot.port = port.port;
        slot.end = end_of(port.end);
    }
    s
}

fn tcp_end(own: SocketAddr) -> types::tcp_end {
    let net = Net { end: End::Any, addr: own.ip(), prefix: u8::MAX };
    let version = if own.is_ipv4() { 4 } else { 6 };
    types::tcp_end { addr: net.words().0, port: own.port(), version, ..Default::default() }
}

fn end_of(e: End) -> u8 {
    (match e {
        End::Any => end::END_ANY,
        End::Src => end::END_SRC,
        End::Dst => end::END_DST,
    })
    .0 as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_all_that_the_object_has_in_rodata() {
        let object = super::super::open(super::super::OBJECT).unwrap();
        let rodata = object.maps().find(|m| m.name().to_string_lossy().ends_with(".rodata")).unwrap();
        assert_eq!(rodata.initial_value().unwrap().len(), size_of::<types::rodata>());
    }
}
