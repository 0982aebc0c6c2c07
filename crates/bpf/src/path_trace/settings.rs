//! The operator's request, in the form that the kernel half reads.
use super::types::{self, direction, end, matching};
use super::{Setup, bytes_of};
use crate::Error;
use std::os::linux::fs::MetadataExt;
use teiji_model::flow::{Direction, End, Flow, Key, Matching, Proto};

/// What this kernel offers the programs.
pub(super) struct Offers<'a> {
    /// Whether a function is probed.
    pub(super) probed: &'a dyn Fn(&str) -> bool,
    /// Its memory can be read by loads: see `read.bpf.h`.
    pub(super) loads: bool,
}

/// Writes the settings into the image of the object's constants.
///
/// # Errors
/// [`Error::Kernel`] if the kernel provides no random numbers, or does not tell the network namespace.
pub(super) fn fill(image: &mut [u8], setup: &Setup<'_>, offers: &Offers<'_>) -> Result<(), Error> {
    let mut settings = types::settings {
        hand_over: (offers.probed)("dev_hard_start_xmit").into(),
        writes_are_seen: (offers.probed)("vhost_add_used_n").into(),
        loads: offers.loads.into(),
        netns: network_namespace()?,
        ..settings(setup)
    };
    keep_secret(&mut settings)?;
    let bytes = bytes_of(&settings);
    // `settings` is the first constant of the object; its size is checked by a test
    image[..bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// The number of this thread's network namespace: its taps are traced. The kernel's own number of it has 32 bits.
fn network_namespace() -> Result<u32, Error> {
    let found = std::fs::metadata("/proc/thread-self/ns/net").map_err(|e| Error::Kernel {
        doing: "find this network namespace, without which taps cannot be told from devices of others".into(),
        reason: e.to_string(),
    })?;
    Ok(u32::try_from(found.st_ino()).unwrap_or(0))
}

/// Fills in secret random numbers from the kernel.
fn keep_secret(settings: &mut types::settings) -> Result<(), Error> {
    for word in settings.secret.iter_mut().flatten().chain(&mut settings.question) {
        *word = getrandom::u64().map_err(|e| Error::Kernel {
            doing: "get random numbers, without which guests could aim at collisions of packets".into(),
            reason: e.to_string(),
        })?;
    }
    Ok(())
}

fn settings(setup: &Setup<'_>) -> types::settings {
    let flow: &Flow = &setup.watch.flow;
    let key = match setup.watch.matching {
        Matching::Key(key) => Some(key),
        _ => None,
    };
    let mut s = types::settings {
        version: flow.version.unwrap_or(0),
        proto: match flow.proto {
            None => 0,
            Some(Proto::Icmp) => 1,
            Some(Proto::Tcp) => 6,
            Some(Proto::Udp) => 17,
        },
        nets: flow.nets.len().min(Flow::MAX_NETS) as u8,
        ports: flow.ports.len().min(Flow::MAX_PORTS) as u8,
        directions: match setup.watch.direction {
            Direction::In => direction::DIR_IN.0,
            Direction::Out => direction::DIR_OUT.0,
            Direction::Both => direction::DIR_IN.0 | direction::DIR_OUT.0,
        } as u8,
        matching: match setup.watch.matching {
            Matching::None => matching::MATCH_NONE.0,
            Matching::Echo => matching::MATCH_ECHO.0,
            Matching::Sip => matching::MATCH_SIP.0,
            Matching::Dns => matching::MATCH_DNS.0,
            Matching::Tcp => matching::MATCH_TCP.0,
            Matching::Key(_) => matching::MATCH_KEY.0,
        } as u8,
        key_offset: key.map_or(0, Key::offset),
        key_len: key.map_or(0, Key::bytes),
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
    fn settings_are_the_objects_first_constant() {
        let object = super::super::open(&crate::hooks::KernelTypes::load().unwrap()).unwrap();
        let rodata = object.maps().find(|m| m.name().to_string_lossy().ends_with(".rodata")).unwrap();
        assert_eq!(rodata.initial_value().unwrap().len(), size_of::<types::rodata>());
        assert_eq!(std::mem::offset_of!(types::rodata, settings), 0);
    }
}
