//! The path of packets: which events there are, in which order, and that the host's programs give a packet the same print.

use super::namespaces::Namespaces;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, send, sendto, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::gettid;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use teiji_guest::guest_trace::{Kernel, symbols::Symbols};
use teiji_guest::listen::Connection;
use teiji_guest::session::{End, Shared, run};
use teiji_model::flow::{Flow, Matching, Watch};
use teiji_model::guest::{
    Decoder, Event, EventKind, Hello, Message, Ping, SECRET_WORDS, Secret, ToGuest, ToHost, VERSION, Welcome,
};

/// The programs at tracepoints that stand in for those at functions.
static STAND_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stand_in.bpf.o"));
/// The host's code for packets.
static HOST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/host_check.bpf.o"));

const PORT: u16 = 7007;

/// What this kernel can have: the programs of the product, if functions can be probed.
fn kernel() -> Kernel {
    let symbols = Symbols::read();
    let kernel = Kernel::look(&symbols).unwrap();
    let functions = kernel.hooks().iter().filter(|h| h.kind.starts_with('f'));
    if functions.clone().all(|h| h.present) {
        return kernel;
    }
    assert!(functions.clone().all(|h| !h.present), "some functions can be probed: {:?}", kernel.hooks());
    println!("this kernel does not let functions be probed: tracepoints stand in for them");
    Kernel::look_for(STAND_IN, &symbols).unwrap()
}

/// A secret of different words.
fn secret() -> Secret {
    let mut words = [[0; SECRET_WORDS]; 2];
    let mut state = 0x1234_5678_9abc_def1u64;
    for word in words.iter_mut().flatten() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state;
    }
    Secret(words)
}

/// The host's end of a connection.
pub struct Host {
    stream: File,
    decoder: Decoder<ToHost>,
    pub events: Vec<Event>,
    pub lost: u64,
}

impl Host {
    fn say(&mut self, message: &ToGuest) {
        use std::io::Write;
        self.stream.write_all(&message.frame().unwrap()).unwrap();
    }

    /// The next message that is neither events nor a loss, which are kept; `None` when the guest has closed.
    fn next(&mut self) -> Option<ToHost> {
        use std::io::Read;
        loop {
            if let Some(message) = self.decoded() {
                return Some(message);
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer).unwrap() {
                0 => return None,
                n => self.decoder.feed(&buffer[..n]),
            }
        }
    }

    /// The same of what has been read.
    fn decoded(&mut self) -> Option<ToHost> {
        while let Some(message) = self.decoder.next().unwrap() {
            match message {
                ToHost::Events(events) => self.events.extend(events),
                ToHost::Lost(lost) => self.lost += lost.count,
                other => return Some(other),
            }
        }
        None
    }

    /// Reads at most 4 KiB of what has come, all of it events and losses.
    fn read_a_little(&mut self) {
        let mut buffer = [0; 4096];
        if let Ok(n) = recv(self.stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            self.decoder.feed(&buffer[..n]);
            assert_eq!(self.decoded(), None);
        }
    }
}

/// Follows what passes the filter while `f` runs.
fn follow(kernel: Kernel, filter: &str, f: impl FnOnce()) -> (Host, Welcome) {
    follow_with(kernel, filter, |_| f())
}

/// The same with a host that may read meanwhile.
fn follow_with(kernel: Kernel, filter: &str, f: impl FnOnce(&mut Host)) -> (Host, Welcome) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    follow_over(ours.into(), theirs.into(), kernel, filter, f)
}

