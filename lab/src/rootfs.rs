//! Makes the root file system that serves three times: the emulator of the lab host runs from it, and an
//! image of it is the root of the lab host and of every guest. So the lab is the same on every
//! host distribution.
//!
//! It is made in a folder beside its final place and renamed when complete: what is found under the final
//! name is whole.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    cache::{self, Lock},
    error::{Doing, Error, Result},
    image, initramfs, kernel,
    progress::Step,
    recipe,
};

/// A prepared root file system with its kernel.
#[derive(Debug, Clone)]
pub struct Prepared {
    folder: PathBuf,
    kernel: String,
}

impl Prepared {
    /// The root file system.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Kernel version, such as `7.2.12+deb13-amd64`.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// The kernel, unpacked: every boot is spared the unpacking.
    pub fn vmlinux(&self) -> PathBuf {
        self.root().join(recipe::VMLINUX)
    }

    /// The root file system as an image, the disk of lab host and guests.
    pub fn image(&self) -> PathBuf {
        self.folder.join(recipe::IMAGE)
    }

    /// The folder of all of it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The initial RAM file system, without the agent.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs.cpio")
    }

    fn open(folder: PathBuf) -> Option<Prepared> {
        let kernel = fs::read_to_string(folder.join("kernel")).ok()?.trim().to_owned();
        let prepared = Prepared { folder, kernel };
        let parts = [prepared.vmlinux(), prepared.image(), prepared.initramfs()];
        parts.iter().all(|p| p.exists()).then_some(prepared)
    }
}

/// Finds the prepared root file system of this recipe, or makes it (about a minute, 1 GB to download).
///
/// # Errors
/// If `mmdebstrap`, root rights, network or disk space are missing, or the kernel lacks an option.
pub fn prepare() -> Result<Prepared> {
    let cache = cache::folder()?;
    let name = format!("lab-{}", recipe::key());
    let place = cache.join(&name);
    if let Some(prepared) = Prepared::open(place.clone()) {
        return Ok(prepared);
    }
    let _lock = Lock::take(&cache.join("prepare.lock"), "the preparation of the lab")?;
    if let Some(prepared) = Prepared::open(place.clone()) {
        return Ok(prepared);
    }
    check(&cache)?;
    let step = Step::begin(&format!(
        "preparing the lab's root file system (Debian {}, {} packages and what they need) in {}",
        recipe::SUITE,
        recipe::PACKAGES.len(),
        cache.display()
    ));
    step.say(&format!("packages: {}", recipe::PACKAGES.join(" ")));
    remove_others(&cache, "");
    let building = cache.join(format!("{name}.building"));
    fs::create_dir_all(&building).doing(|| format!("make {}", building.display()))?;
    bootstrap(&building, &step)?;
    let root = building.join("root");
    let version = fs::read_to_string(root.join("etc/teiji-lab-kernel"))
        .doing(|| "read which kernel was unpacked".into())?
        .trim()
        .to_owned();
    kernel::check(&root, &version)?;
    step.say(&format!("kernel {version} has every option that the lab needs"));
    initramfs::build(&root, &version, &building.join("initramfs.cpio"))?;
    kernel::unpack(&root, &version, &root.join(recipe::VMLINUX))?;
    step.say("making the image of the root file system");
    image::build(&root, &building, recipe::IMAGE)?;
    fs::write(building.join("kernel"), &version).doing(|| "note the kernel's version".into())?;
    fs::rename(&building, &place).doing(|| format!("rename {} into place", building.display()))?;
    remove_others(&cache, &name);
    step.say("the lab's root file system is ready");
    Prepared::open(place).ok_or_else(|| Error::Host("was prepared but its files are not there".into()))
}

fn check(cache: &Path) -> Result<()> {
    let missing = |what: &str, fix: String| Error::Missing {
        what: what.into(),
        therefore: "the lab's root file system cannot be made".into(),
        fix,
    };
    if !nix::unistd::geteuid().is_root() {
        return Err(missing("root", "run as root, or `sudo -E make lab-prepare` first".into()));
    }
    if which("mmdebstrap").is_none() {
        return Err(missing("mmdebstrap", "`make deps` installs it".into()));
    }
    let free = cache::free_bytes(cache)?;
    if free < recipe::DISK_NEEDED {
        return Err(missing(
            &format!("disk space ({} MB free)", free >> 20),
            format!("free {} MB in {} or set TEIJI_CACHE", recipe::DISK_NEEDED >> 20, cache.display()),
        ));
    }
    Ok(())
}

/// Finds a program in `PATH`.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path).map(|d| d.join(name)).find(|p| p.is_file())
}

/// Removes root file systems of other recipes and what an ended preparation left; `keep` stays.
fn remove_others(cache: &Path, keep: &str) {
    // A lab host that runs may be one of another recipe: then the next preparation removes it.
    let nobody_runs = Lock::take_if_free(&cache.join("lab.lock"));
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let unfinished = name.ends_with(".building");
        if name.starts_with("lab-")
            && entry.path().is_dir()
            && (unfinished || !keep.is_empty() && nobody_runs.is_some())
            && *name != *keep
        {
            // Best effort: a folder that stays costs disk, nothing else.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The mirror of the Debian archive that this machine uses itself, if it is a Debian machine.
fn mirror() -> Option<String> {
    if let Some(given) = std::env::var("TEIJI_MIRROR").ok().filter(|m| !m.is_empty()) {
        return Some(given);
    }
    let out = Command::new("apt-get")
        .args(["indextargets", "--format", "$(SITE)", "Origin: Debian", "Label: Debian", "Component: main"])
        .arg("Created-By: Packages")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(out.stdout).ok()?.lines().next().map(str::to_owned)
}

fn bootstrap(building: &Path, step: &Step) -> Result<()> {
    let script = building.join("kernel.sh");
    fs::write(&script, recipe::KERNEL_SCRIPT).doing(|| format!("write {}", script.display()))?;
    let mut hook = OsString::from("chroot \"$1\" sh -s ");
    hook.push(recipe::KERNEL_SUITE);
    hook.push(format!(" < '{}'", script.display()));
    let mut hook_arg = OsString::from("--customize-hook=");
    hook_arg.push(hook);
    // A mount namespace of its own: whatever happens, nothing stays mounted.
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "mmdebstrap", "--variant=minbase", "--mode=root"])
        .args(["--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\""])
        .args(["--aptopt=Acquire::Retries \"3\"", "--dpkgopt=path-exclude=/usr/share/man/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*"])
        .arg(format!("--include={}", recipe::PACKAGES.join(",")))
        .arg(hook_arg)
        .arg(recipe::SUITE)
        .arg(building.join("root"))
        .env("TMPDIR", building)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if let Some(site) = mirror() {
        command.arg(format!("deb {site} {} main", recipe::SUITE));
        command.arg(format!("deb {site} {}-updates main", recipe::SUITE));
    }
    let mut child = command.spawn().doing(|| "start mmdebstrap".into())?;
    let mut last = Vec::new();
    if let Some(err) = child.stderr.take() {
        for line in BufReader::new(err).lines().map_while(|l| l.ok()) {
            if let Some(told) = line.strip_prefix("I: ") {
                step.say(told);
            }
            last.push(line);
            if last.len() > 25 {
                last.remove(0);
            }
        }
    }
    let status = child.wait().doing(|| "wait for mmdebstrap".into())?;
    if !status.success() {
        return Err(Error::Failed {
            command: "mmdebstrap".into(),
            code: status.code().unwrap_or(-1),
            stderr: last.join("\n"),
        });
    }
    fs::remove_file(&script).doing(|| format!("remove {}", script.display()))
}
