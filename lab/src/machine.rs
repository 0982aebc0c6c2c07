//! The emulated machine of the lab host: its arguments and its process.
//!
//! ```text
//! start --> running --(power off, kill, owner dies)--> ended
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    cache::Lock,
    confine::{Confine, INSIDE},
    error::{Doing, Error, Result},
    host::{Mode, Spec},
    recipe::{IMAGE, Kernel},
    rootfs::Prepared,
    tsc,
};

/// Ports for commands: this many commands can run at the same time.
pub(crate) const PORTS: usize = 16;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// How the machine's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accel {
    /// By the processor; shown to work on this machine.
    Kvm,
    /// By translation.
    Tcg,
}

/// A running emulator. It ends when this is dropped.
pub(crate) struct Machine {
    emulator: Arc<Emulator>,
    waiter: Option<thread::JoinHandle<()>>,
}

/// How many emulators of this process have failed: see [`Emulator::has_failed`].
static FAILED: AtomicU32 = AtomicU32::new(0);

/// How many emulators of this process have failed after their machine had come up.
pub(crate) fn failed() -> u32 {
    FAILED.load(Ordering::Relaxed)
}

/// The emulator's process, for code that waits for something in it.
pub(crate) struct Emulator {
    pid: u32,
    /// Sockets, console log, initial RAM disk.
    folder: PathBuf,
    ended: Mutex<Option<io::Result<ExitStatus>>>,
    changed: Condvar,
    /// Whether it has been asked to end.
    ending: AtomicBool,
    kill: AtomicBool,
    /// Held from the time when the machine is up until the emulator has ended.
    lock: Mutex<Option<Lock>>,
}

