#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use super::*;
use crate::rtnl::{TCA_KIND, TCA_OPTIONS, TCA_STAB, attributes, u32_at};
use std::collections::{BTreeMap, BTreeSet};
use teiji_control::admission::curve;
use teiji_model::policy::Endpoint;
use teiji_model::qdisc::{Channel, Scheduler};

fn end(address: &str, prefix: u8, port: Option<u16>) -> Option<Endpoint> {
    Some(Endpoint { address: address.parse().unwrap(), prefix, port })
}

fn channel(from: Option<Endpoint>, to: Option<Endpoint>, proto: Option<u8>) -> Channel {
    Channel { from, to, proto, deadline: 2_000_000, rate: 8_000_000, burst: 3084 }
}

fn tree(channels: &[(&str, Channel)]) -> Tree {
    let channels = channels.iter().map(|(name, c)| ((*name).to_owned(), c.clone())).collect();
    let keeps =
        DeadlineQdisc { scheduler: Scheduler::Hfsc, rate: 50_000_000, slack: 0, realtime_max: 0, channels };
    Tree { outer: OUTER[0], mtu: 1500, leaf: "pfifo".into(), keeps }
}

fn sip() -> Channel {
    channel(None, end("10.0.1.0", 24, Some(5060)), Some(17))
}

/// The options of a request.
fn options(part: &Part) -> BTreeMap<u16, Vec<u8>> {
    let all = attributes(&part.1.attributes);
    let options = all.iter().find(|(k, _)| *k == TCA_OPTIONS).unwrap().1;
    attributes(options).into_iter().map(|(k, v)| (k, v.to_vec())).collect()
}

#[test]
fn a_channel_is_a_class_a_queue_and_filters() {
    let tree = tree(&[("sip", sip())]);
    let parts = tree.parts(7, curve::of).unwrap();
    let names: Vec<&str> = parts.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(
        names,
        [
            "qdisc htb",
            "class of the link",
            "qdisc hfsc",
            "class of best effort",
            "qdisc pfifo",
            "class of channel `sip`",
            "queue of channel `sip`",
            "filter of channel `sip`",
            "filter of channel `sip`",
        ]
    );
    assert!(parts.iter().all(|(_, r)| u32_at(&r.head, 4) == Some(7)));
    // The real-time curve: 3,084 bytes within 2 ms, then 1 MB/s. The link-sharing curve: 1 MB/s.
    let words = |v: &[u8]| [0, 4, 8].map(|i| u32_at(v, i).unwrap());
    let class = options(&parts[5]);
    assert_eq!([&class[&1], &class[&2]].map(|v| words(v)), [[1_542_002, 2000, 1_000_000], [0, 0, 1_000_000]]);
    // Best effort gets what the channels leave of 50 Mbit/s.
    assert_eq!(words(&options(&parts[3])[&2]), [0, 0, 5_250_000]);
    let filter = options(&parts[7]);
    assert_eq!(filter[&filter::IP_PROTO], [17]);
    assert_eq!((&filter[&12], &filter[&13]), (&vec![10, 0, 1, 0], &vec![255, 255, 255, 0]));
    assert_eq!((&filter[&21], &filter[&38]), (&5060_u16.to_be_bytes().to_vec(), &vec![255, 255]));
    assert_eq!(options(&parts[8])[&filter::VLAN_ETH_TYPE], [8, 0]);
}

#[test]
fn the_size_table_counts_bytes_on_the_wire() {
    let parts = tree(&[]).parts(1, curve::of).unwrap();
    let all = attributes(&parts[0].1.attributes);
    let stab = attributes(all.iter().find(|(k, _)| *k == 8).unwrap().1);
    let table: Vec<u16> =
        stab[1].1.chunks_exact(2).map(|two| u16::from_ne_bytes(two.try_into().unwrap())).collect();
    // Like `__qdisc_calculate_pkt_len()`.
    let counted = |frame: usize| {
        let slot = frame + 24;
        if slot < table.len() {
            return usize::from(table[slot]);
        }
        usize::from(table[table.len() - 1]) * (slot / table.len()) + usize::from(table[slot % table.len()])
    };
    assert_eq!([1, 60, 61, 1514, 1518].map(counted), [84, 84, 85, 1538, 1542]);
    for frame in [1519, 3014, 16_359, 16_360, 16_384, 32_780, 65_550] {
        let least = teiji_model::qdisc::frame::on_wire(frame as u32, 1500) as usize + 24;
        assert!((least..least + 1000).contains(&counted(frame)), "{frame}: {}", counted(frame));
    }
}

#[test]
fn open_ports_and_ends_are_several_filters() {
    let filters = |c: Channel| tree(&[("c", c)]).parts(1, curve::of).map(|parts| parts.len() - 7);
    assert_eq!(filters(channel(None, None, None)), Ok(4));
    assert_eq!(filters(channel(None, None, Some(1))), Ok(4));
    // UDP, TCP and SCTP, each with and without a VLAN tag.
    assert_eq!(filters(channel(None, end("fd00::1", 128, Some(5)), None)), Ok(6));
    assert!(filters(channel(end("::", 0, Some(1)), None, Some(33))).unwrap_err().contains("protocol 33"));
    let two = channel(end("10.0.0.1", 32, None), end("fd00::1", 128, None), None);
    assert!(filters(two).unwrap_err().contains("one IPv6"));
}

