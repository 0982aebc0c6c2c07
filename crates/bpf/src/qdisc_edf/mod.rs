//! Earliest deadline first on a link: the Rust half of `qdisc_edf.bpf.c`, which says how packets are chosen.
//!
//! ```text
//! Edf::load ── verify the programs, register the qdisc kind `teiji_edf` ──► Edf
//! Edf::attach ── settings and state of the link; then root qdisc ──► packets go by it
//! Edf::put_channel, set_link, remove_channel ── while packets go by it; none is dropped
//! Edf::beat ── at least every second; the kernel half falls back to FIFO 2 s after the last
//! Edf::detach ── the root qdisc that was there before; the link's state and what it still queued are freed
//! ```
//! Dropping an [`Edf`] detaches nothing: the links keep the qdisc, which falls back to FIFO by itself, and
//! the kernel frees programs and maps when the last link has another root qdisc.
mod channel;
mod rtnl;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/qdisc_edf.skel.rs"));
}
use skeleton::types;

pub use channel::{Channel, ChannelStats, End, LinkSettings, LinkStats};

use crate::Error;
use crate::hooks::KernelTypes;
use crate::object::{bytes_of, map, value_of};
use channel::{MAX_CHANNELS, Shapes};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};
use rtnl::{Qdisc, Rtnl};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/qdisc_edf.bpf.o"));

/// Name of the qdisc kind, as `tc qdisc` shows it.
pub const KIND: &str = "teiji_edf";

/// The longest time between two calls of [`Edf::beat`] that is safe, ns: half of what the kernel half bears.
pub const BEAT_EVERY: u64 = 1_000_000_000;

/// The qdisc kind, registered, and the links that have it.
pub struct Edf {
    settings: MapHandle,
    states: MapHandle,
    matches: MapHandle,
    channels: MapHandle,
    beat: MapHandle,
    netns: u64,
    links: BTreeMap<u32, Attached>,
    /// Which indices of `channels` are taken.
    taken: Vec<bool>,
    next_id: usize,
    next_link: u32,
    _registered: Link,
    object: Object,
}

/// A link that has the qdisc.
struct Attached {
    settings: LinkSettings,
    id: u32,
    before: Option<Qdisc>,
    shapes: Shapes,
    /// By name.
    channels: BTreeMap<String, (Channel, u32)>,
}

/// What the verifier said of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its name.
    pub program: String,
    /// Instructions that the verifier walked through.
    pub instructions: u32,
}

impl Edf {
    /// Loads the programs and registers the qdisc kind. Nothing is attached yet.
    ///
    /// Links are those of the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::NoBtf`]; [`Error::Missing`] if the kernel has no BPF qdiscs (they came with Linux 6.16);
    /// [`Error::NotPermitted`]; [`Error::Kernel`] if the kernel refuses, for example since another process has
    /// registered the kind.
    pub fn load() -> Result<Edf, Error> {
        if !KernelTypes::load()?.has_struct_ops("Qdisc_ops") {
            return Err(Error::Missing {
                what: "BPF qdiscs".into(),
                consequence:
                    "channels cannot have deadlines on this host; use Linux 6.16 or newer, built with \
                              CONFIG_NET_SCH_BPF=y"
                        .into(),
            });
        }
        let mut object = open()?.load().map_err(|e| Error::kernel("load the deadline qdisc", e))?;
        let registered = object
            .maps_mut()
            .find(|m| m.name() == "edf")
            .ok_or_else(|| Error::Kernel {
                doing: "find the deadline qdisc's operations".into(),
                reason: "the object does not have them".into(),
            })?
            .attach_struct_ops()
            .map_err(|e| Error::kernel(format!("register the qdisc {KIND}"), e))?;
        let edf = Edf {
            settings: map(&object, "settings")?,
            states: map(&object, "states")?,
            matches: map(&object, "matches")?,
            channels: map(&object, "channels")?,
            beat: map(&object, "beat")?,
            netns: rtnl::netns_cookie()?,
            links: BTreeMap::new(),
            taken: vec![false; MAX_CHANNELS],
            next_id: 0,
            next_link: 1,
            _registered: registered,
            object,
        };
        edf.beat()?;
        Ok(edf)
    }