/// The same by the ends of a connection of the host and of the guest.
fn follow_over(
    ours: OwnedFd,
    theirs: OwnedFd,
    kernel: Kernel,
    filter: &str,
    f: impl FnOnce(&mut Host),
) -> (Host, Welcome) {
    let shared = Shared { kernel, token: None, serving: Mutex::new(()), ends: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let connection = Connection::over(theirs, false);
        let session = scope.spawn(|| run(connection, &shared, |_| {}));
        let mut host = Host { stream: ours.into(), decoder: Decoder::default(), events: Vec::new(), lost: 0 };
        let watch = Watch {
            flow: Flow::parse(filter).unwrap(),
            flow_text: filter.into(),
            matching: Matching::None,
            ..Watch::default()
        };
        host.say(&ToGuest::Hello(Box::new(Hello { version: VERSION, secret: secret(), watch })));
        let welcome = match host.next() {
            Some(ToHost::Welcome(welcome)) => welcome,
            other => panic!("{other:?}"),
        };
        host.say(&ToGuest::Ping(Ping { number: 7 }));
        let Some(ToHost::Pong(pong)) = host.next() else { panic!("no pong") };
        assert!(pong.number == 7 && pong.tsc_before < pong.tsc_after);
        f(&mut host);
        host.say(&ToGuest::Stop);
        assert_eq!(host.next(), None);
        assert!(matches!(session.join().unwrap(), End::Stopped));
        (host, welcome)
    })
}

/// Sees all frames of the namespace that the calling thread is in.
fn sniffer() -> OwnedFd {
    let all =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).unwrap();
    setsockopt(&all, sockopt::ReceiveTimeout, &TimeVal::new(0, 300_000)).unwrap();
    all
}

/// The frames that it has seen which hold a datagram to or from the port.
fn frames(sniffer: &OwnedFd) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n) = recv(sniffer.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        let frame = &buffer[..n];
        let udp = match &frame[12..14] {
            [8, 0] if frame[23] == 17 => 34,
            [0x86, 0xdd] if frame[20] == 17 => 54,
            _ => continue,
        };
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        if port(udp) == PORT || port(udp + 2) == PORT {
            all.push(frame.to_vec());
        }
    }
    all
}

/// The host's code, with the guest's secret.
fn host_code() -> Object {
    let mut object = ObjectBuilder::default().name("check").unwrap().open_memory(HOST).unwrap();
    for mut program in object.progs_mut() {
        let wanted = program.name() == "check";
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            // `struct settings` begins with the secret, then that of DNS questions, version, proto, nets, ports; all zero: any.
            // Then directions.
            let image = map.initial_value_mut().unwrap();
            for (at, word) in secret().0.iter().flatten().enumerate() {
                image[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
            }
            image[2 * (SECRET_WORDS + QUESTION_WORDS) * 8 + 4] = 3;
        }
    }
    object.load().unwrap()
}

/// Words of the secret for questions of DNS, by half: as in the host's intf.h.
const QUESTION_WORDS: usize = 66;

/// The fingerprint that the host gives a frame.
fn fingerprint(host: &Object, frame: &[u8]) -> u64 {
    let map = host.maps().find(|m| m.name() == "frames").unwrap();
    let mut value = vec![0u8; map.value_size() as usize];
    value[24..28].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
    value[40..40 + frame.len()].copy_from_slice(frame);
    map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY).unwrap();
    let program = host.progs_mut().find(|p| p.name() == "check").unwrap();
    assert_eq!(program.test_run(ProgramInput::default()).unwrap().return_value, 1, "{frame:x?}");
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    u64::from_ne_bytes(value[8..16].try_into().unwrap())
}

fn address(v6: bool, host: u8) -> SocketAddr {
    let ip: IpAddr = if v6 { format!("fd13::{host}") } else { format!("10.213.0.{host}") }.parse().unwrap();
    SocketAddr::new(ip, if host == 2 { PORT } else { 0 })
}

/// Whether a thread of this process sleeps; also if it has ended.
fn sleeps(tid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
}