#[test]
fn the_more_specific_channel_has_the_packet() {
    let any = channel(None, end("10.0.1.0", 24, Some(5060)), None);
    let parts = tree(&[("any", any), ("sip", sip())]).parts(1, curve::of).unwrap();
    let filters: Vec<&str> =
        parts.iter().filter(|(_, r)| r.kind == libc::RTM_NEWTFILTER).map(|(what, _)| what.as_str()).collect();
    // UDP packets belong to `sip`; TCP and SCTP are left for `any`.
    assert_eq!(filters[..2], ["filter of channel `sip`"; 2]);
    assert_eq!(filters[2..], ["filter of channel `any`"; 4]);
}

#[test]
fn what_was_changed_is_told() {
    let whole = tree(&[("sip", sip())]);
    let parts = whole.parts(7, curve::of).unwrap();
    let facts = facts::wanted(&whole, &parts);
    assert_eq!(facts.len(), parts.len());
    let other = |change: fn(&mut Channel)| {
        let mut c = sip();
        change(&mut c);
        let tree = tree(&[("sip", c)]);
        facts::wanted(&tree, &tree.parts(7, curve::of).unwrap())
    };
    assert_eq!(other(|_| {}), facts);
    for change in [
        (|c| c.deadline += 1000) as fn(&mut Channel),
        |c| c.rate += 8,
        |c| c.burst += 84,
        |c| c.proto = Some(6),
        |c| c.to.as_mut().unwrap().prefix = 23,
        |c| c.to.as_mut().unwrap().port = Some(1),
        |c| c.from = end("10.0.0.1", 32, None),
    ] {
        assert_ne!(other(change), facts);
    }
    let mut faster = whole.clone();
    faster.keeps.rate += 8;
    assert_ne!(facts::wanted(&faster, &faster.parts(7, curve::of).unwrap()), facts);
    let mut jumbo = whole.clone();
    jumbo.mtu = 9000;
    assert_ne!(facts::wanted(&jumbo, &jumbo.parts(7, curve::of).unwrap()), facts);
    // Only a part of the tree, and nothing of another handle.
    let less: BTreeSet<_> = facts::wanted(&whole, &parts[..parts.len() - 1]);
    assert!(less.is_subset(&facts) && less != facts);
    assert_eq!(facts::wanted(&Tree { outer: OUTER[1], ..whole }, &parts[..7]).len(), 0);
}

#[test]
fn notes_are_read_as_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let notes = SavedTrees::new(dir.path(), 3);
    assert_eq!(notes.read(), Ok(Vec::new()));
    let two = [tree(&[("sip", sip())]), Tree { outer: OUTER[1], ..tree(&[]) }];
    notes.write(&two).unwrap();
    assert_eq!(notes.read(), Ok(two.to_vec()));
    // Each device has its own notes.
    assert_eq!(SavedTrees::new(dir.path(), 4).read(), Ok(Vec::new()));
    std::fs::write(dir.path().join("hfsc-3.json"), "[{\"outer\":32").unwrap();
    assert_eq!(notes.read(), Ok(Vec::new()));
    notes.remove().unwrap();
    notes.remove().unwrap();
    let nowhere = SavedTrees::new(&dir.path().join("no"), 3).write(&two).unwrap_err();
    assert!(nowhere.contains("cannot write") && nowhere.contains("hfsc-3.json"), "{nowhere}");
}

/// On this machine: the root qdisc of loopback is not teiji's.
#[test]
fn another_s_root_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let hfsc = Hfsc::new(Settings::default(), dir.path(), curve::of);
    assert_eq!(hfsc.read(&Device { name: "lo".into(), index: 1 }), Ok(None));
    // A channel that HFSC cannot keep: nothing has changed.
    let bad = DeadlineQdisc { rate: 0, ..tree(&[("c", Channel { deadline: 0, ..sip() })]).keeps };
    let why = hfsc.write(&Device { name: "lo".into(), index: 1 }, &bad).unwrap_err().to_string();
    assert!(why.starts_with("HFSC on lo: ") && why.contains("channel `c`"), "{why}");
}

/// A kernel that lists the classes and filters of a tree on each device, or returns an error.
struct Kernel {
    parts: Vec<Part>,
    fails: Option<Errno>,
    /// What was asked for.
    asked: Vec<u16>,
}