    /// How much work the programs were for the kernel's verifier.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not tell.
    pub fn verified(&self) -> Result<Vec<Verified>, Error> {
        self.object
            .progs()
            .map(|p| {
                let instructions = walked(p.as_fd())?;
                Ok(Verified { program: p.name().to_string_lossy().into_owned(), instructions })
            })
            .collect()
    }

    /// Says that this process lives. To be called at least every [`BEAT_EVERY`].
    ///
    /// # Errors
    /// [`Error::Kernel`] if the map cannot be written.
    pub fn beat(&self) -> Result<(), Error> {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
            .map_err(|e| Error::Kernel { doing: "read the clock".into(), reason: e.to_string() })?;
        let now = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        put(&self.beat, &0u32.to_ne_bytes(), &now.to_ne_bytes(), "beat")
    }

    /// Makes this the root qdisc of a link. Packets that wait in the former root qdisc are dropped by the kernel,
    /// as with any change of qdisc.
    ///
    /// # Errors
    /// [`Error::Refused`] if the link has it already, or has a root qdisc with classes or filters, which could
    /// not be put back; [`Error::Kernel`] if the kernel refuses. The link is as before then.
    pub fn attach(&mut self, ifindex: u32, settings: &LinkSettings) -> Result<(), Error> {
        let doing = || format!("put {KIND} on interface {ifindex}");
        if self.links.contains_key(&ifindex) {
            return Err(Error::Refused { doing: doing(), reason: "it has it already".into() });
        }
        let mut rtnl = Rtnl::open()?;
        let before = rtnl.root(ifindex)?;
        if let Some(q) = &before
            && let Some(reason) = q.irreplaceable()
        {
            return Err(Error::Refused { doing: doing(), reason });
        }
        self.beat()?;
        let attached = Attached {
            settings: *settings,
            id: self.next_link,
            before: before.filter(Qdisc::chosen),
            shapes: Shapes::default(),
            channels: BTreeMap::new(),
        };
        self.next_link += 1;
        let key = self.key(ifindex);
        let zeros = vec![0; self.states.value_size() as usize];
        put(&self.states, bytes_of(&key), &zeros, "states")?;
        let done = self.write_link(ifindex, &attached).and_then(|()| rtnl.replace_root(ifindex, KIND, &[]));
        if let Err(error) = done {
            self.forget(ifindex);
            return Err(error);
        }
        self.links.insert(ifindex, attached);
        Ok(())
    }

    /// Puts the former root qdisc back, and frees the link's channels and state. What is still queued is dropped by
    /// the kernel, as with any change of qdisc.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not attached there; [`Error::Kernel`] if the kernel refuses: the link keeps
    /// this qdisc then.
    pub fn detach(&mut self, ifindex: u32) -> Result<(), Error> {
        let link = self.link(ifindex)?;
        let before = link.before.clone();
        let mut rtnl = Rtnl::open()?;
        match rtnl.root(ifindex) {
            // Somebody else's: it stays.
            Ok(Some(q)) if q.kind != KIND => {}
            Ok(None) => {}
            Ok(Some(_)) => match before {
                // Not below the same kind's handle, so a plain replacement does.
                Some(q) => rtnl.replace_root(ifindex, &q.kind, &q.options)?,
                None => rtnl.delete_root(ifindex)?,
            },
            Err(error) => return Err(error),
        }
        if let Some(link) = self.links.remove(&ifindex) {
            for (channel, id) in link.channels.values() {
                let _ = self.matches.delete(bytes_of(&channel.key(link.id)));
                self.release(*id);
            }
        }
        self.forget(ifindex);
        Ok(())
    }

    /// Interfaces that have it.
    pub fn links(&self) -> Vec<u32> {
        self.links.keys().copied().collect()
    }

