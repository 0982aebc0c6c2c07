//! How the guests of a trace are to be asked: whose addresses and tokens are meant.

use super::{Error, Service};
use crate::trace::{AskGuests, TcpGuest, means};
use nix::fcntl::OFlag;
use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use teiji_model::guest::{Token, TokenError};
use teiji_model::host::Vm;
use teiji_model::stream::StreamId;
use teiji_model::text::printable;

/// How an operator wants guests to be asked.
#[derive(Clone, Debug)]
pub struct GuestsWanted {
    /// The port of vsock.
    pub vsock_port: u32,
    /// VMs, by name or as `pid:N`, and the addresses where their guests listen on TCP.
    pub addresses: Vec<(String, SocketAddr)>,
    /// Files with the tokens of these guests: `VM=FILE`, with VM as in `addresses`, or `FILE` for all others.
    pub tokens: Vec<String>,
}

impl Service {
    /// How to ask the guests of these VMs. Reads the tokens.
    ///
    /// # Errors
    /// If an address is that of no VM or of several, or a guest has no token.
    pub fn ask_guests(vms: &[Vm], wanted: &GuestsWanted) -> Result<AskGuests, Error> {
        check_addresses(vms, &wanted.addresses).map_err(Error::Selection)?;
        let files = token_files(&wanted.addresses, &wanted.tokens).map_err(Error::Selection)?;
        let guests = wanted.addresses.iter().zip(files);
        let guests = guests.map(|((vm, address), file)| {
            let failed = |source| Error::Token { path: file.into(), source };
            let token = read(Path::new(file)).map_err(failed)?;
            Ok(TcpGuest { vm: vm.clone(), address: *address, token })
        });
        Ok(AskGuests { vsock_port: wanted.vsock_port, tcp: guests.collect::<Result<_, Error>>()? })
    }
}

/// Each address is that of one traced VM, and each VM has one.
fn check_addresses(vms: &[Vm], addresses: &[(String, SocketAddr)]) -> Result<(), String> {
    const MOST: usize = StreamId::MOST - 1;
    if addresses.len() > MOST {
        return Err(format!(
            "--guest-tcp is given {} times: at most {MOST} guests can report",
            addresses.len()
        ));
    }
    for (at, (wanted, address)) in addresses.iter().enumerate() {
        let name = printable(wanted);
        let meant: Vec<&Vm> = vms.iter().filter(|vm| means(wanted, vm)).collect();
        let vm = match meant[..] {
            [vm] => vm,
            [] => {
                return Err(format!(
                    "--guest-tcp: no VM `{name}` is traced; `teiji vms` lists the names, and --vm has to include it"
                ));
            }
            _ => {
                let which: Vec<String> = meant.iter().map(|vm| format!("pid:{}", vm.pid)).collect();
                return Err(format!(
                    "--guest-tcp: {} VMs are called `{name}`; say which by its process id: {}",
                    meant.len(),
                    which.join(" or ")
                ));
            }
        };
        for (other, theirs) in &addresses[..at] {
            if means(other, vm) {
                return Err(format!(
                    "--guest-tcp gives the VM `{name}` two addresses: {theirs} and {address}"
                ));
            }
            if theirs == address {
                return Err(format!(
                    "--guest-tcp gives the VMs `{}` and `{name}` one address, {address}: each has its own",
                    printable(other)
                ));
            }
        }
    }
    Ok(())
}

/// The file with the token of each of these guests.
fn token_files<'a>(addresses: &[(String, SocketAddr)], tokens: &'a [String]) -> Result<Vec<&'a str>, String> {
    // A file may have a `=` in its name, too.
    let of = |token: &'a str| {
        let own = |(at, (vm, _)): (usize, &(String, SocketAddr))| {
            Some((at, token.strip_prefix(vm.as_str())?.strip_prefix('=')?))
        };
        addresses.iter().enumerate().find_map(own)
    };
    let (mut files, mut of_others) = (vec![None; addresses.len()], None);
    for token in tokens {
        let (place, file, whose) = match of(token) {
            Some((at, file)) => (&mut files[at], file, addresses[at].0.as_str()),
            None => (&mut of_others, token.as_str(), "all others"),
        };
        if let Some(former) = place.replace(file) {
            let whose = printable(whose);
            return Err(format!("--guest-token gives two files for {whose}: {former} and {file}"));
        }
    }
    let each = addresses.iter().zip(files).map(|((vm, _), file)| {
        let name = printable(vm);
        file.or(of_others).ok_or_else(|| {
            format!("--guest-tcp names the VM `{name}`, but no --guest-token is for it: add --guest-token '{name}=FILE'")
        })
    });
    each.collect()
}

