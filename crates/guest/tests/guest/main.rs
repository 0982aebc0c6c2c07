//! Packets of two network namespaces, followed by the programs in this kernel; and `teiji-guest serve` with hosts that mean
//! well and others. Needs root.
//!
//! Where the kernel does not let functions be probed, `stand_in.bpf.c` takes the place of the programs at functions.
#![allow(clippy::unwrap_used)]

mod namespaces;
mod path;
mod protocol;
