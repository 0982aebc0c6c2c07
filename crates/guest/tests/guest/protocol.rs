//! `teiji-guest serve` over TCP: hosts with the token are served, one at a time; others do no harm.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use teiji_model::flow::{Flow, Watch};
use teiji_model::guest::{
    Answer, Decoder, Hello, MAX_FRAME, Message, NONCE, Nonces, PROOF, Ping, SECRET_WORDS, Secret, Side,
    ToGuest, ToHost, Token, VERSION,
};

const TOKEN: &[u8] = b"correct horse battery staple";

fn token() -> Token {
    Token::read(TOKEN, 0o600).unwrap()
}

/// A server, ended when it is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_teiji-guest"))
}

impl Server {
    fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, TOKEN).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let mut child = command()
            .args(["serve", "--no-vsock", "--tcp", "127.0.0.1:0", "--token-file"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("teiji-guest: waiting for the host on TCP ")?.parse().ok())
            .expect("an address");
        // So that its messages do not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("{line}")));
        Server { child, address, _folder: folder }
    }

    fn connect(&self) -> Peer {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Peer { stream, decoder: Decoder::default() }
    }

    /// A peer that the guest has asked for a proof; and the nonces, with one of this side. While the server has not noticed
    /// yet that others have gone, there may be no room for it.
    fn challenged(&self) -> (Peer, Nonces) {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let mut peer = self.connect();
            match peer.hear() {
                Some(ToHost::Challenge(asked)) => {
                    return (peer, Nonces { guest: asked.nonce, host: [5; NONCE] });
                }
                None => assert!(Instant::now() < until, "no challenge"),
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A host that has proved who it is, and knows that this is the guest.
    fn known(&self) -> Peer {
        let (mut host, nonces) = self.challenged();
        let proof = token().proof(Side::Host, &nonces);
        host.say(&ToGuest::Answer(Answer { nonce: nonces.host, proof }));
        let Some(ToHost::Proof(shown)) = host.hear() else { panic!("no proof") };
        assert!(token().is_proof(&shown.proof, Side::Guest, &nonces));
        host
    }

    /// A host that is served.
    fn host(&self) -> Peer {
        let mut host = self.known();
        host.say(&hello());
        assert!(matches!(host.hear(), Some(ToHost::Welcome(_))));
        host
    }

    fn status(&self, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.split(':').next() == Some(field)).unwrap();
        line.split(':').nth(1).unwrap().split_whitespace().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Peer {
    stream: TcpStream,
    decoder: Decoder<ToHost>,
}

impl Peer {
    fn say(&mut self, message: &ToGuest) {
        self.write(&message.frame().unwrap());
    }

    /// The server may have closed already.
    fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next message that is not events or a loss; `None` when the server has closed.
    fn hear(&mut self) -> Option<ToHost> {
        loop {
            while let Some(message) = self.decoder.next().unwrap() {
                if !matches!(message, ToHost::Events(_) | ToHost::Lost(_)) {
                    return Some(message);
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.decoder.feed(&buffer[..n]),
                // It closed with bytes unread.
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn refused(&mut self) -> String {
        match self.hear() {
            Some(ToHost::Refused(refused)) => refused.text,
            other => panic!("{other:?}"),
        }
    }
}

fn hello() -> ToGuest {
    let flow_text = "udp port 7008".to_owned();
    let watch = Watch { flow: Flow::parse(&flow_text).unwrap(), flow_text, ..Watch::default() };
    ToGuest::Hello(Box::new(Hello { version: VERSION, secret: Secret([[3; SECRET_WORDS]; 2]), watch }))
}

/// Waits until `done`, which takes a moment.
fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_host_with_the_token_is_served_and_nothing_stays_after_it() {
    let mut server = Server::start();
    for _ in 0..2 {
        let mut host = server.host();
        for number in 1..=3 {
            host.say(&ToGuest::Ping(Ping { number }));
            let Some(ToHost::Pong(pong)) = host.hear() else { panic!("no pong") };
            assert_eq!(pong.number, number);
        }
        // A second one has to wait.
        let mut other = server.known();
        other.say(&hello());
        assert!(other.refused().contains("another host"));
        assert_eq!(other.hear(), None);
        let pid = server.child.id();
        let programs = || programs_of(pid);
        assert!(programs() > 5, "{} programs", programs());
        host.say(&ToGuest::Stop);
        assert_eq!(host.hear(), None);
        eventually("programs stay loaded", || programs() == 0);
    }
    // A host that vanishes.
    drop(server.host());
    eventually("programs stay loaded", || programs_of(server.child.id()) == 0);
    kill(Pid::from_raw(server.child.id() as i32), Signal::SIGTERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}

/// How many BPF programs a process has open.
fn programs_of(pid: u32) -> usize {
    let open = |fd: &std::fs::DirEntry| {
        std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("bpf-prog"))
    };
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter(|fd| open(fd.as_ref().unwrap())).count()
}

#[test]
fn it_keeps_no_privilege_but_loading_programs() {
    let server = Server::start();
    let _host = server.host();
    for (field, value) in [
        ("CapEff", "000000c000000000"),
        ("CapPrm", "000000c000000000"),
        ("CapInh", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Uid", "65534"),
        ("Gid", "65534"),
    ] {
        assert_eq!(server.status(field), value, "{field}");
    }
}

#[test]
fn strangers_are_cut_off_and_do_no_harm() {
    let server = Server::start();
    let long = [&(MAX_FRAME as u32).to_le_bytes()[..], &[1], &[7; 1000]].concat();
    let seen = {
        let (_host, nonces) = server.challenged();
        ToGuest::Answer(Answer { nonce: nonces.host, proof: token().proof(Side::Host, &nonces) })
    };
    for wrong in [
        // An answer to another challenge.
        seen.frame().unwrap(),
        ToGuest::Answer(Answer { nonce: [5; NONCE], proof: [0; PROOF] }).frame().unwrap(),
        hello().frame().unwrap(),
        ToGuest::Stop.frame().unwrap(),
        vec![0xff; 5000],
        vec![0; 5000],
        long,
        b"GET / HTTP/1.1\r\nHost: guest\r\n\r\n".to_vec(),
    ] {
        let (mut stranger, _) = server.challenged();
        stranger.write(&wrong);
        assert_eq!(stranger.hear(), None, "{:x?}", &wrong[..wrong.len().min(20)]);
    }
    // Those who know another token, or show a guest's proof as that of a host.
    let other = Token::read(&b"correct horse battery stapl"[..], 0o600).unwrap();
    for (token, side) in [(other, Side::Host), (token(), Side::Guest)] {
        let (mut stranger, nonces) = server.challenged();
        stranger.say(&ToGuest::Answer(Answer { nonce: nonces.host, proof: token.proof(side, &nonces) }));
        assert_eq!(stranger.hear(), None);
    }
    // No two are asked the same.
    assert_ne!(server.challenged().1, server.challenged().1);
    // One that says nothing keeps no other from being served.
    let _silent = server.connect();
    drop(server.host());
}

#[test]
fn a_host_that_speaks_wrongly_is_told_and_cut_off() {
    let server = Server::start();
    for (wrong, part) in [
        (vec![0xff; 5], "longer than the 65536"),
        (vec![0, 0, 0, 0, 99], "type 99"),
        (vec![2, 0, 0, 0, 2, 77, 1], "version 77"),
        (vec![1, 0, 0, 0, 2, 1], "cannot be decoded"),
        (
            ToGuest::Answer(Answer { nonce: [5; NONCE], proof: [0; PROOF] }).frame().unwrap(),
            "does not belong",
        ),
        (ToGuest::Ping(Ping { number: 1 }).frame().unwrap(), "does not belong"),
    ] {
        let mut host = server.known();
        host.write(&wrong);
        let text = host.refused();
        assert!(text.contains(part), "{text}");
        assert_eq!(host.hear(), None);
    }
    let mut host = server.host();
    host.write(&[0xff; 5]);
    assert!(host.refused().contains("longer"));
    assert_eq!(host.hear(), None);
    drop(server.host());
}

/// Vsock within one machine: whoever is not the host is refused.
#[test]
fn over_vsock_only_the_host_is_heard() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, recv, socket};
    use std::os::fd::AsRawFd;
    const LOCAL: u32 = 1;
    let port = 20_000 + std::process::id() % 10_000;
    let mut child =
        command().args(["serve", "--vsock-port", &port.to_string()]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    if first.contains("waiting for the host on vsock") {
        let vsock = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        if connect(vsock.as_raw_fd(), &VsockAddr::new(LOCAL, port)).is_ok() {
            let heard = recv(vsock.as_raw_fd(), &mut [0; 16], nix::sys::socket::MsgFlags::empty());
            assert!(matches!(heard, Ok(0) | Err(_)), "{heard:?}");
            assert!(lines.any(|line| line.contains("refused a connection from vsock")));
        } else {
            println!("this kernel has no vsock within one machine (vsock_loopback)");
        }
    } else {
        assert!(first.contains("cannot listen on vsock"), "{first}");
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn a_token_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let output = command()
        .args(["serve", "--no-vsock", "--tcp", "127.0.0.1:0", "--token-file"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("others can read"), "{said}");
    let output = command().args(["serve", "--tcp", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "TCP without a token");
}

#[test]
fn check_says_what_the_kernel_offers() {
    let output = command().args(["check", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let can_follow = report["can_follow"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if can_follow { 0 } else { 1 }));
    let hooks = report["hooks"].as_array().unwrap();
    let received = hooks.iter().find(|h| h["name"] == "netif_receive_skb").unwrap();
    assert_eq!((&received["present"], &received["essential"]), (&true.into(), &true.into()));
    let forms = hooks.iter().filter(|h| h["name"] == "__skb_recv_udp").count();
    assert_eq!(forms, 1, "a function has one form on a kernel: {report}");
    for hook in hooks.iter().filter(|h| h["present"] == false) {
        assert!(hook["reason"] != "" && hook["without"] != "", "{hook}");
        // Every kernel lets its tracepoints be probed: this would be a program that the verifier refuses.
        let refused = hook["reason"].as_str().unwrap().starts_with("there, but");
        assert!(hook["kind"] != "tp_btf" || !refused, "{hook}");
    }
    let text = command().arg("check").output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("netif_receive_skb"));
}