    /// Changes a link's settings while it sends.
    ///
    /// # Errors
    /// [`Error::Refused`] if the qdisc is not attached there; [`Error::Kernel`].
    pub fn set_link(&mut self, ifindex: u32, settings: &LinkSettings) -> Result<(), Error> {
        self.link(ifindex)?;
        if let Some(link) = self.links.get_mut(&ifindex) {
            link.settings = *settings;
        }
        self.write_link(ifindex, self.link(ifindex)?)
    }

    /// Adds the channel of this name, or changes it. Its packets that are queued keep their deadlines. If what it
    /// matches is unchanged its statistics go on, else they begin anew.
    ///
    /// # Errors
    /// [`Error::Refused`] if it contradicts itself, if another channel of the link has the same ends, if there are
    /// too many channels (4,096 on all links) or kinds of ends (16 on a link); [`Error::Kernel`].
    pub fn put_channel(&mut self, ifindex: u32, name: &str, channel: &Channel) -> Result<(), Error> {
        let doing = || format!("set channel `{}`", name.escape_debug());
        let refuse = |reason: String| Err(Error::Refused { doing: doing(), reason });
        if let Err(reason) = channel.check() {
            return refuse(reason);
        }
        let link = self.link(ifindex)?;
        let key = channel.key(link.id);
        if let Some(other) = link
            .channels
            .iter()
            .find(|(n, (c, _))| n.as_str() != name && bytes_of(&c.key(link.id)) == bytes_of(&key))
        {
            return refuse(format!("channel `{}` has the same ends", other.0.escape_debug()));
        }
        let old = link.channels.get(name).cloned();
        let kept =
            old.as_ref().filter(|(c, _)| bytes_of(&c.key(link.id)) == bytes_of(&key)).map(|(_, id)| *id);
        let mut shapes = link.shapes.clone();
        if let Err(reason) = shapes.add(channel) {
            return refuse(reason);
        }
        let id = match kept {
            Some(id) => id,
            None => match self.claim()? {
                Some(id) => id,
                None => return refuse(format!("there are {MAX_CHANNELS} channels, which is the most")),
            },
        };
        put(&self.matches, bytes_of(&key), bytes_of(&channel.settings(id)), "matches")?;
        if let Some(link) = self.links.get_mut(&ifindex) {
            link.channels.insert(name.to_owned(), (*channel, id));
            link.shapes = shapes;
        }
        if let Some((old, old_id)) = old
            && kept.is_none()
        {
            self.drop_match(ifindex, &old, old_id)?;
        }
        self.write_link(ifindex, self.link(ifindex)?)
    }

    /// Removes a channel; its packets that are queued keep their deadlines, later ones are best effort.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none of that name; [`Error::Kernel`].
    pub fn remove_channel(&mut self, ifindex: u32, name: &str) -> Result<(), Error> {
        self.link(ifindex)?;
        let removed = self.links.get_mut(&ifindex).and_then(|l| l.channels.remove(name));
        let Some((channel, id)) = removed else { return Err(no_channel(name, ifindex)) };
        self.drop_match(ifindex, &channel, id)?;
        self.write_link(ifindex, self.link(ifindex)?)
    }

    /// What has become of a channel's packets since it was added.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none of that name; [`Error::Kernel`].
    pub fn channel_stats(&self, ifindex: u32, name: &str) -> Result<ChannelStats, Error> {
        let (_, id) = self.link(ifindex)?.channels.get(name).ok_or_else(|| no_channel(name, ifindex))?;
        let state: types::channel_state = value_of(&get(&self.channels, &id.to_ne_bytes(), "channels")?);
        Ok(ChannelStats::from(&state.stats))
    }

    /// What has become of all packets of a link since the qdisc was attached.
    ///
    /// # Errors
    /// [`Error::Refused`] if the qdisc is not attached there; [`Error::Kernel`].
    pub fn link_stats(&self, ifindex: u32) -> Result<LinkStats, Error> {
        self.link(ifindex)?;
        let bytes = get(&self.states, bytes_of(&self.key(ifindex)), "states")?;
        let at = offset_of!(types::link_state, stats);
        Ok(LinkStats::from(&value_of::<types::link_stats>(bytes.get(at..).unwrap_or_default())))
    }