/// A client outside sends datagrams of these lengths, each after the answer to the one before; `answer` gets the server's
/// socket, a datagram and its sender. Returns the server's thread, and the frames that were seen outside.
fn exchange(
    namespaces: &Namespaces,
    v6: bool,
    lengths: &[usize],
    answer: impl Fn(&UdpSocket, &[u8], SocketAddr) + Send,
) -> (u32, Vec<Vec<u8>>) {
    let (bound, is_bound) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let server = std::thread::Builder::new().name("echo-server".into());
        server
            .spawn_scoped(scope, move || {
                namespaces.enter(true);
                let socket = UdpSocket::bind(address(v6, 2)).unwrap();
                bound.send(gettid().as_raw() as u32).unwrap();
                let mut buffer = [0; 2048];
                for _ in lengths {
                    let (n, from) = socket.recv_from(&mut buffer).unwrap();
                    answer(&socket, &buffer[..n], from);
                }
            })
            .unwrap();
        let tid = is_bound.recv().unwrap();
        let frames = namespaces.run(false, || {
            let seen = sniffer();
            let client = UdpSocket::bind(address(v6, 1)).unwrap();
            client.connect(address(v6, 2)).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            for (i, length) in lengths.iter().enumerate() {
                // So that the server sleeps when the datagram comes, however long it takes to get there on a busy machine.
                std::thread::sleep(Duration::from_millis(20));
                while !sleeps(tid) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                client.send(&vec![i as u8; *length]).unwrap();
                let mut buffer = [0; 2048];
                assert_eq!(client.recv(&mut buffer).unwrap(), *length);
            }
            frames(&seen)
        });
        (tid, frames)
    })
}

/// The events of each packet, in their order.
fn by_packet(events: &[Event]) -> HashMap<u64, Vec<Event>> {
    let mut packets: HashMap<u64, Vec<Event>> = HashMap::new();
    for event in events {
        let print = match event.kind {
            EventKind::Received { print, .. }
            | EventKind::Queued { print, .. }
            | EventKind::Read { print, .. }
            | EventKind::Sent { print, .. }
            | EventKind::Handed { print } => print,
            // Of devices of PCI only: these are none.
            EventKind::Thread { .. } | EventKind::Matched(_) => continue,
        };
        packets.entry(print).or_default().push(*event);
    }
    packets.values_mut().for_each(|of| of.sort_by_key(|e| e.ts));
    packets
}

/// Names of the points.
fn points(events: &[Event]) -> Vec<&'static str> {
    let name = |e: &Event| match e.kind {
        EventKind::Received { .. } => "received",
        EventKind::Queued { .. } => "queued",
        EventKind::Read { .. } => "read",
        EventKind::Sent { .. } => "sent",
        EventKind::Handed { .. } => "handed",
        EventKind::Thread { .. } => "thread",
        EventKind::Matched(_) => "matched",
    };
    events.iter().map(name).collect()
}

