//! The emulated machine of the lab host: its arguments and its process.
//!
//! ```text
//! start --> running --(power off, kill, owner dies)--> ended
//! ```

use std::{
    fs, io,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    cache::Lock,
    confine::{Confine, INSIDE},
    ends::{self, End},
    error::{Doing, Error, Result},
    host::{Mode, NIC_PAIR, PF_MAC, Spec, WIRE_MAC},
    monitor,
    recipe::{IMAGE, Kernel},
    remote::WITNESS,
    rootfs::Prepared,
    tsc,
};

/// Ports for commands: this many commands can run at the same time. With 16 the lab host's kernel misses one of them at each boot:
/// see [`crate::ports::Pool::ping`].
pub(crate) const PORTS: usize = 15;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// QEMU's `-machine` of all machines of the lab: without devices that nothing uses, as a kernel takes long to probe for them.
pub(crate) const MACHINE: &str = "q35,hpet=off,sata=off,i8042=off,smbus=off,smm=off";
/// Kernel command line of all machines of the lab. `tsc=reliable`: the TSC is not compared with another clock.
/// `cryptomgr.notests`: no self-tests of ciphers, which take an emulated CPU seconds. `init_on_alloc`: nor is memory set to zero twice.
pub(crate) const KERNEL_CMDLINE: &str = "console=ttyS0 loglevel=4 tsc=reliable no_timer_check panic=-1 mitigations=off \
                                         random.trust_cpu=on cryptomgr.notests=1 init_on_alloc=0";

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

/// The emulator's process, for code that waits for something in it.
pub(crate) struct Emulator {
    pid: u32,
    /// Sockets, console log, initial RAM disk.
    folder: PathBuf,
    ended: Mutex<Option<Ended>>,
    changed: Condvar,
    /// Whether it has been asked to end.
    ending: AtomicBool,
    kill: AtomicBool,
    /// Held from the time when the machine is up until the emulator has ended.
    lock: Mutex<Option<Lock>>,
}

/// How an emulator ended.
struct Ended {
    how: io::Result<ExitStatus>,
    end: End,
    /// The last lines of its logs: the folder belongs to the next lab host after the lock is released.
    lines: String,
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

    /// Connects to a socket in its folder.
    pub(crate) fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let dir = fs::File::open(&self.folder)?;
        // By descriptor, as the path of a socket is limited to 107 bytes.
        UnixStream::connect(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
    }

    fn ended(&self) -> MutexGuard<'_, Option<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how the emulator has ended.
    pub(crate) fn has_ended(&self, how: io::Result<ExitStatus>) {
        let mut ended = self.ended();
        let [qemu, console] = ["qemu.log", "console.log"].map(|file| self.log(file));
        let end = End::of(self.ending.load(Ordering::Relaxed), &how, &qemu, &console);
        let lines = lines(&qemu, &console);
        // Code that sees `ended` also sees that the end was counted. The lock is held until the logs were read.
        let lock = self.lock().take();
        if lock.is_some() {
            ends::count(&end, &lines);
        }
        *ended = Some(Ended { how, end, lines });
        self.changed.notify_all();
    }

