//! Control groups that are made or removed: libvirt and systemd move the threads of a VM into groups that they make when
//! it starts. A move itself is no event.

use super::Hint;
use crate::cgroup::Hierarchy;
use crate::root::Root;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// Most groups that are watched; the kernel allows each user 8,192 or more (`fs.inotify.max_user_watches`).
pub const MAX_GROUPS: usize = 2048;

pub(super) struct Groups {
    inotify: Inotify,
    watched: BTreeMap<String, WatchDescriptor>,
}

impl Groups {
    pub(super) fn open() -> io::Result<Groups> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Groups { inotify, watched: BTreeMap::new() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub(super) fn follow(&mut self, wanted: &BTreeSet<String>) {
        let root = Root::default();
        let Ok(hierarchy) = Hierarchy::find(&root) else { return };
        self.follow_at(wanted, &|group| root.path(&hierarchy.path(group, "")));
    }

    /// [`Groups::follow`], where `path` says where a group is.
    fn follow_at(&mut self, wanted: &BTreeSet<String>, path: &dyn Fn(&str) -> PathBuf) {
        let gone: Vec<String> =
            self.watched.keys().filter(|group| !wanted.contains(*group)).cloned().collect();
        for group in gone {
            if let Some(watch) = self.watched.remove(&group) {
                let _ = self.inotify.rm_watch(watch);
            }
        }
        for group in wanted.iter().take(MAX_GROUPS) {
            if self.watched.contains_key(group) {
                continue;
            }
            let flags = AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_MOVE
                | AddWatchFlags::IN_DELETE_SELF
                | AddWatchFlags::IN_ONLYDIR
                | AddWatchFlags::IN_DONT_FOLLOW;
            // A group that is gone meanwhile is none to watch.
            if let Ok(watch) = self.inotify.add_watch(&path(group), flags) {
                self.watched.insert(group.clone(), watch);
            }
        }
    }

    pub(super) fn read(&mut self, tell: &mut dyn FnMut(Hint)) {
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    for event in events {
                        let overflow = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
                        // The watch ends with its group: one that is made again under this name is another one.
                        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                            self.watched.retain(|_, watch| *watch != event.wd);
                        }
                        tell(if overflow { Hint::Lost } else { Hint::Group });
                    }
                }
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// libvirt makes a group of the same name again when it starts a VM again.
    #[test]
    fn a_group_that_is_made_again_is_watched_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = |group: &str| dir.path().join(group.trim_start_matches('/'));
        let mut groups = Groups::open().unwrap();
        let wanted = BTreeSet::from(["/machine".to_owned()]);
        let told = |groups: &mut Groups| {
            let mut told = false;
            groups.read(&mut |hint| told |= hint == Hint::Group);
            told
        };
        for _ in 0..3 {
            fs::create_dir(path("/machine")).unwrap();
            groups.follow_at(&wanted, &path);
            assert!(!told(&mut groups));
            fs::create_dir(path("/machine/vm")).unwrap();
            assert!(told(&mut groups));
            fs::remove_dir(path("/machine/vm")).unwrap();
            fs::remove_dir(path("/machine")).unwrap();
            assert!(told(&mut groups));
        }
        groups.follow_at(&BTreeSet::new(), &path);
        assert!(groups.watched.is_empty());
    }
}