#[test]
fn a_packet_has_one_print_from_the_nic_to_the_application_and_back_and_it_is_the_hosts() {
    let namespaces = Namespaces::new();
    let host_code = host_code();
    for v6 in [false, true] {
        let lengths = [0, 1, 7, 40, 63, 64, 65, 200, 1200];
        let (mut tid, mut seen) = (0, Vec::new());
        let (host, _) = follow(kernel(), &format!("udp dst port {PORT}"), || {
            (tid, seen) = exchange(&namespaces, v6, &lengths, |socket, bytes, to| {
                socket.send_to(bytes, to).unwrap();
            });
        });
        assert_eq!(host.lost, 0);
        let packets = by_packet(&host.events);
        assert_eq!(seen.len(), 2 * lengths.len(), "frames");
        assert_eq!(packets.len(), seen.len(), "{packets:#?}");
        let prints: Vec<u64> = seen.iter().map(|frame| fingerprint(&host_code, frame)).collect();
        assert_eq!(prints.iter().collect::<HashSet<_>>(), packets.keys().collect());
        for pair in prints.chunks(2) {
            let (request, answer) = (&packets[&pair[0]], &packets[&pair[1]]);
            assert_eq!(points(request), ["received", "queued", "read"]);
            assert_eq!(points(answer), ["sent", "handed"]);
            // The stand-in looks when the datagram is in the queue already.
            let EventKind::Queued { backlog: 0 | 1, .. } = request[1].kind else { panic!("{request:?}") };
            let EventKind::Read { tid: reader, woken, running, woken_by, .. } = request[2].kind else {
                panic!("{request:?}")
            };
            assert_eq!((reader, woken_by), (tid, 0));
            assert!(request[1].ts <= woken && woken <= running && running <= request[2].ts, "{request:?}");
            let EventKind::Sent { tid: sender, began, .. } = answer[0].kind else { panic!("{answer:?}") };
            assert_eq!(sender, tid);
            assert!(request[2].ts <= began && began <= answer[0].ts, "{request:?} {answer:?}");
        }
        let threads: Vec<_> =
            host.events.iter().filter(|e| matches!(e.kind, EventKind::Thread { .. })).collect();
        assert_eq!(threads.len(), 1, "{threads:?}");
        let EventKind::Thread { tid: who, process, comm, .. } = threads[0].kind else { unreachable!() };
        assert_eq!((who, process), (tid, std::process::id()));
        assert_eq!(teiji_model::event::name(&comm), "echo-server");
    }
}

/// Bytes in the queue of the server's socket, in the network namespace of this thread. Looking changes nothing, unlike `poll`.
fn waiting() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let line = table.lines().find(|line| line.contains(&format!(":{PORT:04X} "))).unwrap();
    let queues = line.split_whitespace().nth(4).unwrap();
    u64::from_str_radix(queues.split_once(':').unwrap().1, 16).unwrap()
}

