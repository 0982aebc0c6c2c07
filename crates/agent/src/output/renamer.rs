//! The process that gives a file its name after the process that writes the file has given up its privileges.

use super::Names;
use crate::companion::Companion;
use nix::errno::Errno;
use nix::unistd::{read, write};
use rustix::thread::CapabilitySet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The only command.
const RENAME: u8 = b'k';
/// To write to a folder of another user, and to replace a file of another user in a sticky folder.
const NEEDED: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);

/// Handle of the process, for the process that writes the file.
#[derive(Debug)]
pub(super) struct Renamer(Companion);

impl Renamer {
    /// Starts the process; it serves until the handle is dropped.
    pub(super) fn start(names: Names) -> io::Result<Renamer> {
        let folder = names.folder.as_raw_fd();
        Companion::start(c"teiji-rename", NEEDED, Some(folder), |socket| serve(&names, socket)).map(Renamer)
    }

    /// Lets it give the file its name.
    pub(super) fn persist(self) -> io::Result<()> {
        let mut answer = [0; 4];
        let socket = self.0.socket()?;
        // Not as a broken pipe: the command takes that for a reader of its output that has gone, and ends without a word.
        let killed = || io::Error::other("the process that was to name the file was killed");
        write(socket, &[RENAME]).map_err(|_| killed())?;
        match again(|| read(socket, &mut answer))? {
            4 => {}
            _ => return Err(killed()),
        }
        match i32::from_ne_bytes(answer) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The life of the process; returns its exit code.
fn serve(names: &Names, socket: io::Result<OwnedFd>) -> i32 {
    let Ok(socket) = socket else {
        let _ = names.remove();
        return 1;
    };
    let mut command = [0];
    let received = again(|| read(&socket, &mut command));
    if received != Ok(1) || command[0] != RENAME {
        let _ = names.remove();
        return 0;
    }
    let done = names.rename();
    if done.is_err() {
        let _ = names.remove();
    }
    let answer = done.err().map_or(0, |e: Errno| e as i32);
    let _ = write(&socket, &answer.to_ne_bytes());
    0
}

/// Repeats what a signal has interrupted.
fn again<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}
