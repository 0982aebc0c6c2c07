//! Files of a folder that others write: those of the state directory.

use super::Hint;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

pub(super) struct Files {
    inotify: Inotify,
    names: &'static [&'static str],
}

impl Files {
    /// Watches these files of a folder; they need not be there, but the folder does.
    pub(super) fn open(folder: &Path, names: &'static [&'static str]) -> io::Result<Files> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(folder, flags)?;
        Ok(Files { inotify, names })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub(super) fn read(&self, tell: &mut dyn FnMut(Hint)) {
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    for event in events {
                        let named =
                            event.name.as_ref().is_some_and(|n| self.names.iter().any(|name| n == *name));
                        if named || event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_named_files_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path(), &["held"]).unwrap();
        let told = || {
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
