//! Where guests are asked, on the command line.

use std::net::{IpAddr, SocketAddr};
use teiji_model::guest::PORT;

/// A VM, and the address where its guest listens on TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAddress {
    /// The VM, by name or as `pid:N`.
    pub vm: String,
    /// The address.
    pub address: SocketAddr,
}

/// Parses `VM=ADDRESS[:PORT]`, such as `sip1=10.77.0.11`, `sip1=10.77.0.11:7413` or `sip1=[fd00::11]:7413`.
///
/// # Errors
/// If there is no VM or no address, or the address is no number.
pub fn parse_guest_address(text: &str) -> Result<GuestAddress, String> {
    // A name may have a `=`, too; an address has none.
    let (vm, address) = text.rsplit_once('=').filter(|(vm, _)| !vm.is_empty()).ok_or_else(|| {
        "write the VM and the address where its `teiji-guest serve --tcp` listens: sip1=10.77.0.11:7413"
            .to_owned()
    })?;
    let default = PORT as u16;
    let alone = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    let address = address
        .parse::<SocketAddr>()
        .or_else(|_| alone.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, default)))
        .map_err(|_| format!("`{address}` is not an address: write 10.77.0.11:7413, or [fd00::11]:7413"))?;
    if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(format!("nobody can be connected to at {address}"));
    }
    // In packets it is one of IPv4.
    let address = match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    };
    Ok(GuestAddress { vm: vm.to_owned(), address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, vm, address) in [
            ("sip1=10.77.0.11:7413", "sip1", "10.77.0.11:7413"),
            ("sip1=10.77.0.11", "sip1", "10.77.0.11:7413"),
            ("pid:7=10.77.0.11:80", "pid:7", "10.77.0.11:80"),
            ("a=b=[fd00::11]:80", "a=b", "[fd00::11]:80"),
            ("a=[fd00::11]", "a", "[fd00::11]:7413"),
            ("a=fd00::11", "a", "[fd00::11]:7413"),
            ("a=[fe80::1%3]:80", "a", "[fe80::1%3]:80"),
            ("a=[::ffff:10.0.0.1]:80", "a", "10.0.0.1:80"),
        ] {
            let read = parse_guest_address(text).unwrap();
            assert_eq!(read, GuestAddress { vm: vm.into(), address: address.parse().unwrap() });
        }
        for wrong in [
            "",
            "sip1",
            "=10.0.0.1:80",
            "sip1=",
            "10.0.0.1:80",
            "sip1=host:80",
            "sip1=10.0.0.1:0",
            "sip1=10.0.0.1:65536",
            "sip1=0.0.0.0:80",
            "sip1=[::]:80",
            "sip1=224.0.0.1:80",
            "sip1=[fd00::1",
            "sip1=fd00::1]:80",
        ] {
            assert!(parse_guest_address(wrong).is_err(), "{wrong}");
        }
    }
}
