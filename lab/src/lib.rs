//! The lab: a KVM host with nested guests, booted in an emulated machine in seconds, for tests and experiments.
//!
//! Three levels:
//! - **L0** is the machine that runs the lab.
//! - **L1** is the lab host ([`LabHost`]): a stock Debian kernel ([`Kernel`]) in QEMU, with KVM, two NUMA nodes, vhost-net,
//!   and a bridge whose uplink leads to the network namespace `peer`, the outside world. It is emulated unless a test
//!   has shown that this machine's KVM works.
//! - **L2** are guests ([`Guest`]) of L1's KVM. Their exits, wake-ups and queues are real.
//!
//! One Debian root file system ([`rootfs`]), stored in the [`cache`], is used on all three levels: L0 runs its QEMU,
//! and a read-only image of it is the disk of L1 and L2, which is their root below a writable layer in memory. It has
//! all kernels of the lab's list ([`Kernel`]); L1 and its guests run the kernel that [`Spec`] names.
//!
//! ```no_run
//! use teiji_lab::{GuestSpec, LabHost, Spec};
//! # fn main() -> teiji_lab::Result<()> {
//! let host = LabHost::boot(&Spec::default())?;
//! let guest = host.guest(&GuestSpec::named("sip1"))?;
//! let echo = guest.spawn("teiji-lab udp-echo --port 7")?;
//! let load = format!("ip netns exec peer teiji-lab udp-load --to {}:7 --rate 100 --count 500", guest.ip());
//! println!("{}", host.run(&load)?.ok()?);
//! drop(echo);
//! guest.kill()?;
//! host.power_off();
//! # Ok(())
//! # }
//! ```

mod accel;
pub mod cache;
mod child;
mod confine;
pub mod ends;
mod error;
mod guest;
pub mod harness;
mod host;
mod image;
mod initramfs;
mod kernel;
mod machine;
mod monitor;
mod ports;
pub mod progress;
mod proto;
mod recipe;
pub mod remote;
pub mod rootfs;
mod stopwatch;
pub mod tools;
mod tsc;
mod turns;

pub use child::Child;
pub use error::{Error, Result};
pub use guest::{Guest, GuestSpec, VFS};
pub use host::{DEFAULT_LIMIT, LabHost, Mode, NIC_PAIR, Output, PF, PROGRAMS_BUILT, Spec, WIRE, shared};
pub use recipe::Kernel;
pub use turns::Turns;
