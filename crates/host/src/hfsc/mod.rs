//! Channels with deadlines kept by the kernel's own HFSC, for kernels without BPF qdiscs. No agent is needed: the
//! kernel keeps them.
//!
//! | module | holds |
//! | --- | --- |
//! | `tree` | the qdiscs and classes that channels become |
//! | `filter` | the filters that classify their packets |
//! | `facts` | compares a tree with what the kernel lists |
//! | `saved_trees` | what the kernel does not store: the channels' names, exact deadlines and bursts |
//!
//! A tree is made by requests that go to the kernel together, in one system call that no signal interrupts. So a
//! process that is killed leaves either the former root or the wanted one:
//!
//! ```text
//!  rehearsed in a network namespace of its own (loads modules, shows refusals)
//!    └─► note of the wanted tree written beside that of the present one ──► one sendmsg: root, classes, filters
//!                                                                              └─ refused after all: the former root again
//! ```
//! The handle of a tree says which note belongs to it. If the note agrees with what the kernel lists, the link keeps
//! the channels of the note; otherwise somebody has changed the tree, and it is treated like any other qdisc.

mod facts;
mod filter;
mod saved_trees;
#[cfg(test)]
mod tests;
mod tree;

use crate::rtnl::{Lister, OpenedOnDemand, Qdisc, ROOT, Rtnl};
use crate::{Devices, Settings};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use saved_trees::SavedTrees;
use std::path::{Path, PathBuf};
use teiji_model::qdisc::{DeadlineQdisc, Device, ExistingQdisc, RootQdisc};
use teiji_model::resource::{Resource, ResourceError, Resources, Value};
use tree::{OUTER, Part, Tree};

pub use tree::CurveOf;

/// Kinds of qdisc for the best-effort class, the better one first; the last one always exists.
const LEAVES: [&str; 2] = ["fq_codel", "pfifo"];
/// The kind of the root of a tree.
const OUTER_KIND: &str = "htb";
/// The index of `lo`, which each network namespace has.
const LOOPBACK: u32 = 1;

/// The links of this network namespace whose channels HFSC keeps.
#[derive(Clone, Debug)]
pub struct Hfsc {
    settings: Settings,
    state_dir: PathBuf,
    curve: CurveOf,
}

impl Hfsc {
    /// `state_dir` is where the trees are saved: the state directory. `settings` are those of the same host. `curve` returns
    /// the parameters of HFSC for a channel, exactly those that admission has calculated with.
    pub fn new(settings: Settings, state_dir: &Path, curve: CurveOf) -> Self {
        Hfsc { settings, state_dir: state_dir.to_owned(), curve }
    }

