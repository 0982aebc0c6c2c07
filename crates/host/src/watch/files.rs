//! Files of a folder that others write: those of the state directory.
//!
//! What is watched is the folder that has the name. If it is removed or replaced, or something is mounted there, the watch
//! is one of a folder that nobody uses any more: [`Files::is_of`] says so.

use super::Hint;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) struct Files {
    inotify: Inotify,
    /// Device and inode of the folder. A later one may get the same, so what is told of this one's end is kept as well.
    folder: (u64, u64),
    gone: bool,
    names: &'static [&'static str],
}

impl Files {
    /// Watches these files of a folder; they need not be there, but the folder does.
    pub(super) fn open(folder: &Path, names: &'static [&'static str]) -> io::Result<Files> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        // In this order a folder that is replaced meanwhile is seen to be another one.
        let identity = identity(folder)?;
        inotify.add_watch(folder, flags)?;
        Ok(Files { inotify, folder: identity, gone: false, names })
    }

    /// Whether the folder that is watched has this name.
    pub(super) fn is_of(&self, folder: &Path) -> bool {
        !self.gone && identity(folder).is_ok_and(|now| now == self.folder)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub(super) fn read(&mut self, tell: &mut dyn FnMut(Hint)) {
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    for event in events {
                        let named =
                            event.name.as_ref().is_some_and(|n| self.names.iter().any(|name| n == *name));
                        let end = AddWatchFlags::IN_DELETE_SELF
                            | AddWatchFlags::IN_MOVE_SELF
                            | AddWatchFlags::IN_IGNORED;
                        self.gone |= event.mask.intersects(end);
                        if named || self.gone || event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                            tell(Hint::File);
                        }
                    }
                }
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    folder.metadata().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_that_is_removed_or_replaced_is_told_and_not_watched_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let changes: [&dyn Fn(); 2] = [&|| fs::remove_dir(&folder).unwrap(), &|| {
            fs::rename(&folder, dir.path().join("other")).unwrap();
        }];
        for change in changes {
            fs::create_dir(&folder).unwrap();
            let mut files = Files::open(&folder, &["held"]).unwrap();
            assert!(files.is_of(&folder));
            change();
            let mut told = false;
            files.read(&mut |hint| told |= hint == Hint::File);
            assert!(told && !files.is_of(&folder));
            fs::create_dir(&folder).unwrap();
            assert!(!files.is_of(&folder), "another one of its name");
            fs::remove_dir(&folder).unwrap();
        }
    }

    #[test]
    fn only_the_named_files_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::open(dir.path(), &["held"]).unwrap();
        let mut told = || {
            let mut count = 0;
            files.read(&mut |hint| count += u32::from(hint == Hint::File));
            count > 0
        };
        fs::write(dir.path().join("lock"), "x").unwrap();
        assert!(!told());
        fs::write(dir.path().join("held"), "x").unwrap();
        assert!(told() && !told());
        fs::write(dir.path().join("new"), "y").unwrap();
        fs::rename(dir.path().join("new"), dir.path().join("held")).unwrap();
        assert!(told());
        fs::remove_file(dir.path().join("held")).unwrap();
        assert!(told());
        assert!(Files::open(&dir.path().join("none"), &[]).is_err());
    }
}
