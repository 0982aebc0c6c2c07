//! Compares the kernel's filter with its reference, [`Flow::matches`], and its hashes with theirs, on generated frames.
//! Needs root, as loading programs does.

mod devices;
mod dns;
mod hash;
mod key;
mod large;
mod reporting;
mod serving;
mod signals;
mod tcp;
mod threads;

use super::{Setup, settings, types};
use crate::hooks::KernelTypes;
use crate::object::value_of;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, OpenObject, ProgramInput};
use proptest::prelude::*;
use std::net::IpAddr;
use teiji_model::flow::{End, Flow, Headers, Matching, Net, Port, Proto, Watch};
use teiji_model::host::{Vcpu, Vm};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/check.bpf.o"));

/// The fields of a generated frame.
#[derive(Clone, Debug)]
struct Frame {
    vlans: u8,
    v6: bool,
    src: u8,
    dst: u8,
    proto: u8,
    sport: u16,
    dport: u16,
    /// IPv4 only: words of options, and the fragment offset.
    options: u8,
    fragment: u16,
    payload: u8,
    to_guest: bool,
}

/// Few addresses, so that filters often match: 10.0.0.n and 10.0.1.n, 2001:db8::n and 2001:db8:1::n.
fn address(v6: bool, n: u8) -> IpAddr {
    let (net, host) = (n >> 2 & 1, n & 3);
    if v6 {
        IpAddr::from([0x2001, 0xdb8, u16::from(net), 0, 0, 0, 0, u16::from(host)])
    } else {
        IpAddr::from([10, 0, net, host])
    }
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut b = vec![0x52; 12];
        for _ in 0..self.vlans {
            b.extend([0x81, 0x00, 0x00, 0x07]);
        }
        let mut l4 = Vec::new();
        l4.extend(self.sport.to_be_bytes());
        l4.extend(self.dport.to_be_bytes());
        // UDP's length and checksum, or TCP's sequence
        l4.extend((8 + u16::from(self.payload)).to_be_bytes());
        l4.extend([0, 0]);
        l4.extend([7; 12]);
        l4.extend(vec![9; usize::from(self.payload)]);
        match (address(self.v6, self.src), address(self.v6, self.dst)) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                b.extend([0x08, 0x00, 0x45 + self.options, 0]);
                let total = 20 + 4 * u16::from(self.options) + l4.len() as u16;
                b.extend(total.to_be_bytes());
                b.extend([0, 1]);
                b.extend(self.fragment.to_be_bytes());
                b.extend([64, self.proto, 0, 0]);
                b.extend(src.octets());
                b.extend(dst.octets());
                b.extend(vec![1; 4 * usize::from(self.options)]);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                b.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                b.extend((l4.len() as u16).to_be_bytes());
                b.extend([self.proto, 64]);
                b.extend(src.octets());
                b.extend(dst.octets());
            }
            _ => unreachable!("both are of one version"),
        }
        b.extend(l4);
        b
    }

    /// Bytes that have to be there for the packet to be identified.
    fn headers_len(&self) -> usize {
        let (ip, options) = if self.v6 { (40, 0) } else { (20, 4 * usize::from(self.options)) };
        let transport = match self.proto {
            _ if self.later_fragment() => 0,
            // IPv4's options are stepped over to get there.
            // As much of the header as is read.
            6 => options + 16,
            1 | 17 | 58 => options + 8,
            _ => 0,
        };
        14 + 4 * usize::from(self.vlans) + ip + transport
    }

    fn later_fragment(&self) -> bool {
        !self.v6 && self.fragment & 0x1fff != 0
    }

    fn headers(&self) -> Headers {
        let proto = match self.proto {
            1 | 58 => Some(Proto::Icmp),
            6 => Some(Proto::Tcp),
            17 => Some(Proto::Udp),
            _ => None,
        };
        Headers {
            proto,
            src: address(self.v6, self.src),
            dst: address(self.v6, self.dst),
            sport: self.sport,
            dport: self.dport,
        }
    }

    /// What the filter should say. A later fragment has no ports: a filter that asks for them leaves it out.
    fn passes(&self, flow: &Flow) -> bool {
        (flow.ports.is_empty() || !self.later_fragment()) && flow.matches(&self.headers(), self.to_guest)
    }
}