/// A server that handles a datagram, and sleeps in between for something else, while the next one waits for it: it was not asleep when
/// that came.
#[test]
fn a_server_that_sleeps_for_something_else_was_awake_when_the_packet_came() {
    let namespaces = Namespaces::new();
    let (bound, is_bound) = std::sync::mpsc::channel();
    let taken = AtomicU8::new(0);
    let (host, _) = follow(kernel(), &format!("udp dst port {PORT}"), || {
        std::thread::scope(|scope| {
            let (namespaces, taken) = (&namespaces, &taken);
            scope.spawn(move || {
                namespaces.enter(true);
                let socket = UdpSocket::bind(address(false, 2)).unwrap();
                bound.send(gettid().as_raw() as u32).unwrap();
                let mut buffer = [0; 2048];
                for _ in 0..3 {
                    let (n, from) = socket.recv_from(&mut buffer).unwrap();
                    taken.fetch_add(1, Ordering::SeqCst);
                    if buffer[0] < 2 {
                        // Awake until the next one is in the queue, and a while longer; then asleep, as for a database.
                        while waiting() == 0 {}
                        let begun = Instant::now();
                        while begun.elapsed() < Duration::from_millis(20) {}
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    socket.send_to(&buffer[..n], from).unwrap();
                }
            });
            let tid = is_bound.recv().unwrap();
            namespaces.run(false, || {
                let client = UdpSocket::bind(address(false, 1)).unwrap();
                client.connect(address(false, 2)).unwrap();
                client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                for n in 0..3u8 {
                    // One datagram at a time is in the queue.
                    while taken.load(Ordering::SeqCst) < n || n == 0 && !sleeps(tid) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    client.send(&[n; 100]).unwrap();
                }
                for _ in 0..3 {
                    client.recv(&mut [0; 2048]).unwrap();
                }
            });
        });
    });
    assert_eq!(host.lost, 0);
    let reads: Vec<(u64, u64)> = {
        let mut reads: Vec<_> =
            host.events.iter().filter(|e| matches!(e.kind, EventKind::Read { .. })).collect();
        reads.sort_by_key(|e| e.ts);
        let times = |e: &Event| match e.kind {
            EventKind::Read { woken, running, .. } => (woken, running),
            _ => unreachable!(),
        };
        reads.into_iter().map(times).collect()
    };
    let [first, rest @ ..] = &reads[..] else { panic!("{:?}", host.events) };
    assert!(first.0 > 0 && first.1 >= first.0, "asleep when the first came: {reads:?}");
    assert_eq!(rest, [(0, 0); 2], "awake when the others came");
}

#[test]
fn a_thread_that_is_created_for_a_request_says_by_whom_and_when() {
    let namespaces = Namespaces::new();
    let mut server = 0;
    let (host, _) = follow(kernel(), &format!("udp dst port {PORT}"), || {
        (server, _) = exchange(&namespaces, false, &[10, 11], |socket, bytes, to| {
            std::thread::scope(|scope| {
                let worker = std::thread::Builder::new().name("worker".into());
                worker.spawn_scoped(scope, || socket.send_to(bytes, to).unwrap()).unwrap();
            });
        });
    });
    let reads: Vec<&Event> =
        host.events.iter().filter(|e| matches!(e.kind, EventKind::Read { .. })).collect();
    let mut sends: Vec<(u64, u32)> = host
        .events
        .iter()
        .filter_map(|e| if let EventKind::Sent { tid, .. } = e.kind { Some((e.ts, tid)) } else { None })
        .collect();
    sends.sort_unstable();
    assert_eq!((reads.len(), sends.len()), (2, 2));
    assert_ne!(sends[0].1, sends[1].1);
    for (read, (sent, worker)) in reads.iter().zip(sends) {
        let born = host.events.iter().find_map(|e| match e.kind {
            EventKind::Thread { tid, parent, started, comm, .. } if tid == worker => {
                Some((parent, started, comm))
            }
            _ => None,
        });
        let (parent, started, comm) = born.unwrap();
        assert_eq!((parent, teiji_model::event::name(&comm).as_str()), (server, "worker"));
        assert!(read.ts < started && started < sent, "{} {started} {sent}", read.ts);
    }
}

/// As a driver leaves packets: their headers and payload in pages. A datagram that is written in two parts is one.
#[test]
fn a_packet_in_pieces_has_the_print_of_the_whole() {
    let namespaces = Namespaces::new();
    let host_code = host_code();
    let (mut seen, mut read) = (Vec::new(), 0);
    let (host, welcome) = follow(kernel(), &format!("udp dst port {PORT}"), || {
        let socket = namespaces.run(true, || UdpSocket::bind(address(false, 2)).unwrap());
        seen = namespaces.run(false, || {
            let seen = sniffer();
            let client = UdpSocket::bind(address(false, 1)).unwrap();
            client.connect(address(false, 2)).unwrap();
            let more = MsgFlags::from_bits_retain(nix::libc::MSG_MORE);
            for (bytes, flags) in [(&[1u8; 10][..], more), (&[2; 30], more), (&[3; 500], MsgFlags::empty())] {
                send(client.as_raw_fd(), bytes, flags).unwrap();
            }
            frames(&seen)
        });
        let mut buffer = [0; 2048];
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        read = socket.recv(&mut buffer).unwrap();
    });
    assert_eq!((read, seen.len()), (540, 1));
    let packets = by_packet(&host.events);
    if welcome.missing.iter().any(|m| m.hook == "vmemmap_base") {
        println!("this kernel does not say where pages are: packets in pieces are not identified");
        assert!(packets.is_empty(), "{packets:?}");
    } else {
        assert_eq!(points(&packets[&fingerprint(&host_code, &seen[0])]), ["received", "queued", "read"]);
    }
}

/// The guest keeps nothing for it: what does not fit into the buffer is lost, and counted.
#[test]
fn a_host_that_reads_too_little_is_told_what_it_lost() {
    let namespaces = Namespaces::new();
    // More than fit into the buffer of 2 MiB, the connection, and one look, some 22,000: each datagram is sent, handed over and
    // received here, three events that take 120 bytes.
    let most = 50_000;
    let mut sent = 0;
    let (host, _) = follow_with(kernel(), &format!("udp port {PORT}"), |host| {
        let _server = namespaces.run(true, || UdpSocket::bind(address(false, 2)).unwrap());
        namespaces.run(false, || {
            let client = UdpSocket::bind(address(false, 1)).unwrap();
            client.connect(address(false, 2)).unwrap();
            let (begun, mut read) = (Instant::now(), Instant::now());
            // The guest gives up a host that says nothing for 60 s.
            while sent < most && begun.elapsed() < Duration::from_secs(40) {
                client.send(&[1]).unwrap();
                sent += 1;
                // And one that reads nothing for 10 s, which all of this takes on a slow machine.
                if read.elapsed() > Duration::from_secs(2) {
                    host.read_a_little();
                    read = Instant::now();
                }
            }
        });
    });
    let seen = host.events.iter().filter(|e| !matches!(e.kind, EventKind::Thread { .. })).count() as u64;
    assert!(host.lost > 0 && seen > 0, "{seen} events, {} lost", host.lost);
    assert!(seen <= 3 * sent && seen + host.lost >= 3 * sent, "{seen} events, {} lost", host.lost);
}

/// A kernel that lacks hooks: the rest is seen, and the host is told.
#[test]
fn what_a_kernel_lacks_is_said_and_the_rest_is_seen() {
    let namespaces = Namespaces::new();
    let symbols = Symbols::none();
    let kernel = Kernel::look(&symbols).unwrap();
    let lacking = ["sched_waking", "__udp_enqueue_schedule_skb", "__skb_recv_udp"];
    let kernel = lacking.iter().fold(kernel, |kernel, name| kernel.without(name));
    assert!(!kernel.can_follow());
    let (host, welcome) = follow(kernel, &format!("udp dst port {PORT}"), || {
        exchange(&namespaces, false, &[10], |socket, bytes, to| {
            socket.send_to(bytes, to).unwrap();
        });
    });
    for name in lacking.iter().chain(&["vmemmap_base"]) {
        let missing = welcome.missing.iter().find(|m| m.hook == *name).unwrap();
        assert!(!missing.without.is_empty());
    }
    let mut all: Vec<_> = by_packet(&host.events).into_values().map(|p| points(&p)).collect();
    all.sort();
    assert_eq!(all, [vec!["received"], vec!["sent", "handed"]]);
}

#[test]
fn what_does_not_pass_the_filter_is_not_reported() {
    let namespaces = Namespaces::new();
    for (filter, inwards) in [
        ("udp dst port 9", 0),
        // Not alone: the machine has other packets of these meanwhile, and the veths' ends look for routers.
        ("tcp and host 10.213.0.1", 0),
        ("icmp and host 10.213.0.1", 0),
        ("ip6 and port 7007", 0),
        ("host 10.213.0.9", 0),
        ("src host 10.213.0.1", 1),
    ] {
        let (host, _) = follow(kernel(), filter, || {
            exchange(&namespaces, false, &[10], |socket, bytes, to| {
                socket.send_to(bytes, to).unwrap();
            });
        });
        let received = by_packet(&host.events).values().filter(|p| points(p)[0] == "received").count();
        assert_eq!(received, inwards, "{filter}: {:?}", host.events);
    }
}

/// Waits until no connection to the port is open inside any more: its last packet has been received then.
fn closed(namespaces: &Namespaces, v6: bool) {
    let table = if v6 { "tcp6" } else { "tcp" };
    let port = format!(":{PORT:04X}");
    // Those that listen are none, and one in TIME-WAIT is over.
    let open = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].ends_with(&port) && !["0A", "06"].contains(&words[3])
    };
    namespaces.run(true, || {
        let until = Instant::now() + Duration::from_secs(30);
        while std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap().lines().any(open) {
            assert!(Instant::now() < until, "the connection is not closed");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// A client asks on one connection, each time after the answer to the one before. Of each request the first segment is seen on its way
/// to the reader, and of each answer from its sender.
#[test]
fn the_first_segment_of_a_request_is_seen_in_the_socket_and_when_it_is_read() {
    use std::io::{Read, Write};
    let namespaces = Namespaces::new();
    for v6 in [false, true] {
        // The last one takes several segments, and several reads.
        let lengths = [1usize, 40, 300, 1200, 100_000];
        let mut server = 0;
        let (host, welcome) = follow(kernel(), &format!("tcp dst port {PORT}"), || {
            let (told, is_told) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    namespaces.enter(true);
                    let listener = TcpListener::bind(address(v6, 2)).unwrap();
                    told.send(gettid().as_raw() as u32).unwrap();
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_nodelay(true).unwrap();
                    let mut buffer = [0; 1000];
                    for length in lengths {
                        let mut left = length;
                        while left > 0 {
                            // Looking at it is not reading it.
                            assert!(stream.peek(&mut buffer).unwrap() > 0);
                            let room = left.min(buffer.len());
                            left -= stream.read(&mut buffer[..room]).unwrap();
                        }
                        stream.write_all(b"answer").unwrap();
                    }
                });
                server = is_told.recv().unwrap();
                namespaces.run(false, || {
                    let mut client = TcpStream::connect(address(v6, 2)).unwrap();
                    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    for length in lengths {
                        std::thread::sleep(Duration::from_millis(20));
                        while !sleeps(server) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        client.write_all(&vec![length as u8; length]).unwrap();
                        let mut answer = [0; 6];
                        client.read_exact(&mut answer).unwrap();
                    }
                });
            });
        });
        assert_eq!(host.lost, 0);
        let mut packets: Vec<_> = by_packet(&host.events).into_values().collect();
        packets.sort_by_key(|p| p[0].ts);
        let read: Vec<_> = packets.iter().filter(|p| points(p) == ["received", "queued", "read"]).collect();
        let answers: Vec<_> = packets
            .iter()
            .filter(|p| matches!(p[0].kind, EventKind::Sent { began, .. } if began > 0))
            .collect();
        let all: Vec<_> = packets.iter().map(|p| points(p)).collect();
        if welcome.missing.iter().any(|m| m.hook == "vmemmap_base") {
            println!("this kernel does not say where pages are: segments with data are not identified");
            assert!(read.is_empty() && answers.is_empty(), "{all:?}");
            continue;
        }
        assert!(read.len() >= lengths.len() && answers.len() == lengths.len(), "{all:?}");
        // Of the long request, segments may come after some have been read.
        for (request, answer) in read.iter().zip(answers) {
            let EventKind::Read { tid: reader, woken, running, woken_by, .. } = request[2].kind else {
                panic!("{request:?}")
            };
            assert_eq!((reader, woken_by), (server, 0));
            assert!(request[1].ts <= woken && woken <= running && running <= request[2].ts, "{request:?}");
            let EventKind::Sent { tid: sender, began, .. } = answer[0].kind else { panic!("{answer:?}") };
            assert_eq!(sender, server);
            assert!(request[2].ts <= began && began <= answer[0].ts, "{request:?} {answer:?}");
        }
    }
}

