//! The lab host (L1): boots it, runs commands in it, ends it.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    accel,
    cache::{self, Lock},
    channel::{Child, Sink},
    error::{Doing, Error, Result},
    guest::{Guest, GuestSpec},
    initramfs,
    machine::{Accel, Machine, PORTS},
    patience::Patience,
    ports::Pool,
    priority::Preference,
    progress::Step,
    proto::{Request, Size},
    recipe::Kernel,
    rootfs,
};

/// How time passes in the lab host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// As on the wall: times are real and noisy. Nested guests work.
    #[default]
    Wall,
    /// The clock counts instructions, so results hardly depend on this machine. Nested guests hang in it.
    Virtual,
}

/// What lab host to boot.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Which kernel it and its guests run.
    pub kernel: Kernel,
    /// Processors, on two NUMA nodes.
    pub cpus: u32,
    /// Memory, MiB.
    pub mem_mb: u32,
    /// How time passes.
    pub mode: Mode,
    /// Folder to see there read-only at `/mnt/bin`.
    pub bin_dir: Option<PathBuf>,
    /// Folder to see there at `/mnt/out`, for results; made if it is not there.
    pub out_dir: Option<PathBuf>,
    /// Give it an SR-IOV NIC (Intel 82576, driver igb).
    pub sriov: bool,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            kernel: Kernel::default(),
            cpus: 4,
            mem_mb: 6144,
            mode: Mode::Wall,
            bin_dir: None,
            out_dir: None,
            sriov: false,
        }
    }
}

/// What a command wrote, and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit code; 128 + n if signal n ended it.
    pub code: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    pub(crate) command: String,
}

impl Output {
    /// Standard output as text, without white space at its end.
    ///
    /// # Errors
    /// If the exit code is not 0; the error holds what it wrote to standard error.
    pub fn ok(self) -> Result<String> {
        if self.code != 0 {
            let mut said = self.err_text();
            if said.is_empty() {
                said = self.text();
            }
            return Err(Error::Failed { command: self.command, code: self.code, stderr: said });
        }
        Ok(self.text())
    }

    /// Standard output as text, without white space at its end.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Standard error as text, without white space at its end.
    pub fn err_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim_end().to_owned()
    }
}

/// Limit of [`Host::run`] and [`Guest::run`]. Of this limit, as of all limits of the lab, what the emulator waits for a CPU
/// of this machine is not a part (up to five sixths of the time): a busy machine takes longer and still gets there.
pub const USUAL_LIMIT: Duration = Duration::from_secs(300);
/// How long one boot may take; usual are 5 s. See [`USUAL_LIMIT`].
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// How long the emulator may take until it offers its ports.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often it is tried.
const BOOTS: u32 = 3;
/// How long it may take to end in an orderly way.
const END_LIMIT: Duration = Duration::from_secs(15);

/// A running lab host. It ends with this value and with this process, whatever ends that.
pub struct Host {
    pool: Arc<Pool>,
    machine: Machine,
    kernel: Kernel,
    version: String,
    accelerated: bool,
    guests: AtomicU32,
}

/// A request that runs `sh` by the shell.
pub(crate) fn shell(sh: &str) -> Request {
    Request { argv: vec!["/bin/bash".into(), "-c".into(), sh.into()], ..Request::default() }
}

