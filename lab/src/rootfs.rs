//! Makes the root file system, which is used three times: the emulator of the lab host runs from it, and an image of it
//! is the root of the lab host and of every guest. So the lab is the same on every host distribution.
//!
//! It is made in a folder beside its final place and renamed when complete: a folder with the final name is complete.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    cache::{self, Lock, Slot},
    error::{Doing, Error, Result},
    image, initramfs, kernel,
    progress::ProgressStep,
    recipe::{self, Kernel},
};

/// A prepared root file system with its kernels.
#[derive(Debug, Clone)]
pub struct Prepared {
    folder: PathBuf,
    /// The versions of the kernels, in the order of [`Kernel::ALL`].
    versions: [String; Kernel::ALL.len()],
}

impl Prepared {
    /// The root file system.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The version of a kernel, such as `7.2.12+deb13-amd64`.
    pub fn version(&self, kernel: Kernel) -> &str {
        &self.versions[kernel as usize]
    }

    /// An unpacked kernel, so that no boot has to unpack it.
    pub fn vmlinux(&self, kernel: Kernel) -> PathBuf {
        self.root().join(kernel.vmlinux())
    }

    /// The image of the root file system, the disk of the lab host and its guests.
    pub fn image(&self) -> PathBuf {
        self.folder.join(recipe::IMAGE)
    }

    /// The folder of all these files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The initial RAM file system of a kernel, without the agent.
    pub fn initramfs(&self, kernel: Kernel) -> PathBuf {
        self.folder.join(format!("initramfs-{}.cpio", kernel.name()))
    }

    fn open(folder: PathBuf) -> Option<Prepared> {
        let mut prepared = Prepared { folder, versions: Default::default() };
        for kernel in Kernel::ALL {
            prepared.versions[kernel as usize] = version(&prepared.root(), kernel).ok()?;
            let parts = [prepared.vmlinux(kernel), prepared.initramfs(kernel)];
            if !parts.iter().all(|p| p.exists()) {
                return None;
            }
        }
        prepared.image().exists().then_some(prepared)
    }
}

/// The version of a kernel that was installed into `root`; boot/kernel.sh stores it there.
fn version(root: &Path, kernel: Kernel) -> Result<String> {
    let path = root.join(format!("etc/teiji-lab-kernel-{}", kernel.name()));
    let text = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Finds the prepared root file system of this recipe, or makes it (some minutes, 1 GB to download).
///
/// # Errors
/// If `mmdebstrap`, root privileges, network or disk space are missing, or a kernel lacks an option.
pub fn prepare() -> Result<Prepared> {
    let cache = cache::folder()?;
    let name = format!("lab-{}", recipe::key());
    let target = cache.join(&name);
    if let Some(prepared) = Prepared::open(target.clone()) {
        return Ok(prepared);
    }
    let _lock = Lock::take(&cache.join("prepare.lock"), "the preparation of the lab")?;
    if let Some(prepared) = Prepared::open(target.clone()) {
        return Ok(prepared);
    }
    check(&cache)?;
    let step = ProgressStep::begin(&format!(
        "preparing the lab's root file system (Debian {}, {} packages and what they need) in {}",
        recipe::SUITE,
        recipe::PACKAGES.len(),
        cache.display()
    ));
    step.say(&format!(
        "packages: {}, and from {} {}",
        recipe::PACKAGES.join(" "),
        recipe::EMULATOR_SUITE,
        recipe::EMULATOR.join(" ")
    ));
    remove_others(&cache, "");
    let building = cache.join(format!("{name}.building"));
    fs::create_dir_all(&building).doing(|| format!("make {}", building.display()))?;
    bootstrap(&building, &step)?;
    let root = building.join("root");
    let made = Prepared { folder: building.clone(), versions: Default::default() };
    for kernel in Kernel::ALL {
        let version = version(&root, kernel)?;
        kernel::check(&root, &version, kernel)?;
        step.say(&format!("kernel {version} ({}) has every option that the lab needs of it", kernel.name()));
        initramfs::build(&root, &version, &made.initramfs(kernel))?;
        kernel::unpack(&root, &version, &made.vmlinux(kernel))?;
    }
    step.say("making the image of the root file system");
    image::build(&root, &building, recipe::IMAGE)?;
    fs::rename(&building, &target).doing(|| format!("rename {} into place", building.display()))?;
    remove_others(&cache, &name);
    step.say("the lab's root file system is ready");
    Prepared::open(target).ok_or_else(|| Error::LabHost("was prepared but its files are not there".into()))
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

/// Removes root file systems of other recipes, and files of an interrupted preparation; `keep` stays.
fn remove_others(cache: &Path, keep: &str) {
    // A running lab host may use another recipe: then the next preparation removes its files.
    let nobody_runs = Slot::take_all_if_free(cache);
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let unfinished = name.ends_with(".building");
        if name.starts_with("lab-")
            && entry.path().is_dir()
            && (unfinished || !keep.is_empty() && nobody_runs.is_some())
            && *name != *keep
        {
            // Best effort: a folder that remains only uses disk space.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The mirror of the Debian archive that this machine uses, if it is a Debian machine.
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

fn bootstrap(building: &Path, step: &ProgressStep) -> Result<()> {
    let hook = |name: &str, script: &str, arguments: String| {
        let path = building.join(name);
        fs::write(&path, format!("{}{script}", recipe::SUITE_SCRIPT))
            .doing(|| format!("write {}", path.display()))?;
        Ok(format!("--customize-hook=chroot \"$1\" sh -s {arguments} < '{}'", path.display()))
    };
    let emulator = format!("{} {}", recipe::EMULATOR_SUITE, recipe::EMULATOR.join(" "));
    let mut hooks = vec![hook("emulator.sh", recipe::EMULATOR_SCRIPT, emulator)?];
    for kernel in Kernel::ALL {
        hooks.push(hook(
            "kernel.sh",
            recipe::KERNEL_SCRIPT,
            format!("{} {}", kernel.suite(), kernel.name()),
        )?);
    }
    // A separate mount namespace, so that nothing stays mounted in any case.
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "mmdebstrap", "--variant=minbase", "--mode=root"])
        .args(["--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\""])
        .args(["--aptopt=Acquire::Retries \"3\"", "--dpkgopt=path-exclude=/usr/share/man/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*"])
        .arg(format!("--include={}", recipe::PACKAGES.join(",")))
        .args(&hooks)
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
            if let Some(message) = line.strip_prefix("I: ") {
                step.say(message);
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
    for script in ["emulator.sh", "kernel.sh"] {
        let path = building.join(script);
        fs::remove_file(&path).doing(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}