/// A datagram without payload.
const DATAGRAM: Frame = Frame {
    vlans: 0,
    v6: false,
    src: 1,
    dst: 2,
    proto: 17,
    sport: 1,
    dport: 2,
    options: 0,
    fragment: 0,
    payload: 0,
    to_guest: true,
};

prop_compose! {
    fn frame()(
        vlans in 0u8..3, v6: bool, src in 0u8..8, dst in 0u8..8, proto in prop::sample::select(vec![1u8, 6, 17, 47, 58]),
        sport in 1u16..4, dport in 1u16..4, options in 0u8..3,
        fragment in prop::sample::select(vec![0u16, 0, 0, 0x2000, 0x4000, 0x0007]),
        payload in prop_oneof![0u8..100, 220u8..=255], to_guest: bool,
    ) -> Frame {
        Frame { vlans, v6, src, dst, proto, sport, dport, options, fragment, payload, to_guest }
    }
}

fn end() -> impl Strategy<Value = End> {
    prop::sample::select(vec![End::Any, End::Src, End::Dst])
}

prop_compose! {
    fn net(v6: bool)(end in end(), n in 0u8..8, whole: bool) -> Net {
        let width = if v6 { 128 } else { 32 };
        // of the prefix, only the bit that tells the two nets apart, or all
        let prefix = match (whole, v6) { (true, _) => width, (false, true) => 48, (false, false) => 24 };
        let addr = match address(v6, n) {
            IpAddr::V4(a) => IpAddr::from((u32::from(a) & u32::MAX << (32 - u32::from(prefix))).to_be_bytes()),
            IpAddr::V6(a) => IpAddr::from((u128::from(a) & u128::MAX << (128 - u32::from(prefix))).to_be_bytes()),
        };
        Net { end, addr, prefix }
    }
}

fn flow() -> impl Strategy<Value = Flow> {
    let parts = |v6: bool| {
        let protos = vec![None, None, Some(Proto::Udp), Some(Proto::Tcp), Some(Proto::Icmp)];
        (
            prop::sample::select(vec![None, Some(if v6 { 6 } else { 4 })]),
            prop::sample::select(protos),
            prop::collection::vec(net(v6), 0..=Flow::MAX_NETS),
            prop::collection::vec((end(), 1u16..4), 0..=Flow::MAX_PORTS),
        )
    };
    any::<bool>().prop_flat_map(parts).prop_map(|(version, proto, nets, ports)| {
        let ports = ports.into_iter().map(|(end, port)| Port { end, port }).collect();
        Flow { version, proto, nets, ports }
    })
}

/// The program that takes frames, see [`ask`].
fn load(flow: &Flow) -> Object {
    load_matching(flow, Matching::Echo).0
}

/// As [`load`], with this matching; and the settings that it has.
fn load_matching(flow: &Flow, matching: Matching) -> (Object, types::settings) {
    load_reading(flow, matching, true)
}

/// As [`load_matching`]. `loads`: it loads from the kernel's memory, if this kernel lets it.
fn load_reading(flow: &Flow, matching: Matching, loads: bool) -> (Object, types::settings) {
    let (mut object, settings) = open(flow, matching, loads, PROBED);
    // The verifier takes longer for the others.
    object.progs_mut().filter(|p| p.name() != "check").for_each(|mut p| p.set_autoload(false));
    (object.load().unwrap(), settings)
}

/// A function that newer kernels have.
const PROBED: &[&str] = &["vhost_add_used_n"];

/// All programs, in a kernel in which these functions can be probed.
fn load_all(functions: &[&str]) -> Object {
    open(&Flow::default(), Matching::Echo, true, functions).0.load().unwrap()
}