    fn log(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(file)).unwrap_or_default()).into_owned()
    }

    /// Whose end it was, if it has ended.
    pub(crate) fn end(&self) -> Option<End> {
        self.ended().as_ref().map(|ended| ended.end.clone())
    }

    /// From now on the end of the emulator is not a failure.
    pub(crate) fn may_end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Records that the machine has come up; `lock` is held until the emulator has ended.
    pub(crate) fn is_up(&self, lock: Lock) {
        // Held until the lock is stored, so that the emulator cannot end in between and leave it there for ever.
        let ended = self.ended();
        match &*ended {
            None => {
                ends::watch(self.folder.join("console.log"));
                *self.lock() = Some(lock);
            }
            Some(ended) => ends::count(&ended.end, &ended.lines),
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

    /// Judges a machine that does not answer although its emulator runs, and counts that as its end unless it was asked
    /// to end. Returns why, and what is known about it.
    pub(crate) fn hangs(&self) -> (String, String) {
        let asked = self.ending.load(Ordering::Relaxed);
        let end = End::of_hang(asked, &self.log("console.log"));
        let state = format!("{}{}", self.how_it_ended(), monitor::cpus(self));
        ends::count(&end, &format!("; {state}"));
        (end.why().unwrap_or("it was asked to end").to_owned(), state)
    }

    /// How it ended, if it has, and the last lines of its console and of its own messages.
    pub(crate) fn how_it_ended(&self) -> String {
        match &*self.ended() {
            None => {
                format!("the emulator runs{}", lines(&self.log("qemu.log"), &self.log("console.log")))
            }
            Some(Ended { how, end, lines }) => {
                let how = match how {
                    Ok(status) => format!("the emulator ended ({status})"),
                    Err(e) => format!("the emulator could not be waited for ({e})"),
                };
                let why = end.why().map(|why| format!(": {why}")).unwrap_or_default();
                format!("{how}{why}{lines}")
            }
        }
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

/// [`ends::last_lines`], each on a line of its own.
fn lines(qemu: &str, console: &str) -> String {
    ends::last_lines(qemu, console).iter().map(|(file, line)| format!("\n  {file}: {line}")).collect()
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
    let mut a = args("-nodefaults -no-user-config -display none -no-reboot -machine");
    a.push(MACHINE.into());
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

/// One of the two ends of a wire between two NICs.
fn end_of_wire(name: &str, n: usize) -> String {
    let path = |n: usize| format!("{INSIDE}/run/{name}{n}");
    format!(
        "-netdev dgram,id={name}{n},local.type=unix,local.path={},remote.type=unix,remote.path={}",
        path(n),
        path(1 - n)
    )
}

/// Arguments of the lab host.
fn lab_host_args(spec: &Spec, accel: Accel) -> Vec<String> {
    let mut a = base_args(accel, spec.mode);
    let mut add = |s: String| a.extend(args(&s));
    if spec.passthrough {
        // It has to come before the devices that it translates for. KVM leaves interrupts of devices to QEMU for its sake.
        if accel == Accel::Kvm {
            add("-machine kernel-irqchip=split".into());
        }
        add("-device intel-iommu,intremap=on".into());
    }
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
    add(format!("-monitor unix:{INSIDE}/run/{},server=on,wait=off", monitor::SOCKET));
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
        "{KERNEL_CMDLINE} teiji.level=1 teiji.name=lab teiji.shares={}",
        shares.iter().map(|(n, _)| format!(",{n}")).collect::<String>() + ","
    );
    if let (Mode::Wall, Accel::Tcg, Some(khz)) = (spec.mode, accel, tsc::khz()) {
        line += &format!(" tsc_early_khz={khz}");
    }
    if spec.mode == Mode::Wall {
        line += &format!(" {WITNESS}");
    }
    if spec.bin_is_final {
        line += " teiji.bin=loose";
    }
    if spec.sriov {
        add("-device pcie-root-port,id=nicport,chassis=1,slot=1 -netdev user,id=nic,restrict=on".into());
        add("-device igb,bus=nicport,netdev=nic,mac=52:54:00:77:01:01".into());
        line += " iomem=relaxed";
    }
    if spec.nic_pair {
        for (n, mac) in NIC_PAIR.iter().enumerate() {
            add(format!("{} -device e1000e,netdev=wire{n},mac={mac}", end_of_wire("wire", n)));
        }
    }
    if spec.passthrough {
        add("-device pcie-root-port,id=pfport,chassis=2,slot=2".into());
        add(format!("{} -device igb,bus=pfport,netdev=vfs0,mac={PF_MAC}", end_of_wire("vfs", 0)));
        add(format!("{} -device e1000e,netdev=vfs1,mac={WIRE_MAC}", end_of_wire("vfs", 1)));
        // The lab host's own devices are not translated, which would cost each of their packets time.
        line += " intel_iommu=on iommu=pt";
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
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_stuck_cpu_is_read_from_the_console() {
        let line = "[  214.270170] watchdog: BUG: soft lockup - CPU#1 stuck for 104s! [CPU 3/KVM:344]";
        assert_eq!(stuck_for(line), Some(Duration::from_secs(104)));
        assert_eq!(stuck_for("[  1.0] systemd: stuck for 104s!"), None);
        assert_eq!(stuck_for("soft lockup stuck for s!"), None);
    }

    /// The lock of a lab host that has come up is released when its emulator ends, whichever of the two is seen first, and
    /// the end counts.
    #[test]
    fn the_lock_is_released_and_the_end_counted_even_if_the_emulator_ended_before_it_was_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        fs::write(folder.path().join("console.log"), "[    1.0] teiji-lab: ready\n").unwrap();
        for (code, ended_first) in [(71, false), (72, true)] {
            let emulator = Emulator::new(0, folder.path());
            let end = || emulator.has_ended(Ok(ExitStatus::from_raw(code << 8)));
            if ended_first {
                end();
            }
            emulator.is_up(Lock::take_if_free(&path).unwrap());
            if !ended_first {
                assert!(Lock::take_if_free(&path).is_none(), "released while the emulator runs");
                end();
            }
            assert!(Lock::take_if_free(&path).is_some(), "held after the end");
            let counted = |why: &&String| why.contains(&format!("exit status: {code})"));
            assert_eq!(ends::failures().iter().filter(counted).count(), 1);
            assert!(emulator.how_it_ended().contains("console.log: [    1.0] teiji-lab: ready"));
        }
    }

    /// An end and the rise at the same time: many times, as the order is left to chance.
    #[test]
    fn an_end_while_the_machine_comes_up_leaves_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        for _ in 0..500 {
            let emulator = Emulator::new(0, folder.path());
            emulator.may_end();
            let lock = Lock::take_if_free(&path).unwrap();
            thread::scope(|s| {
                s.spawn(|| emulator.has_ended(Ok(ExitStatus::from_raw(0))));
                emulator.is_up(lock);
            });
            assert!(Lock::take_if_free(&path).is_some());
        }
    }
}
