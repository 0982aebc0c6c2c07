//! Files that appear complete or not at all: reports and recordings.
//!
//! ```text
//!  create ──► NAME.<random>.partial ──(persist)──► NAME
//!                    │ dropped, or its process is killed
//!                    └──► removed
//! ```
//! teiji runs as root, and others may be able to write to the folder, such as `/tmp`. So the folder is opened once and
//! everything else uses its descriptor; the file is a new one (`O_EXCL`), and a symbolic link in its place is replaced,
//! never followed. Only root can read what root writes (mode 0600); files of other users have the mode that their umask
//! leaves.
//!
//! A trace gives up its privileges before it ends, and the file gets its name at the end. If [`Output::create`] is told
//! so, a separate process keeps the privileges that this needs. It has one file, and accepts one command:
//!
//! ```text
//!  trace (nobody)                         renaming process   (root: DAC_OVERRIDE, FOWNER)
//!    │ ── rename: one byte ────────────►  rename, answer, end
//!    │ ── socket closed, however ──────►  remove what was written, end
//! ```
//! If that process itself is killed, the file stays under its unfinished name, and the trace says so at its end.

mod renamer;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use renamer::Renamer;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use teiji_host::kernel::names_own_files;

/// How many bytes of the name the name of the unfinished file begins with; its total length stays below the limit of
/// file systems, 255.
const STEM: usize = 200;
/// How many names are tried for the unfinished file.
const TRIES: usize = 16;

/// Who gives the file its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// This process, which keeps its privileges.
    Kept,
    /// A separate process, made by fork(2): this one gives up its privileges before the file is complete.
    GivenUp,
}

/// A file being written.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// `None` once it has its name, and for anything but a regular file.
    pending: Option<Pending>,
}

/// How the file gets its name.
#[derive(Debug)]
enum Pending {
    Names(Names),
    Renamer(Renamer),
}

/// The two names of a file, in their folder.
#[derive(Debug)]
struct Names {
    folder: OwnedFd,
    partial: CString,
    name: CString,
}

impl Names {
    fn rename(&self) -> nix::Result<()> {
        renameat(&self.folder, self.partial.as_c_str(), &self.folder, self.name.as_c_str())
    }

    fn remove(&self) -> nix::Result<()> {
        unlinkat(&self.folder, self.partial.as_c_str(), UnlinkatFlags::NoRemoveDir)
    }
}

impl Output {
    /// Begins a file for `path`; it gets that name only by [`Output::persist`].
    ///
    /// # Errors
    /// If the folder cannot be written to, or `path` exists and is neither a regular file nor a symbolic link to
    /// replace.
    pub fn create(path: &Path, rights: Rights) -> io::Result<Output> {
        let (folder, name) = folder_of(path)?;
        match what_is(&folder, &name)? {
            Target::Nothing | Target::Replaceable => {}
            Target::Folder => return Err(ErrorKind::IsADirectory.into()),
            Target::Special(_) => {
                return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
            }
        }
        let (file, partial) = new_file(&folder, &name)?;
        let names = Names { folder, partial, name };
        let pending = match rights {
            Rights::Kept => Pending::Names(names),
            Rights::GivenUp => Pending::Renamer(Renamer::start(names)?),
        };
        Ok(Output { file, pending: Some(pending) })
    }

    /// Begins a file as [`Output::create`] does; but if `path` is no regular file, such as `/dev/stdout` or a named pipe, it is
    /// opened and written to directly.
    ///
    /// # Errors
    /// As [`Output::create`]; also if it belongs to somebody else and is in a folder that others may write to, so that
    /// it may be a trap.
    pub fn create_or_open(path: &Path, rights: Rights) -> io::Result<Output> {
        let (folder, name) = folder_of(path)?;
        let Target::Special(flags) = what_is(&folder, &name)? else {
            return Output::create(path, rights);
        };
        let flags = flags | OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let file = File::from(openat(&folder, name.as_c_str(), flags, Mode::empty())?);
        // The file may have been replaced since it was checked.
        if flags.contains(OFlag::O_NOFOLLOW) && kind(fstat(&file)?.st_mode) == SFlag::S_IFREG {
            return Err(io::Error::other("somebody has put a regular file in its place"));
        }
        Ok(Output { file, pending: None })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, once it is on the disk.
    ///
    /// # Errors
    /// If that fails. The file is removed then.
    pub fn persist(mut self) -> io::Result<()> {
        match self.pending.take() {
            None => Ok(()),
            Some(Pending::Names(names)) => {
                let done = self.file.sync_all().and_then(|()| names.rename().map_err(io::Error::from));
                done.inspect_err(|_| {
                    let _ = names.remove();
                })
            }
            // If it is dropped without the command, it removes the file.
            Some(Pending::Renamer(renamer)) => self.file.sync_all().and_then(|()| renamer.persist()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(Pending::Names(names)) = &self.pending {
            let _ = names.remove();
        }
    }
}

/// The folder of a path, opened, and the name in it.
fn folder_of(path: &Path) -> io::Result<(OwnedFd, CString)> {
    let names_none = || io::Error::new(ErrorKind::InvalidInput, "this names no file");
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(names_none());
    }
    let name = path.file_name().ok_or_else(names_none)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok((open(folder, flags, Mode::empty())?, c_string(name)?))
}

/// What is at a path.
enum Target {
    Nothing,
    Folder,
    /// A regular file, or a symbolic link that may point anywhere.
    Replaceable,
    /// A device, pipe or socket, or a kernel-provided link to one of this process's files; and how to open it.
    Special(OFlag),
}

fn what_is(folder: &impl AsFd, name: &CStr) -> io::Result<Target> {
    let found = match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::ENOENT) => return Ok(Target::Nothing),
        Err(e) => return Err(e.into()),
    };
    let trap = "it is no regular file, belongs to somebody else, and others may write to its folder; use --out \
                /dev/stdout and have the shell redirect that";
    match kind(found.st_mode) {
        SFlag::S_IFDIR => Ok(Target::Folder),
        SFlag::S_IFREG => Ok(Target::Replaceable),
        SFlag::S_IFLNK if names_own_files(folder) => Ok(Target::Special(OFlag::empty())),
        SFlag::S_IFLNK => Ok(Target::Replaceable),
        _ if found.st_uid == geteuid().as_raw() || only_ours(folder)? => {
            Ok(Target::Special(OFlag::O_NOFOLLOW))
        }
        _ => Err(io::Error::new(ErrorKind::PermissionDenied, trap)),
    }
}