    fn key(&self, ifindex: u32) -> types::link_key {
        types::link_key { netns: self.netns, ifindex, ..Default::default() }
    }

    fn link(&self, ifindex: u32) -> Result<&Attached, Error> {
        self.links.get(&ifindex).ok_or_else(|| Error::Refused {
            doing: format!("change interface {ifindex}"),
            reason: format!("{KIND} is not attached there"),
        })
    }

    fn write_link(&self, ifindex: u32, link: &Attached) -> Result<(), Error> {
        let settings = link.settings.in_kernel(link.id, &link.shapes);
        put(&self.settings, bytes_of(&self.key(ifindex)), bytes_of(&settings), "settings")
    }

    /// Removes what the kernel half looks up for a link. Packets that it still held are freed with its state.
    fn forget(&self, ifindex: u32) {
        // It fails only if it is not there.
        let _ = self.states.delete(bytes_of(&self.key(ifindex)));
        let _ = self.settings.delete(bytes_of(&self.key(ifindex)));
    }

    fn drop_match(&mut self, ifindex: u32, channel: &Channel, id: u32) -> Result<(), Error> {
        let link_id = self.link(ifindex)?.id;
        self.matches
            .delete(bytes_of(&channel.key(link_id)))
            .map_err(|e| Error::kernel("remove a channel from the map matches", e))?;
        if let Some(link) = self.links.get_mut(&ifindex) {
            link.shapes.remove(channel);
        }
        self.release(id);
        Ok(())
    }

    /// An index for a channel, its state zeroed. Indices go round, so that a packet of a channel that was removed
    /// has long left the queue when its index is used again.
    fn claim(&mut self) -> Result<Option<u32>, Error> {
        let n = self.taken.len();
        let Some(id) = (0..n).map(|i| (self.next_id + i) % n).find(|i| !self.taken[*i]) else {
            return Ok(None);
        };
        put(
            &self.channels,
            &(id as u32).to_ne_bytes(),
            bytes_of(&types::channel_state::default()),
            "channels",
        )?;
        self.taken[id] = true;
        self.next_id = (id + 1) % n;
        Ok(Some(id as u32))
    }

    fn release(&mut self, id: u32) {
        if let Some(t) = self.taken.get_mut(id as usize) {
            *t = false;
        }
    }
}

fn open() -> Result<OpenObject, Error> {
    crate::quiet();
    ObjectBuilder::default()
        .name("qdisc_edf")
        .and_then(|b| b.open_memory(OBJECT))
        .map_err(|e| Error::kernel("open the deadline qdisc", e))
}

/// How many instructions of a loaded program the verifier walked through (bpf(2), BPF_OBJ_GET_INFO_BY_FD).
fn walked(fd: BorrowedFd<'_>) -> Result<u32, Error> {
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` has `length` bytes, all zero, so that the kernel is asked for nothing by pointer.
    let failed = unsafe { sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut length) };
    if failed != 0 {
        let reason = std::io::Error::from_raw_os_error(-failed).to_string();
        return Err(Error::Kernel { doing: "ask for a program's description".into(), reason });
    }
    Ok(info.verified_insns)
}

fn no_channel(name: &str, ifindex: u32) -> Error {
    Error::Refused {
        doing: format!("find channel `{}`", name.escape_debug()),
        reason: format!("interface {ifindex} has none of that name"),
    }
}

fn put(map: &MapHandle, key: &[u8], value: &[u8], name: &str) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY).map_err(|e| Error::kernel(format!("write the map {name}"), e))
}

fn get(map: &MapHandle, key: &[u8], name: &str) -> Result<Vec<u8>, Error> {
    map.lookup(key, MapFlags::ANY).map_err(|e| Error::kernel(format!("read the map {name}"), e))?.ok_or_else(
        || Error::Kernel { doing: format!("read the map {name}"), reason: "the entry is not there".into() },
    )
}
