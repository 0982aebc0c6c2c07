//! What BPF objects have in common whose maps outlive the process that loaded them, or belong to several objects.
//!
//! | module | does |
//! | --- | --- |
//! | `pins` | folders of a BPF file system that have the pins, each replaced as a whole |
//! | `abi` | the version and the layout of each pinned map, checked when it is opened |
//! | `map` | typed access: any process reads, one writes |
//! | `netns` | the network namespace of this process, as programs see it |
//! | `number` | maps of one number that a process accesses by mapped memory |
//! | `heartbeat` | the time at which the agent last said that it runs; also `heartbeat.bpf.h` |
//! | `share` | gives an object the pinned maps of another, instead of maps of its own |
//!
//! ## Writers
//! Each map has one writer at a time, a program or a process, so that no two can disagree about it. The table of a
//! program's maps says which ([`abi::Writer`]). A process that is not the writer opens the map with a descriptor that the
//! kernel permits to read only (`BPF_F_RDONLY`), or maps its memory for reading only. Maps with settings have
//! `BPF_F_RDONLY_PROG`, so the verifier refuses programs that write them.
//!
//! ## Versions
//! A map's version belongs to its name: version 1 is pinned as `matches`, version 2 as `matches_v2`. It is increased when
//! its layout or its meaning changes, so programs and processes of different releases of teiji work together as long as
//! they agree on each map. A test compares the layouts with those that the versions stand for (`layouts.txt`).
pub(crate) mod abi;
pub(crate) mod heartbeat;
pub(crate) mod map;
#[cfg(test)]
pub(crate) mod mounted;
pub(crate) mod netns;
pub(crate) mod number;
pub(crate) mod pins;
pub(crate) mod share;