/// What has no data, and what the kernel answers, has no socket points; it is received, sent and handed over.
#[test]
fn connecting_and_pings_are_received_sent_and_handed_over() {
    let namespaces = Namespaces::new();
    let (host, _) = follow(kernel(), "tcp dst port 7007", || {
        let listener = namespaces.run(true, || TcpListener::bind(address(false, 2)).unwrap());
        let client = namespaces.run(false, || TcpStream::connect(address(false, 2)).unwrap());
        drop((client, listener.accept().unwrap()));
        closed(&namespaces, false);
    });
    let packets: Vec<_> = by_packet(&host.events).into_values().map(|p| points(&p)).collect();
    assert!(packets.iter().filter(|p| **p == ["received"]).count() >= 3, "SYN, ACK, FIN: {packets:?}");
    assert!(packets.iter().any(|p| *p == ["sent", "handed"]), "SYN and ACK: {packets:?}");
    assert!(packets.iter().all(|p| *p == ["received"] || *p == ["sent", "handed"]), "{packets:?}");

    let (host, _) = follow(kernel(), "icmp and src host 10.213.0.1", || {
        namespaces.run(false, || {
            let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)
                .unwrap();
            setsockopt(&raw, sockopt::ReceiveTimeout, &TimeVal::new(10, 0)).unwrap();
            for sequence in 1..=2u8 {
                sendto(
                    raw.as_raw_fd(),
                    &echo_request(sequence),
                    &SockaddrIn::new(10, 213, 0, 2, 0),
                    MsgFlags::empty(),
                )
                .unwrap();
                // The answer, with its IP header.
                let mut buffer = [0; 200];
                let n = recv(raw.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
                assert_eq!((n, buffer[20], buffer[27]), (28, 0, sequence));
            }
        });
    });
    let mut packets: Vec<_> = by_packet(&host.events).into_values().collect();
    packets.sort_by_key(|p| p[0].ts);
    let all: Vec<_> = packets.iter().map(|p| points(p)).collect();
    assert_eq!(all, [vec!["received"], vec!["sent", "handed"], vec!["received"], vec!["sent", "handed"]]);
    for answer in [&packets[1], &packets[3]] {
        assert!(
            matches!(answer[0].kind, EventKind::Sent { tid: 0, began: 0, .. }),
            "the kernel answers: {answer:?}"
        );
    }
}