    /// What the root qdisc of a device is, if it has teiji's handle: its channels, or a qdisc that somebody has
    /// changed.
    ///
    /// # Errors
    /// If the kernel does not tell, or the notes cannot be read.
    pub fn read(&self, device: &Device) -> Result<Option<RootQdisc>, ResourceError> {
        let failed = |e: Errno| ResourceError::Refused(says(device, &describe(e)));
        let mut rtnl = Rtnl::open().map_err(failed)?;
        // The list of all qdiscs is long on a host with many devices, and few of them have a tree.
        match rtnl.root_kind(device.index) {
            Ok(kind) if kind == OUTER_KIND => {}
            Ok(_) | Err(Errno::ENODEV) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let qdiscs = rtnl.qdiscs(device.index).map_err(failed)?;
        self.root_of(device, &qdiscs, &mut rtnl)
    }

    /// Replaces the root qdiscs among `found` that have teiji's handle by what [`Hfsc::read`] returns for them. Their
    /// qdiscs are those of `devices`: the kernel is asked for the classes and filters of trees only, each time for one
    /// device.
    pub fn complete(
        &self,
        devices: &Devices,
        links: impl IntoIterator<Item = Device>,
        found: &mut Resources,
    ) {
        self.complete_from(devices, links, &mut OpenedOnDemand::default(), found);
    }

    fn complete_from(
        &self,
        devices: &Devices,
        links: impl IntoIterator<Item = Device>,
        lister: &mut dyn Lister,
        found: &mut Resources,
    ) {
        for device in links {
            // If there is no list, each root qdisc has the reason for that already.
            let Ok(qdiscs) = devices.qdiscs(&device) else { continue };
            if let Some(read) = self.root_of(&device, qdiscs, lister).transpose() {
                found.record(Resource::RootQdisc(device), read.map(Value::RootQdisc));
            }
        }
    }

    /// [`Hfsc::read`], if these are all qdiscs of the device.
    fn root_of(
        &self,
        device: &Device,
        qdiscs: &[Qdisc],
        lister: &mut dyn Lister,
    ) -> Result<Option<RootQdisc>, ResourceError> {
        let failed = |e: Errno| ResourceError::Refused(says(device, &describe(e)));
        let Some(root) = own_root(qdiscs) else { return Ok(None) };
        let saved =
            self.saved_trees(device).read().map_err(|why| ResourceError::NotPermitted(says(device, &why)))?;
        let outer = (root.handle >> 16) as u16;
        if let Some(tree) = saved.into_iter().find(|tree| tree.outer == outer)
            && let Ok(parts) = tree.parts(device.index, self.curve)
            && facts::present(&tree, qdiscs, lister, device.index).map_err(failed)?
                == facts::wanted(&tree, &parts)
        {
            return Ok(Some(RootQdisc::Deadline(Box::new(tree.keeps))));
        }
        Ok(Some(RootQdisc::Existing(Box::new(ExistingQdisc {
            kind: root.kind.clone(),
            chosen: true,
            options: Vec::new(),
        }))))
    }

    /// Makes a device keep these channels. Packets that wait in its queue are lost.
    ///
    /// # Errors
    /// If HFSC cannot keep them or the kernel refuses them; the device then has the former root (again).
    pub fn write(&self, device: &Device, wanted: &DeadlineQdisc) -> Result<(), ResourceError> {
        let refused = |why: String| ResourceError::Refused(says(device, &why));
        let failed = |e: Errno| refused(describe(e));
        let former = match self.read(device)? {
            Some(queue) => Value::RootQdisc(queue),
            None => self.settings.read(&Resource::RootQdisc(device.clone()))?,
        };
        let mut rtnl = Rtnl::open().map_err(failed)?;
        let qdiscs = rtnl.qdiscs(device.index).map_err(failed)?;
        let present = own_root(&qdiscs).map(|q| (q.handle >> 16) as u16);
        let mtu = rtnl.mtu(device.index).map_err(failed)?;
        let outer = OUTER.into_iter().find(|outer| Some(*outer) != present).unwrap_or(OUTER[0]);
        let tree = |leaf: &str| Tree { outer, mtu, leaf: leaf.into(), keeps: wanted.clone() };
        let tree = tried_in_namespace(tree, self.curve).map_err(refused)?;
        let parts = tree.parts(device.index, self.curve).map_err(refused)?;
        let notes = self.saved_trees(device);
        let stays = notes.read().map_err(refused)?.into_iter().filter(|t| Some(t.outer) == present);
        let all: Vec<Tree> = stays.chain([tree]).collect();
        notes.write(&all).map_err(refused)?;
        let Err(why) = send(&mut rtnl, &parts) else { return Ok(()) };
        match self.put_back(device, &former, &all[..all.len() - 1], &mut rtnl) {
            Ok(()) => Err(refused(why)),
            Err(again) => Err(refused(format!("{why}; and the former qdisc could not be restored: {again}"))),
        }
    }

    /// Removes the notes of a device that has another root.
    ///
    /// # Errors
    /// If the note cannot be removed. It then has no effect, as no root has its handle.
    pub fn forget(&self, device: &Device) -> Result<(), String> {
        self.saved_trees(device).remove()
    }

    fn saved_trees(&self, device: &Device) -> SavedTrees {
        SavedTrees::new(&self.state_dir, device.index)
    }

    fn put_back(
        &self,
        device: &Device,
        former: &Value,
        saved: &[Tree],
        rtnl: &mut Rtnl,
    ) -> Result<(), String> {
        match (former, saved) {
            (Value::RootQdisc(RootQdisc::Deadline(keeps)), [tree, ..]) => {
                // Perhaps none of the requests was carried out.
                if self.read(device) == Ok(Some(RootQdisc::Deadline(keeps.clone()))) {
                    return Ok(());
                }
                // To make the former tree again, its handle must not be in use.
                let _ = rtnl.delete_root(device.index);
                send(rtnl, &tree.parts(device.index, self.curve)?)
            }
            (former, _) => {
                self.settings.write(&Resource::RootQdisc(device.clone()), former).map_err(|e| e.to_string())
            }
        }
    }
}

/// The root qdisc, if it has one of teiji's handles.
fn own_root(qdiscs: &[Qdisc]) -> Option<&Qdisc> {
    qdiscs.iter().find(|q| q.parent == ROOT).filter(|q| OUTER.contains(&((q.handle >> 16) as u16)))
}

/// The tree with the best leaf that this kernel accepts. It is made once in a separate network namespace: this loads
/// the kernel modules and shows what the kernel refuses.
///
/// # Errors
/// If the kernel refuses the tree, or it could not be tried.
fn tried_in_namespace(with: impl Fn(&str) -> Tree, curve: CurveOf) -> Result<Tree, String> {
    let mut message = String::new();
    for leaf in LEAVES {
        let tree = with(leaf);
        let parts = tree.parts(LOOPBACK, curve)?;
        // A separate thread, because it enters a namespace that ends with the thread.
        let tried = std::thread::scope(|scope| {
            let trial = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET)
                    .map_err(|e| format!("no network namespace to try it in: {}", describe(e)))?;
                send(&mut Rtnl::open().map_err(describe)?, &parts)
            });
            trial.join().unwrap_or_else(|_| Err("the trial ended early".into()))
        });
        match tried {
            Ok(()) => return Ok(tree),
            Err(why) => message = why,
        }
    }
    Err(message)
}

/// # Errors
/// What was refused, and why.
fn send(rtnl: &mut Rtnl, parts: &[Part]) -> Result<(), String> {
    let requests: Vec<_> = parts.iter().map(|(_, request)| request.clone()).collect();
    rtnl.send_batch(&requests).map_err(|(index, errno)| match index.and_then(|n| parts.get(n)) {
        Some((what, _)) => format!("the kernel refuses the {}: {}", what, describe(errno)),
        None => describe(errno),
    })
}

fn describe(errno: Errno) -> String {
    match errno {
        Errno::ENOENT => {
            "it does not have that kind of qdisc or filter (ENOENT); install the kernel modules sch_htb, \
                          sch_hfsc and cls_flower"
                .into()
        }
        Errno::EPERM => {
            "that needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN (EPERM); run teiji as root".into()
        }
        Errno::EINTR | Errno::ENOBUFS => format!(
            "the kernel's list of qdiscs changed, or was cut off, each time that it was read ({errno:?}); try again when \
             no devices come and go"
        ),
        other => format!("{} ({other:?})", other.desc().to_lowercase()),
    }
}

fn says(device: &Device, why: &str) -> String {
    format!("HFSC on {}: {}", device.name, why)
}