fn open(flow: &Flow, matching: Matching, loads: bool, functions: &[&str]) -> (OpenObject, types::settings) {
    let loads = loads && super::has_loads(&KernelTypes::load().unwrap());
    let mut given = types::settings::default();
    let watch = Watch { flow: flow.clone(), matching, ..Watch::default() };
    let setup = Setup { watch: &watch, vms: &[], guests: false, buffer_bytes: 0 };
    let mut object = ObjectBuilder::default().name("check").unwrap().open_memory(OBJECT).unwrap();
    for mut map in object.maps_mut() {
        match map.name().to_string_lossy().as_ref() {
            "records" => map.set_max_entries(1 << 12).unwrap(),
            name if name.ends_with(".rodata") => {
                let image = map.initial_value_mut().unwrap();
                let probed = |target: &str| functions.contains(&target);
                settings::fill(image, &setup, &settings::Offers { probed: &probed, loads }).unwrap();
                given = value_of(image);
            }
            _ => {}
        }
    }
    (object, given)
}

/// A program of another name would be counted, and so cost the requests of all traced VMs.
#[test]
fn programs_whose_missed_runs_are_not_counted_exist() {
    let object = super::open_object(super::OBJECT).unwrap();
    for name in super::MISSES_NOT_COUNTED.iter().chain(&super::FOR_GUESTS) {
        assert!(object.progs().any(|p| p.name() == *name), "{name}");
    }
}

/// What `find` or `meet` answers for a thread: the vCPU that its clock is of.
fn clock(object: &Object, program: &str, tid: u32, vcpu: u32) -> Option<u32> {
    let program = object.progs_mut().find(|p| p.name() == program).unwrap();
    let mut context = [tid.to_ne_bytes(), vcpu.to_ne_bytes()].concat();
    let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
    program.test_run(input).unwrap().return_value.checked_sub(1)
}

#[test]
fn each_thread_finds_its_own_clock() {
    let object = load_all(PROBED);
    // Places are taken modulo 65,536.
    let tids = [7, 65536 + 7, 8, 2 * 65536 + 7];
    let vcpu = |(index, tid): (u16, &u32)| Vcpu {
        index,
        kvm_id: Some(index.into()),
        tid: *tid,
        cpus: String::new(),
        last_cpu: 0,
    };
    let vm = Vm {
        name: "a".into(),
        pid: 1,
        vcpus: (0..).zip(&tids).map(vcpu).collect(),
        workers: Vec::new(),
        nics: Vec::new(),
        memory: None,
        memory_nodes: Vec::new(),
        given: Vec::new(),
    };
    super::targets::Targets::prepare(&object, &[vm]).unwrap();
    let find = |tid: u32| clock(&object, "find", tid, 0);
    let known = || tids.map(find);
    assert_eq!(known(), [Some(0), Some(1), Some(2), Some(3)]);
    for stranger in [0, 6, 3 * 65536 + 7, 65536 + 8] {
        assert_eq!(find(stranger), None, "{stranger}");
    }
    // Threads that are first seen during the trace: one has a place of its own, one does not.
    for (tid, vcpu) in [(9, 90), (65536 + 8, 91)] {
        assert_eq!(clock(&object, "meet", tid, vcpu), Some(vcpu));
        assert_eq!(find(tid), Some(vcpu));
    }
    assert_eq!(known(), [Some(0), Some(1), Some(2), Some(3)]);
}

/// The id of a thread that has ended may be that of another one: it has a clock of its own.
#[test]
fn an_id_that_is_used_again_finds_another_clock() {
    let object = load_all(PROBED);
    let (tid, alike) = (7, 65536 + 7);
    let end = |tid| clock(&object, "end", tid, 0);
    let find = |tid| clock(&object, "find", tid, 0);
    for (tid, vcpu) in [(tid, 1), (alike, 2)] {
        assert_eq!(clock(&object, "meet", tid, vcpu), Some(vcpu));
    }
    end(tid);
    assert_eq!((find(tid), find(alike)), (None, Some(2)), "the place of the one leads to the other");
    assert_eq!(clock(&object, "meet", tid, 3), Some(3));
    assert_eq!((find(tid), find(alike)), (Some(3), Some(2)));
    end(alike);
    assert_eq!((find(tid), find(alike)), (Some(3), None));
    end(alike); // one that has no clock
    assert_eq!(clock(&object, "meet", 2 * 65536 + 7, 4), Some(4));
    assert_eq!((find(tid), find(alike), find(2 * 65536 + 7)), (Some(3), None, Some(4)));
}