impl Emulator {
    pub(crate) fn new(pid: u32, folder: &Path) -> Emulator {
        Emulator {
            pid,
            folder: folder.to_owned(),
            ended: Mutex::default(),
            changed: Condvar::new(),
            ending: AtomicBool::new(false),
            kill: AtomicBool::new(false),
            lock: Mutex::default(),
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sockets, console log, initial RAM disk.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn ended(&self) -> MutexGuard<'_, Option<io::Result<ExitStatus>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how the emulator has ended.
    pub(crate) fn has_ended(&self, how: io::Result<ExitStatus>) {
        // `ended` is set last: code that sees it also sees whether the emulator has failed.
        let mut ended = self.ended();
        if self.lock().take().is_some() && self.has_failed() {
            FAILED.fetch_add(1, Ordering::Relaxed);
        }
        *ended = Some(how);
        self.changed.notify_all();
    }

    /// Whether the end of the emulator is a failure of it: nobody asked for it, and the kernel in it did not panic. The
    /// emulator must have ended.
    fn has_failed(&self) -> bool {
        let console = fs::read(self.folder.join("console.log")).unwrap_or_default();
        !self.ending.load(Ordering::Relaxed) && !String::from_utf8_lossy(&console).contains("Kernel panic")
    }

    /// From now on the end of the emulator is not a failure.
    pub(crate) fn may_end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Records that the machine has come up; `lock` is held until the emulator has ended.
    pub(crate) fn is_up(&self, lock: Lock) {
        if self.ended().is_none() {
            *self.lock() = Some(lock);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is still running.
    pub(crate) fn running(&self) -> bool {
        self.ended().is_none()
    }

    /// Waits until it has ended, for at most `limit`; returns whether it has.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut ended = self.ended();
        while ended.is_none() {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            ended = self.changed.wait_timeout(ended, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// How it ended, if it has, and the last lines of its console and of its own messages.
    pub(crate) fn how_it_ended(&self) -> String {
        let mut printed = match &*self.ended() {
            None => String::from("the emulator runs"),
            Some(Ok(status)) => format!("the emulator ended ({status})"),
            Some(Err(e)) => format!("the emulator could not be waited for ({e})"),
        };
        for file in ["qemu.log", "console.log"] {
            let text = fs::read(self.folder.join(file)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            // The emulator prints this for several features at every start.
            let lines: Vec<_> =
                text.lines().filter(|l| !l.contains("doesn't support requested feature")).collect();
            for l in &lines[lines.len().saturating_sub(15)..] {
                printed += &format!("\n  {file}: {l}");
            }
        }
        printed
    }

    /// The length of its console log, bytes.
    pub(crate) fn console_length(&self) -> usize {
        let length = fs::metadata(self.folder.join("console.log")).map_or(0, |m| m.len());
        usize::try_from(length).unwrap_or(usize::MAX)
    }

    /// Whether its kernel has reported, after the first `printed` bytes of the log, that a CPU was stuck for at least this
    /// long, in its own time.
    pub(crate) fn stuck(&self, from: usize, at_least: Duration) -> bool {
        let text = fs::read(self.folder.join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(text.get(from..).unwrap_or_default())
            .lines()
            .any(|l| stuck_for(l).is_some_and(|t| t >= at_least))
    }
}

/// The time in a line such as `watchdog: BUG: soft lockup - CPU#1 stuck for 104s! [CPU 3/KVM:344]`.
fn stuck_for(line: &str) -> Option<Duration> {
    let (_, rest) = line.split_once("soft lockup")?;
    let (_, rest) = rest.split_once("stuck for ")?;
    let (seconds, _) = rest.split_once("s!")?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// Arguments of every machine of the lab.
fn base_args(accel: Accel, mode: Mode) -> Vec<String> {
    let mut a = args("-nodefaults -no-user-config -display none -no-reboot -machine q35,hpet=off");
    a.extend(match (mode, accel) {
        (Mode::Wall, Accel::Kvm) => args("-accel kvm -cpu host"),
        (Mode::Wall, Accel::Tcg) => args("-accel tcg,thread=multi -cpu EPYC,+svm,+npt"),
        (Mode::Virtual, _) => args("-accel tcg,thread=single -icount shift=1,sleep=off -cpu EPYC,+svm,+npt"),
    });
    a
}

fn args(s: &str) -> Vec<String> {
    s.split_whitespace().map(str::to_owned).collect()
}

/// Arguments of the lab host.
fn lab_host_args(spec: &Spec, accel: Accel) -> Vec<String> {
    let mut a = base_args(accel, spec.mode);
    let mut add = |s: String| a.extend(args(&s));
    let half = spec.mem_mb / 2;
    let first_cpus = spec.cpus.div_ceil(2);
    add(format!("-m {}", half * 2));
    if spec.cpus >= 2 {
        add(format!("-smp {},sockets=2,cores={},maxcpus={}", spec.cpus, first_cpus, first_cpus * 2));
        add(format!(
            "-object memory-backend-ram,id=m0,size={half}M -object memory-backend-ram,id=m1,size={half}M"
        ));
        add(format!("-numa node,nodeid=0,memdev=m0,cpus=0-{}", first_cpus - 1));
        add(format!("-numa node,nodeid=1,memdev=m1,cpus={first_cpus}-{}", first_cpus * 2 - 1));
        add("-numa dist,src=0,dst=1,val=21".into());
    } else {
        add("-smp 1".into());
    }
    add(format!("-kernel /{} -initrd {INSIDE}/boot/initrd", spec.kernel.vmlinux()));
    add(format!("-drive if=none,id=root,format=raw,readonly=on,cache=unsafe,file={INSIDE}/lab/{IMAGE}"));
    add("-device virtio-blk-pci,drive=root,serial=root".into());
    add(format!("-serial file:{INSIDE}/run/console.log"));
    // A machine that resets itself (a triple fault) would otherwise end without a message; this goes to `qemu.log`.
    add("-d cpu_reset".into());
    add("-device virtio-rng-pci".into());
    add(format!("-device virtio-serial-pci,max_ports={}", PORTS + 1));
    for n in 0..PORTS {
        add(format!("-chardev socket,id=p{n},path={INSIDE}/run/p{n}.sock,server=on,wait=off"));
        add(format!("-device virtserialport,chardev=p{n},name=teiji.{n}"));
    }
    let mut shares = vec![("boot", true)];
    shares.extend(spec.bin_dir.is_some().then_some(("bin", true)));
    shares.extend(spec.out_dir.is_some().then_some(("out", false)));
    for (name, readonly) in &shares {
        let ro = if *readonly { ",readonly=on" } else { "" };
        add(format!("-fsdev local,id={name},path={INSIDE}/{name},security_model=none,multidevs=remap{ro}"));
        add(format!("-device virtio-9p-pci,fsdev={name},mount_tag={name}"));
    }
    let mut line = format!(
        "console=ttyS0 loglevel=4 tsc=reliable no_timer_check panic=-1 mitigations=off random.trust_cpu=on teiji.level=1 teiji.name=lab teiji.shares={}",
        shares.iter().map(|(n, _)| format!(",{n}")).collect::<String>() + ","
    );
    if let (Mode::Wall, Accel::Tcg, Some(khz)) = (spec.mode, accel, tsc::khz()) {
        line += &format!(" tsc_early_khz={khz}");
    }
    if spec.sriov {
        add("-device pcie-root-port,id=nicport,chassis=1,slot=1 -netdev user,id=nic,restrict=on".into());
        add("-device igb,bus=nicport,netdev=nic,mac=52:54:00:77:01:01".into());
        line += " iomem=relaxed";
    }
    a.extend(["-append".into(), line]);
    a
}

impl Machine {
    /// Starts the lab host; on return it is running but has not booted yet.
    pub(crate) fn start(spec: &Spec, accel: Accel, prepared: &Prepared, folder: &Path) -> Result<Machine> {
        let mut view = Confine::new(&prepared.root())
            .bind("run", folder, true)
            .bind("boot", &folder.join("boot"), false)
            .bind("lab", prepared.folder(), false);
        for (name, dir, writable) in [("bin", &spec.bin_dir, false), ("out", &spec.out_dir, true)] {
            if let Some(dir) = dir {
                if writable {
                    fs::create_dir_all(dir).doing(|| format!("make {}", dir.display()))?;
                }
                let dir = dir.canonicalize().doing(|| format!("find the shared folder {}", dir.display()))?;
                view = view.bind(name, &dir, writable);
            }
        }
        Machine::launch(view, lab_host_args(spec, accel), folder)
    }

    /// Starts a machine that only reports that it can run the kernel, for [`crate::accel`].
    pub(crate) fn start_probe(prepared: &Prepared, folder: &Path) -> Result<Machine> {
        let view = Confine::new(&prepared.root()).bind("run", folder, true);
        let mut a = base_args(Accel::Kvm, Mode::Wall);
        a.extend(args(&format!(
            "-m 512 -kernel /{} -initrd {INSIDE}/run/initrd -serial file:{INSIDE}/run/console.log",
            Kernel::default().vmlinux()
        )));
        a.extend(["-append".into(), "console=ttyS0 quiet panic=-1 teiji.probe".into()]);
        Machine::launch(view, a, folder)
    }

    fn launch(view: Confine, arguments: Vec<String>, folder: &Path) -> Result<Machine> {
        let log_path = folder.join("qemu.log");
        let log = fs::File::create(&log_path).doing(|| format!("write {}", log_path.display()))?;
        let mut command = view.command(QEMU).doing(|| "prepare the emulator".into())?;
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().doing(|| "share the emulator's log".into())?)
            .stderr(log);
        let (started, has_started) = mpsc::channel();
        // The emulator dies with the thread that started it, so that thread stays until the emulator has ended.
        let waiter = thread::Builder::new()
            .name("lab-emulator".into())
            .spawn({
                let folder = folder.to_owned();
                move || {
                    let mut child = match command.spawn() {
                        Ok(child) => child,
                        Err(e) => {
                            let _ = started.send(Err(e));
                            return;
                        }
                    };
                    let emulator = Arc::new(Emulator::new(child.id(), &folder));
                    let _ = started.send(Ok(emulator.clone()));
                    let end = loop {
                        if emulator.kill.load(Ordering::Relaxed) {
                            // It fails only if the emulator has already ended.
                            let _ = child.kill();
                            break child.wait();
                        }
                        match child.try_wait() {
                            Ok(None) => thread::sleep(Duration::from_millis(20)),
                            Ok(Some(status)) => break Ok(status),
                            Err(e) => break Err(e),
                        }
                    };
                    emulator.has_ended(end);
                }
            })
            .doing(|| "start a thread".into())?;
        let emulator = has_started
            .recv()
            .map_err(|_| Error::LabHost("could not be started".into()))?
            .doing(|| format!("start {QEMU} in the lab's root file system (is this root?)"))?;
        Ok(Machine { emulator, waiter: Some(waiter) })
    }

    /// The emulator's process.
    pub(crate) fn emulator(&self) -> &Arc<Emulator> {
        &self.emulator
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        self.emulator.may_end();
        self.emulator.kill.store(true, Ordering::Relaxed);
        self.emulator.wait(Duration::from_secs(10));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
        if let Some(k) = self.waiter.take() {
            let _ = k.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_cpu_is_read_from_the_console() {
        let line = "[  214.270170] watchdog: BUG: soft lockup - CPU#1 stuck for 104s! [CPU 3/KVM:344]";
        assert_eq!(stuck_for(line), Some(Duration::from_secs(104)));
        assert_eq!(stuck_for("[  1.0] systemd: stuck for 104s!"), None);
        assert_eq!(stuck_for("soft lockup stuck for s!"), None);
    }

    #[test]
    fn an_end_that_was_asked_for_and_a_kernel_that_panics_are_no_faults_of_the_emulator() {
        let folder = std::env::temp_dir().join(format!("teiji-emulator-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let emulator = || Emulator::new(0, &folder);
        let says = |text: &str| fs::write(folder.join("console.log"), text).unwrap();
        says("[    1.0] teiji-lab: ready\n");
        assert!(emulator().has_failed());
        let asked = emulator();
        asked.may_end();
        assert!(!asked.has_failed());
        says("[    1.0] Kernel panic - not syncing: Fatal exception in interrupt\n");
        assert!(!emulator().has_failed());
        fs::remove_dir_all(&folder).unwrap();
    }
}