impl Host {
    /// Boots a lab host, preparing its root file system first if need be. Waits while another one runs on
    /// this machine.
    ///
    /// # Errors
    /// If preparation fails, or the machine does not come up though it is booted three times; the error holds its last
    /// words.
    pub fn boot(spec: &Spec) -> Result<Host> {
        let prepared = rootfs::prepare()?;
        let agent = agent_program()?;
        let cache = cache::folder()?;
        let lock = Lock::take(&cache.join("lab.lock"), "the lab host")?;
        let accel = match spec.mode {
            Mode::Wall => accel::choose(&prepared)?,
            Mode::Virtual => Accel::Tcg,
        };
        // Nobody else uses the folder while the lock is held. What the lab host before this left is kept beside it: its
        // console tells why it ended.
        let (folder, before) = (cache.join("run"), cache.join("run.before"));
        let _ = fs::remove_dir_all(&before);
        if fs::rename(&folder, &before).is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        fs::create_dir_all(folder.join("boot")).doing(|| format!("make {}", folder.display()))?;
        let program = fs::read(&agent).doing(|| format!("read {}", agent.display()))?;
        initramfs::write(&prepared, spec.kernel, &program, &folder.join("boot/initrd"))?;
        let step = Step::begin(&format!(
            "booting the lab host: kernel {}, {} CPUs, {} MiB, {}",
            prepared.version(spec.kernel),
            spec.cpus,
            spec.mem_mb,
            if accel == Accel::Kvm { "KVM" } else { "emulated" }
        ));
        let mut boots = 1;
        let (machine, pool, version) = loop {
            let machine = Machine::start(spec, accel, &prepared, &folder)?;
            let pool = Host::wait_up(&machine)?;
            match pool.ping(BOOT_LIMIT) {
                Ok((version, again)) => {
                    if again > 0 {
                        step.say(&format!(
                            "{again} of {PORTS} ports did not answer and were connected again"
                        ));
                    }
                    break (machine, pool, version);
                }
                Err(e) if boots == BOOTS => {
                    return Err(Error::Host(format!(
                        "did not come up ({e}); {}",
                        machine.emulator().last_words()
                    )));
                }
                // Emulated CPUs were seen to lose a timer and hang on a loaded machine.
                Err(e) => step.say(&format!(
                    "the lab host hangs ({e}), booting it again: {}",
                    machine.emulator().last_words()
                )),
            }
            boots += 1;
            machine.kill();
            for n in 0..PORTS {
                let _ = fs::remove_file(folder.join(format!("p{n}.sock")));
            }
        };
        machine.emulator().is_up(lock);
        step.say("the lab host is up");
        Ok(Host {
            pool: Arc::new(pool),
            machine,
            kernel: spec.kernel,
            version,
            accelerated: accel == Accel::Kvm,
            guests: AtomicU32::new(0),
        })
    }

    fn wait_up(machine: &Machine) -> Result<Pool> {
        let emulator = machine.emulator();
        let patience = Patience::begin(emulator);
        while emulator.running() && !patience.over(START_LIMIT) {
            if (0..PORTS).all(|n| emulator.folder().join(format!("p{n}.sock")).exists()) {
                return Pool::connect(emulator);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(Error::Host(format!("could not be started: {}", emulator.last_words())))
    }

    /// Runs `sh` by bash in `/root`, at most [`USUAL_LIMIT`].
    ///
    /// # Errors
    /// As [`Host::run_for`].
    pub fn run(&self, sh: &str) -> Result<Output> {
        self.run_for(sh, USUAL_LIMIT)
    }

    /// Runs `sh` by bash in `/root`. An exit code other than 0 is not an error: see [`Output::ok`].
    ///
    /// # Errors
    /// If it takes longer than `limit`: it is killed then, with all that it started. If the lab host is gone.
    pub fn run_for(&self, sh: &str, limit: Duration) -> Result<Output> {
        self.start(shell(sh), Some(limit))?.wait()
    }

    /// Starts `sh` by bash in `/root`, without a limit.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn spawn(&self, sh: &str) -> Result<Child> {
        self.start(shell(sh), None)
    }

    /// Writes a file in the lab host.
    ///
    /// # Errors
    /// If the file cannot be written there.
    pub fn put(&self, path: &str, content: &[u8]) -> Result<()> {
        let mut request = shell("cat > \"$teiji_path\"");
        request.env.push(("teiji_path".into(), path.into()));
        let child = self.start(request, Some(USUAL_LIMIT))?;
        child.write(content)?;
        child.close_input()?;
        child.wait()?.ok().map(drop)
    }

    /// Reads a file of the lab host.
    ///
    /// # Errors
    /// If the file cannot be read there.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        let mut request = shell("cat -- \"$teiji_path\"");
        request.env.push(("teiji_path".into(), path.into()));
        let output = self.start(request, Some(USUAL_LIMIT))?.wait()?;
        match output.code {
            0 => Ok(output.stdout),
            _ => output.ok().map(String::into_bytes),
        }
    }

    pub(crate) fn start(&self, request: Request, limit: Option<Duration>) -> Result<Child> {
        self.pool.start(request, limit, Sink::Keep)
    }