/// A new file in the folder in which `name` will be.
fn new_file(folder: &impl AsFd, name: &CStr) -> io::Result<(File, CString)> {
    let mode = if geteuid().is_root() { 0o600 } else { 0o666 };
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let random = RandomState::new();
    let stem = &name.to_bytes()[..name.to_bytes().len().min(STEM)];
    let mut last = Errno::EEXIST;
    for n in 0..TRIES {
        let ending = format!(".{:016x}.partial", random.hash_one((std::process::id(), n)));
        let partial = c_string(OsStr::from_bytes(&[stem, ending.as_bytes()].concat()))?;
        match openat(folder, partial.as_c_str(), flags, Mode::from_bits_truncate(mode)) {
            Ok(file) => return Ok((File::from(file), partial)),
            Err(Errno::EEXIST) => last = Errno::EEXIST,
            Err(e) => return Err(e.into()),
        }
    }
    Err(last.into())
}

/// Whether nobody but root and this user may put something into a folder.
fn only_ours(folder: &impl AsFd) -> nix::Result<bool> {
    let found = fstat(folder)?;
    Ok((found.st_uid == 0 || found.st_uid == geteuid().as_raw()) && found.st_mode & 0o022 == 0)
}

fn kind(mode: nix::libc::mode_t) -> SFlag {
    SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits())
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// The owner of a folder on the path replaces it by a link to /dev after teiji has opened it.
    #[test]
    fn a_link_is_judged_by_the_folder_that_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::create_dir(&path).unwrap();
        symlink("/etc/passwd", path.join("stdout")).unwrap();
        let (folder, name) = folder_of(&path.join("stdout")).unwrap();
        std::fs::rename(&path, dir.path().join("y")).unwrap();
        symlink("/dev", &path).unwrap();
        assert!(matches!(what_is(&folder, &name).unwrap(), Target::Replaceable));
        let (folder, name) = folder_of(&path.join("stdout")).unwrap();
        assert!(matches!(what_is(&folder, &name).unwrap(), Target::Special(_)));
    }

    /// Somebody has mounted a folder of his own on /dev, in a mount namespace of his own.
    #[test]
    fn a_dev_of_another_namespace_is_no_dev() {
        let script = "mount -t tmpfs none /dev && ln -s /etc/passwd /dev/stdout && echo mounted && cat";
        let mut there = std::process::Command::new("unshare");
        let there = there.args(["--map-root-user", "--mount", "sh", "-c", script]);
        let mut there =
            there.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = [0; 8];
        there.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let found = ["dev", "proc/self/fd"].map(|folder| {
            let path = format!("/proc/{}/root/{folder}/stdout", there.id());
            folder_of(Path::new(&path)).and_then(|(folder, name)| what_is(&folder, &name))
        });
        drop(there.stdin.take());
        there.wait().unwrap();
        assert_eq!(&said, b"mounted\n");
        assert!(matches!(found[0], Ok(Target::Replaceable)));
        assert!(!matches!(found[1], Ok(Target::Special(_))));
    }

    /// What names this process's files.
    #[test]
    fn links_to_own_files_are_followed() {
        for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"] {
            let (folder, name) = folder_of(Path::new(path)).unwrap();
            assert!(matches!(what_is(&folder, &name).unwrap(), Target::Special(_)), "{path}");
        }
    }
}
