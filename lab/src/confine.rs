//! Starts a program inside a root file system, in a separate mount namespace: nothing stays mounted on this machine,
//! and no clean-up can reach its real folders. The program dies with the thread that started it.

use std::{
    ffi::{CString, OsStr},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// The folder inside the confined program's root file system that has the bound folders.
pub(crate) const INSIDE: &str = "/run/lab";

enum Op {
    Mount { from: CString, to: CString, kind: CString, flags: libc::c_ulong },
    Folder(CString),
    Enter(CString),
}

/// What a confined program sees in addition to the root file system.
pub(crate) struct Confine {
    root: PathBuf,
    binds: Vec<(String, PathBuf, bool)>,
}

impl Confine {
    /// The root file system is visible read-only at `/`, and again, without anything mounted on it, at `/run/lab/root`.
    pub(crate) fn new(root: &Path) -> Confine {
        Confine { root: root.to_owned(), binds: vec![("root".into(), root.to_owned(), false)] }
    }

    /// Makes `folder` visible at `/run/lab/<name>`.
    pub(crate) fn bind(mut self, name: &str, folder: &Path, writable: bool) -> Confine {
        self.binds.push((name.into(), folder.to_owned(), writable));
        self
    }

    /// A command for `program` (a path inside); spawn it from a thread that lives longer than the program.
    pub(crate) fn command(&self, program: &str) -> io::Result<Command> {
        let ops = self.ops()?;
        let owner = std::process::id();
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        // SAFETY: after fork only plain system calls are made, on strings made before it; nothing is allocated and no
        // lock is taken.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                if libc::getppid() != owner as i32 {
                    // The owner has died in between.
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                if libc::setsid() < 0 {
                    return Err(io::Error::last_os_error());
                }
                if libc::unshare(libc::CLONE_NEWNS) != 0 {
                    return Err(io::Error::last_os_error());
                }
                ops.iter().try_for_each(Op::apply)
            });
        }
        Ok(command)
    }

    fn ops(&self) -> io::Result<Vec<Op>> {
        let root = &self.root;
        let none = || c(OsStr::new("none"));
        let mut ops = vec![
            // Later mounts are not visible outside.
            Op::Mount {
                from: none()?,
                to: c(OsStr::new("/"))?,
                kind: none()?,
                flags: libc::MS_REC | libc::MS_PRIVATE,
            },
            mount(root, root, libc::MS_BIND)?,
            Op::Mount {
                from: none()?,
                to: c(root.as_os_str())?,
                kind: none()?,
                flags: libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY,
            },
            mount(Path::new("/dev"), &root.join("dev"), libc::MS_BIND | libc::MS_REC)?,
            mount(Path::new("/proc"), &root.join("proc"), libc::MS_BIND | libc::MS_REC)?,
        ];
        for folder in ["run", "tmp"] {
            ops.push(Op::Mount {
                from: none()?,
                to: c(root.join(folder).as_os_str())?,
                kind: c(OsStr::new("tmpfs"))?,
                flags: 0,
            });
        }
        let inside = root.join(INSIDE.trim_start_matches('/'));
        ops.push(Op::Folder(c(inside.as_os_str())?));
        for (name, folder, writable) in &self.binds {
            let to = inside.join(name);
            ops.push(Op::Folder(c(to.as_os_str())?));
            ops.push(mount(folder, &to, libc::MS_BIND)?);
            if !writable {
                ops.push(Op::Mount {
                    from: none()?,
                    to: c(to.as_os_str())?,
                    kind: none()?,
                    flags: libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY,
                });
            }
        }
        ops.push(Op::Enter(c(root.as_os_str())?));
        Ok(ops)
    }
}

fn mount(from: &Path, to: &Path, flags: libc::c_ulong) -> io::Result<Op> {
    Ok(Op::Mount { from: c(from.as_os_str())?, to: c(to.as_os_str())?, kind: c(OsStr::new("none"))?, flags })
}

fn c(s: &OsStr) -> io::Result<CString> {
    Ok(CString::new(s.as_bytes())?)
}

impl Op {
    fn apply(&self) -> io::Result<()> {
        // SAFETY: every pointer refers to a CString that `self` owns; no other memory is used.
        let result = unsafe {
            match self {
                Op::Mount { from, to, kind, flags } => {
                    libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), *flags, std::ptr::null())
                }
                Op::Folder(path) => libc::mkdir(path.as_ptr(), 0o755),
                Op::Enter(root) => match libc::chroot(root.as_ptr()) {
                    0 => libc::chdir(c"/".as_ptr()),
                    e => e,
                },
            }
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