    /// Runs `sh` with its output passed through to this process's own, as it comes; returns its exit code.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn run_through(&self, sh: &str) -> Result<i32> {
        Ok(self.pool.start(shell(sh), None, Sink::Through)?.wait()?.code)
    }

    /// Starts `sh` on a terminal of `rows` × `columns` characters; what it writes goes to this process's
    /// standard output.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn spawn_on_terminal(&self, sh: &str, rows: u16, columns: u16) -> Result<Child> {
        let mut request = shell(sh);
        request.terminal = Some(Size { rows, columns });
        request.env.push(("TERM".into(), std::env::var("TERM").unwrap_or_else(|_| "linux".into())));
        self.pool.start(request, None, Sink::Through)
    }

    /// Starts a nested guest and waits until commands can be run in it.
    ///
    /// # Errors
    /// If it does not start or does not answer in time.
    pub fn guest(&self, spec: &GuestSpec) -> Result<Guest<'_>> {
        Guest::start(self, spec, self.guests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Version of the kernel that runs, such as `7.2.12+deb13-amd64`.
    pub fn kernel(&self) -> &str {
        &self.version
    }

    /// Process id of the emulator on this machine.
    pub fn pid(&self) -> u32 {
        self.machine.emulator().pid()
    }

    /// Which one of the lab's list that is.
    pub(crate) fn which_kernel(&self) -> Kernel {
        self.kernel
    }

    /// Whether the processor runs the lab host (KVM), or it is emulated.
    pub fn accelerated(&self) -> bool {
        self.accelerated
    }

    /// Address of the `peer` network namespace, the world outside the lab host.
    pub fn peer_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1)
    }

    /// Console log of the lab host.
    pub fn console(&self) -> PathBuf {
        self.machine.emulator().folder().join("console.log")
    }

    /// Has the emulator go before everything else of this machine while what is returned lives; for measurements
    /// without busy loops.
    ///
    /// # Errors
    /// Without root.
    pub fn prefer(&self) -> Result<Preference> {
        Preference::of(self.machine.emulator().pid())
    }

    /// The machine that it is.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Ends the lab host in an orderly way: what was written to `/mnt/out` is complete.
    pub fn power_off(self) {
        self.end();
    }

    /// [`Host::power_off`] where others still refer to it: no command can be run in it from then on, and another lab host
    /// may boot.
    pub fn end(&self) {
        self.machine.emulator().may_end();
        // The port closes while this runs: there is no answer.
        if let Ok(child) = self.spawn("sync; echo o > /proc/sysrq-trigger") {
            let emulator = self.machine.emulator();
            let patience = Patience::begin(emulator);
            while !emulator.wait(Duration::from_secs(1)) && !patience.over(END_LIMIT) {}
            drop(child);
        }
        self.machine.kill();
    }
}

/// The lab host that all tests of one process share; booted at the first call, ended with the process.
/// `/mnt/bin` is the folder of the built programs, `/mnt/out` is `lab-out` in it.
///
/// # Errors
/// As [`Host::boot`]; every later call tells the same error.
pub fn shared() -> Result<&'static Host> {
    static SHARED: OnceLock<Result<Host, String>> = OnceLock::new();
    SHARED
        .get_or_init(|| {
            let bin = agent_program().map_err(|e| e.to_string())?;
            let bin = bin.parent().map(Path::to_owned);
            let out = bin.as_ref().map(|b| b.join("lab-out"));
            Host::boot(&Spec { bin_dir: bin, out_dir: out, ..Spec::default() }).map_err(|e| e.to_string())
        })
        .as_ref()
        .map_err(|e| Error::Host(format!("is not there: {e}")))
}

/// The `teiji-lab` program of this build, which is also the agent. A test of another crate does not have it
/// built by cargo, so it is built here when run by cargo.
fn agent_program() -> Result<PathBuf> {
    let me = std::env::current_exe().doing(|| "find this program".into())?;
    if me.file_stem().is_some_and(|n| n == "teiji-lab") {
        return Ok(me);
    }
    if let Some(cargo) = std::env::var_os("CARGO") {
        let built = Command::new(&cargo)
            .args(["build", "--package", "teiji-lab", "--bin", "teiji-lab", "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
            .status()
            .doing(|| format!("run {}", cargo.display()))?;
        if !built.success() {
            return Err(Error::Protocol("could not be built: see cargo's message above".into()));
        }
    }
    me.ancestors().skip(1).take(3).map(|d| d.join("teiji-lab")).find(|p| p.is_file()).ok_or_else(|| {
        Error::Missing {
            what: format!("the program teiji-lab beside {}", me.display()),
            therefore: "the lab has no agent".into(),
            fix: "`cargo build -p teiji-lab`".into(),
        }
    })
}