fn read(path: &Path) -> Result<Token, TokenError> {
    // A pipe that nobody writes to would not be opened otherwise.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let info = file.metadata()?;
    if !info.is_file() {
        return Err(io::Error::other("not a regular file").into());
    }
    Token::read(file, info.mode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn vm(name: &str, pid: u32) -> Vm {
        Vm { name: name.into(), pid, ..Vm::default() }
    }

    fn addresses(all: &[(&str, &str)]) -> Vec<(String, SocketAddr)> {
        all.iter().map(|(vm, address)| ((*vm).into(), address.parse().unwrap())).collect()
    }

    #[test]
    fn an_address_is_that_of_one_traced_vm() {
        let vms = [vm("a", 1), vm("b", 2), vm("b", 3), vm("pid:4", 4)];
        let check = |all: &[(&str, &str)]| check_addresses(&vms, &addresses(all));
        let one = "10.0.0.1:7413";
        assert_eq!(check(&[("a", one), ("pid:3", "[fd00::1]:7413"), ("pid:4", "10.0.0.1:7414")]), Ok(()));
        for (all, part) in [
            (&[("c", one)][..], "no VM `c` is traced"),
            (&[("pid:9", one)], "no VM `pid:9` is traced"),
            (&[("b", one)], "pid:2 or pid:3"),
            (&[("a", one), ("a", "10.0.0.2:1")], "two addresses: 10.0.0.1:7413 and 10.0.0.2:1"),
            (&[("a", one), ("pid:1", "10.0.0.2:1")], "two addresses"),
            (&[("a", one), ("pid:2", one)], "one address"),
            (&[("a\u{1b}[1m", one)], "no VM `a"),
        ] {
            let said = check(all).unwrap_err();
            assert!(said.contains(part) && !said.contains('\u{1b}'), "{said}");
        }
        let many = vec![("a", one); StreamId::MOST];
        assert!(check(&many).unwrap_err().contains("at most 64"));
    }

    #[test]
    fn a_token_is_of_one_vm_or_of_all_others() {
        let all = addresses(&[("a", "10.0.0.1:1"), ("pid:2", "10.0.0.2:1"), ("x=y", "10.0.0.3:1")]);
        let files = |tokens: &[&str]| {
            let tokens: Vec<String> = tokens.iter().map(|&token| token.into()).collect();
            token_files(&all, &tokens)
                .map(|files| files.iter().map(|&file| file.into()).collect::<Vec<String>>())
        };
        assert_eq!(files(&["/f"]).unwrap(), ["/f", "/f", "/f"]);
        assert_eq!(files(&["a=/a", "/f", "x=y=/=z"]).unwrap(), ["/a", "/f", "/=z"]);
        assert_eq!(files(&["pid:2=/2", "b=/f"]).unwrap(), ["b=/f", "/2", "b=/f"], "no VM is called b");
        for (tokens, part) in [
            (&["a=/a", "x=y=/x"][..], "no --guest-token is for it: add --guest-token 'pid:2=FILE'"),
            (&["a=/a", "a=/b", "/f"], "two files for a: /a and /b"),
            (&["/f", "/g"], "two files for all others"),
        ] {
            let said = files(tokens).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_token_is_read_from_a_file_of_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let ask = |mode, file: &Path| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let wanted = GuestsWanted {
                vsock_port: 1,
                addresses: addresses(&[("a", "10.0.0.1:1")]),
                tokens: vec![file.to_str().unwrap().into()],
            };
            Service::ask_guests(&[vm("a", 1)], &wanted)
        };
        let asked = ask(0o600, &path).unwrap();
        assert_eq!(asked.tcp[0].token, Token::read(&b"0123456789abcdef"[..], 0o600).unwrap());
        assert!(!format!("{asked:?}").contains("0123456789abcdef"), "it is not shown");
        let refused = ask(0o640, &path).unwrap_err();
        assert!(
            matches!(refused, Error::Token { source: TokenError::Public { mode: 0o640 }, .. }),
            "{refused}"
        );
        for none in [folder.path(), &folder.path().join("none")] {
            let refused = ask(0o600, none).unwrap_err();
            assert!(matches!(refused, Error::Token { source: TokenError::Unreadable(_), .. }), "{refused}");
        }
    }
}