/// The connection by which a guest reports would be reported, and each report cause the next one. Others to the same machine
/// are reported.
#[test]
fn the_connection_by_which_a_guest_reports_is_not_reported() {
    let namespaces = Namespaces::new();
    for v6 in [false, true] {
        let connect = |to: SocketAddr| {
            let listener = namespaces.run(true, || TcpListener::bind(to).unwrap());
            let host = namespaces.run(false, || TcpStream::connect(to).unwrap());
            (host, listener.accept().unwrap().0)
        };
        // Of what this kernel sees of both ends, the guest's: `dst` is the responder's.
        let filter = format!("tcp dst port {PORT}");
        let follow_tcp = |f: &dyn Fn()| {
            let (ours, theirs) = connect(address(v6, 2));
            theirs.set_nonblocking(true).unwrap();
            let host = follow_over(ours.into(), theirs.into(), kernel(), &filter, |_| f()).0;
            by_packet(&host.events).into_values().map(|p| points(&p)).collect::<Vec<_>>()
        };
        // Hello, Welcome, Ping and Pong have passed, and what acknowledges them passes meanwhile.
        let alone = follow_tcp(&|| std::thread::sleep(Duration::from_millis(300)));
        assert_eq!(alone, Vec::<Vec<&str>>::new(), "v6: {v6}");
        // One that differs in nothing but the address.
        let beside = follow_tcp(&|| {
            drop(connect(address(!v6, 2)));
            closed(&namespaces, !v6);
        });
        assert!(beside.iter().filter(|p| **p == ["received"]).count() >= 3, "SYN, ACK, FIN: {beside:?}");
    }
}

/// An ICMP echo request with this sequence number.
fn echo_request(sequence: u8) -> [u8; 8] {
    let mut message = [8, 0, 0, 0, 0x12, 0x34, 0, sequence];
    let sum: u32 = message.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    let folded = !(((sum >> 16) + (sum & 0xffff)) as u16);
    message[2..4].copy_from_slice(&folded.to_be_bytes());
    message
}