impl Lister for Kernel {
    fn dump(&mut self, kind: u16, head: &[u8]) -> nix::Result<Vec<Vec<u8>>> {
        self.asked.push(kind);
        if let Some(errno) = self.fails {
            return Err(errno);
        }
        let made = if kind == libc::RTM_GETTCLASS { libc::RTM_NEWTCLASS } else { libc::RTM_NEWTFILTER };
        let of_kind = self.parts.iter().filter(|(_, request)| request.kind == made);
        Ok(of_kind
            .map(|(_, request)| {
                let mut body = [&request.head[..], &request.attributes].concat();
                body[4..8].copy_from_slice(&head[4..8]);
                body
            })
            .collect())
    }
}

/// The qdiscs of a tree as the kernel lists them.
fn qdiscs(parts: &[Part]) -> Vec<Qdisc> {
    let qdiscs = parts.iter().filter(|(_, request)| request.kind == libc::RTM_NEWQDISC);
    qdiscs
        .map(|(_, request)| {
            let all = attributes(&request.attributes);
            let of = |wanted| all.iter().find(|(k, _)| *k == wanted).map_or(&[][..], |(_, v)| *v).to_vec();
            let kind = String::from_utf8(of(TCA_KIND)).unwrap();
            let [handle, parent] = [8, 12].map(|at| u32_at(&request.head, at).unwrap());
            let qdisc = Qdisc::new(kind.trim_end_matches('\0'), parent, handle);
            Qdisc { options: of(TCA_OPTIONS), table: of(TCA_STAB), ..qdisc }
        })
        .collect()
}

/// Completes what was observed of links 2, 3, … with such a tree, and a link 1 with the kernel's default.
fn completed(trees: u32, fails: Option<Errno>) -> (Resources, Kernel) {
    let dir = tempfile::tempdir().unwrap();
    let hfsc = Hfsc::new(Settings::default(), dir.path(), curve::of);
    let whole = tree(&[("sip", sip())]);
    let parts = whole.parts(2, curve::of).unwrap();
    let mut listed = BTreeMap::from([(1, vec![Qdisc::new("fq_codel", ROOT, 0)])]);
    let mut found = Resources::default();
    for index in 2..2 + trees {
        SavedTrees::new(dir.path(), index).write(std::slice::from_ref(&whole)).unwrap();
        listed.insert(index, qdiscs(&parts));
        let why = ResourceError::Unsupported("its qdisc htb may hold classes; remove it first".into());
        found.record(root_of(index), Err(why));
    }
    let mut kernel = Kernel { parts, fails, asked: Vec::new() };
    let links = (1..2 + trees).map(|index| Device { name: format!("eth{index}"), index });
    hfsc.complete_from(&Devices::with_qdiscs(Ok(listed)), links, &mut kernel, &mut found);
    (found, kernel)
}

fn root_of(index: u32) -> Resource {
    Resource::RootQdisc(Device { name: format!("eth{index}"), index })
}

#[test]
fn the_list_of_all_qdiscs_is_enough_for_all_links_with_channels() {
    for trees in [1, 64] {
        let (found, kernel) = completed(trees, None);
        let keeps = Value::RootQdisc(RootQdisc::Deadline(Box::new(tree(&[("sip", sip())]).keeps)));
        for index in 2..2 + trees {
            assert_eq!(found.get(&root_of(index)), Some(&keeps), "{index}");
        }
        assert_eq!(found.all().count(), trees as usize, "link 1 has no tree");
        assert!(!kernel.asked.contains(&libc::RTM_GETQDISC), "{:?}", kernel.asked);
        assert_eq!(kernel.asked.len(), 2 * trees as usize, "its classes and its filters");
    }
}

#[test]
fn a_tree_that_cannot_be_read_is_not_taken_for_somebody_elses() {
    let (found, _) = completed(2, Some(Errno::EINTR));
    for index in [2, 3] {
        let why = found.error(&root_of(index)).unwrap().to_string();
        assert!(why.contains("each time that it was read") && !why.contains("remove"), "{why}");
    }
}

/// One error of the list of qdiscs is that of each root qdisc, also of those that are teiji's.
#[test]
fn without_the_list_of_qdiscs_each_root_has_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let hfsc = Hfsc::new(Settings::default(), dir.path(), curve::of);
    let mut found = Resources::default();
    let why = ResourceError::Refused("the list changed each time (EINTR)".into());
    found.record(root_of(2), Err(why.clone()));
    let links = [Device { name: "eth2".into(), index: 2 }];
    hfsc.complete(&Devices::with_qdiscs(Err(Errno::EINTR)), links, &mut found);
    assert_eq!(found.error(&root_of(2)), Some(&why));
}

/// A file that teiji 0.1.0 left beside `held.json`.
#[test]
fn a_former_state_directory_is_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/former/held");
    let [tree] = &SavedTrees::new(&dir, 3).read().unwrap()[..] else { panic!() };
    assert_eq!((tree.outer, tree.mtu, tree.leaf.as_str()), (OUTER[0], 1500, "fq_codel"));
    assert_eq!((tree.keeps.scheduler, tree.keeps.rate), (Scheduler::Hfsc, 999_000_000));
    assert_eq!(tree.keeps.channels["sip \u{1b}"].deadline, 3_000_000);
    assert!(tree.parts(3, curve::of).is_ok());
}