/// A trace may outlive any number of threads.
#[test]
fn the_clocks_of_threads_that_have_ended_are_used_again() {
    let object = load_all(PROBED);
    let most = super::map(&object, "thread_clocks").unwrap().max_entries();
    for n in 0..3 * most {
        assert_eq!(clock(&object, "meet", 1000 + n, n), Some(n), "{n}");
        if n % 4 != 0 || n > most {
            clock(&object, "end", 1000 + n, 0);
        }
    }
    assert_eq!(clock(&object, "find", 1000, 0), Some(0));
}

/// There are clocks for a fixed number of threads; a further thread gets none, not that of another.
#[test]
fn threads_beyond_the_last_clock_have_none() {
    let object = load_all(PROBED);
    let most = super::map(&object, "thread_clocks").unwrap().max_entries();
    for n in 0..most {
        assert_eq!(clock(&object, "meet", 1000 + n, n), Some(n));
    }
    assert_eq!(clock(&object, "meet", 999, 0), None);
    assert_eq!(clock(&object, "find", 999, 0), None);
    assert_eq!(clock(&object, "find", 1000 + most - 1, 0), Some(most - 1));
}

/// What the kernel half returns for a packet that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    fingerprint: u64,
    /// What its request is matched by, 0 if it takes part in none.
    key: u64,
    /// `enum role`.
    role: u8,
}

/// The answer of the kernel half; `None` if the packet does not pass.
fn ask(object: &Object, bytes: &[u8], to_guest: bool) -> Option<Identity> {
    const HEAD: usize = 40;
    let frames = super::map(object, "frames").unwrap();
    let mut value = vec![0u8; frames.value_size() as usize];
    value[24..28].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
    value[28..32].copy_from_slice(&u32::from(to_guest).to_ne_bytes());
    value[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
    frames.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY).unwrap();
    let program = object.progs_mut().find(|p| p.name() == "check").unwrap();
    let output = program.test_run(ProgramInput::default()).unwrap();
    let value = frames.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    match output.return_value {
        0 => None,
        1 => {
            let number = |at| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap());
            Some(Identity { fingerprint: number(8), key: number(16), role: value[32] })
        }
        other => panic!("check() returned {other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_kernel_filters_as_the_reference_does(flow in flow(), frames in prop::collection::vec(frame(), 50)) {
        let object = load(&flow);
        for frame in &frames {
            let passed = ask(&object, &frame.bytes(), frame.to_guest).is_some();
            prop_assert_eq!(passed, frame.passes(&flow), "{} {:?}", flow, frame);
        }
    }

    /// Whatever a guest sends: a frame that ends within its headers is not identified, any other is.
    #[test]
    fn a_frame_cut_off_in_its_headers_is_not_identified(frame in frame(), cut in 0usize..200) {
        let object = load(&Flow::default());
        let mut bytes = frame.bytes();
        bytes.truncate(cut);
        let whole = bytes.len() >= frame.headers_len();
        prop_assert_eq!(ask(&object, &bytes, frame.to_guest).is_some(), whole, "{} bytes of {:?}", bytes.len(), frame);
    }
}

#[test]
fn the_fingerprint_is_that_of_the_packet_and_not_of_its_way() {
    let object = load(&Flow::default());
    let frame = Frame { payload: 40, ..DATAGRAM };
    let of = |frame: &Frame| ask(&object, &frame.bytes(), frame.to_guest).unwrap();
    let tagged = Frame { vlans: 1, ..frame.clone() };
    let forwarded = |frame: &Frame| {
        let mut bytes = frame.bytes();
        bytes[22] = 63; // time to live
        bytes[40..42].copy_from_slice(&[0xab, 0xcd]); // UDP checksum, completed on the way
        ask(&object, &bytes, frame.to_guest).unwrap()
    };
    assert_eq!(of(&frame), of(&tagged));
    assert_eq!(of(&frame), forwarded(&frame));
    for other in [
        Frame { src: 3, ..frame.clone() },
        Frame { dport: 3, ..frame.clone() },
        Frame { payload: 41, ..frame.clone() },
    ] {
        assert_ne!(of(&frame), of(&other), "{other:?}");
    }
}
