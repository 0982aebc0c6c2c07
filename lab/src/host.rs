//! The lab host (L1): boots it, runs commands in it, shuts it down.

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
    cache::{self, Slot},
    child::{Child, Sink},
    ends::{self, End},
    error::{Doing, Error, Result},
    guest::{Guest, GuestSpec, VF_NET},
    initramfs,
    machine::{Accel, Machine, PORTS},
    monitor,
    ports::{EXIT_LIMIT, Pool},
    progress::ProgressStep,
    proto::{RunRequest, Size},
    recipe::Kernel,
    rootfs,
    stopwatch::Stopwatch,
    turns::Turns,
};

/// How time passes in the lab host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Real time: measurements are real and have noise. Nested guests work.
    #[default]
    Wall,
    /// The clock counts instructions, so results hardly depend on this machine. Nested guests hang in this mode.
    Virtual,
}

/// The lab host to boot.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The kernel of the lab host and its guests.
    pub kernel: Kernel,
    /// Number of processors, on two NUMA nodes.
    pub cpus: u32,
    /// Memory, MiB.
    pub mem_mb: u32,
    /// How time passes.
    pub mode: Mode,
    /// A folder that is visible read-only at `/mnt/bin`.
    pub bin_dir: Option<PathBuf>,
    /// Whether its files stay as they are: the lab host then reads each once. Otherwise it looks at them each time, which takes
    /// seconds on a busy machine.
    pub bin_is_final: bool,
    /// A folder for results that is visible at `/mnt/out`; it is created if it does not exist.
    pub out_dir: Option<PathBuf>,
    /// Whether it has an SR-IOV NIC (Intel 82576, driver igb).
    pub sriov: bool,
    /// Whether it has two NICs on one wire (Intel 82574L, driver e1000e). Their MAC addresses are [`NIC_PAIR`].
    pub nic_pair: bool,
    /// Whether it has an SR-IOV NIC, named [`PF`], whose virtual functions guests can have ([`GuestSpec::vf`]), and an IOMMU. The other
    /// end of its wire is a NIC of the network namespace `peer`, [`WIRE`] (Intel 82574L). Not together with `sriov`.
    pub passthrough: bool,
}

/// The physical function of an SR-IOV NIC whose virtual functions guests can have; see [`Spec::passthrough`].
pub const PF: &str = "pf0";
/// The NIC of the network namespace `peer` at the other end of its wire.
pub const WIRE: &str = "wire0";
/// The MAC addresses of these two.
pub(crate) const PF_MAC: &str = "52:54:00:77:01:01";
pub(crate) const WIRE_MAC: &str = "52:54:00:77:01:02";
/// Brings up both ends of the wire, and makes the virtual functions.
const PASSTHROUGH: &str = include_str!("boot/passthrough.sh");

/// See [`Spec::nic_pair`].
pub const NIC_PAIR: [&str; 2] = ["52:54:00:77:02:01", "52:54:00:77:02:02"];

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            kernel: Kernel::default(),
            cpus: 4,
            mem_mb: 6144,
            mode: Mode::Wall,
            bin_dir: None,
            bin_is_final: false,
            out_dir: None,
            sriov: false,
            nic_pair: false,
            passthrough: false,
        }
    }
}

/// The output and the exit code of a command.
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
    /// If the exit code is not 0; the error has the command's standard error.
    pub fn ok(self) -> Result<String> {
        if self.code != 0 {
            let mut printed = self.err_text();
            if printed.is_empty() {
                printed = self.text();
            }
            return Err(Error::Failed { command: self.command, code: self.code, stderr: printed });
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

/// The limit of [`LabHost::run`] and [`Guest::run`]. Time for which the emulator waits for a CPU of this machine does not
/// count towards this and all other limits of the lab (up to five sixths of the time): on a busy machine everything
/// takes longer, but it succeeds.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(300);
/// The limit of one boot, which usually takes 5 s. See [`DEFAULT_LIMIT`].
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// How long the emulator may take until its ports exist.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The number of attempts to boot.
const BOOTS: u32 = 3;
/// How long the shutdown may take.
const END_LIMIT: Duration = Duration::from_secs(15);

/// A running lab host. It ends when this is dropped and when this process ends, for whatever reason.
pub struct LabHost {
    pool: Arc<Pool>,
    machine: Machine,
    kernel: Kernel,
    version: String,
    accelerated: bool,
    guests: AtomicU32,
}

/// A request that runs `sh` with the shell.
pub(crate) fn shell(sh: &str) -> RunRequest {
    RunRequest { argv: vec!["/bin/bash".into(), "-c".into(), sh.into()], ..RunRequest::default() }
}

impl LabHost {
    /// Boots a lab host; first prepares its root file system if necessary. Waits until fewer than `$TEIJI_LABS` (1 if it is
    /// not set) lab hosts run on this machine.
    ///
    /// # Errors
    /// If preparation fails, or the machine does not come up in three boots; the error has the last lines of its console.
    pub fn boot(spec: &Spec) -> Result<LabHost> {
        let prepared = rootfs::prepare()?;
        let agent = agent_program()?;
        let cache = cache::folder()?;
        let Slot { mut lock, folder, previous } = Slot::take(&cache)?;
        if let Some(results) = &spec.out_dir {
            lock = lock.and_results(results, END_LIMIT)?;
        }
        let accel = match spec.mode {
            Mode::Wall => accel::choose(&prepared)?,
            Mode::Virtual => Accel::Tcg,
        };
        // Nobody else uses the folder while the slot is held. The files of the previous lab host are kept beside it:
        // its console log shows why it ended.
        let _ = fs::remove_dir_all(&previous);
        if fs::rename(&folder, &previous).is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        fs::create_dir_all(folder.join("boot")).doing(|| format!("make {}", folder.display()))?;
        let program = fs::read(&agent).doing(|| format!("read {}", agent.display()))?;
        initramfs::write(&prepared, spec.kernel, &program, &folder.join("boot/initrd"))?;
        let step = ProgressStep::begin(&format!(
            "booting the lab host: kernel {}, {} CPUs, {} MiB, {}",
            prepared.version(spec.kernel),
            spec.cpus,
            spec.mem_mb,
            if accel == Accel::Kvm { "KVM" } else { "emulated" }
        ));
        let mut boots = 1;
        let (machine, pool, version) = loop {
            let machine = Machine::start(spec, accel, &prepared, &folder)?;
            let up = LabHost::wait_up(&machine)
                .and_then(|pool| pool.ping(BOOT_LIMIT).map(|answered| (pool, answered)));
            match up {
                Ok((pool, (version, again))) => {
                    if again > 0 {
                        step.say(&format!(
                            "{again} of {PORTS} ports did not answer and were connected again"
                        ));
                    }
                    break (machine, pool, version);
                }
                Err(e) => {
                    let emulator = machine.emulator();
                    // Its ports close before its process can be waited for.
                    emulator.wait(EXIT_LIMIT);
                    let (end, how) = (emulator.end(), emulator.how_it_ended());
                    // Nothing of teiji has run in it yet, so its end is no result.
                    if boots == BOOTS {
                        return Err(Error::LabHost(format!("did not come up ({e}); {how}")));
                    }
                    // Emulated CPUs were seen to lose a timer and hang on a loaded machine.
                    step.say(&format!("the lab host does not come up ({e}), booting it again: {how}"));
                    let why = end.as_ref().and_then(End::why).unwrap_or("it hung");
                    ends::replaced(format!("at boot: {why} ({e})"));
                }
            }
            boots += 1;
            machine.kill();
            for n in 0..PORTS {
                let _ = fs::remove_file(folder.join(format!("p{n}.sock")));
            }
        };
        machine.emulator().is_up(lock);
        step.say("the lab host is up");
        let host = LabHost {
            pool: Arc::new(pool),
            machine,
            kernel: spec.kernel,
            version,
            accelerated: accel == Accel::Kvm,
            guests: AtomicU32::new(0),
        };
        if spec.passthrough {
            let names = format!("pf={PF} pf_mac={PF_MAC} wire={WIRE} wire_mac={WIRE_MAC}");
            host.run(&format!("{names} wire_ip={}\n{PASSTHROUGH}", host.wire_ip()))?.ok()?;
        }
        Ok(host)
    }

    fn wait_up(machine: &Machine) -> Result<Pool> {
        let emulator = machine.emulator();
        let stopwatch = Stopwatch::begin(emulator);
        while emulator.running() && !stopwatch.expired(START_LIMIT) {
            if let Some(pool) = Pool::connect(emulator)? {
                return Ok(pool);
            }
            thread::sleep(Duration::from_millis(20));
        }
        // The caller says how the emulator has ended.
        Err(Error::LabHost("could not be started".into()))
    }

    /// Runs `sh` with bash in `/root`, with the limit [`DEFAULT_LIMIT`].
    ///
    /// # Errors
    /// Like [`LabHost::run_for`].
    pub fn run(&self, sh: &str) -> Result<Output> {
        self.run_for(sh, DEFAULT_LIMIT)
    }

    /// Runs `sh` with bash in `/root`. An exit code other than 0 is not an error: see [`Output::ok`].
    ///
    /// # Errors
    /// If it exceeds `limit` (then it is killed together with all processes that it started), or if the lab host has
    /// ended.
    pub fn run_for(&self, sh: &str, limit: Duration) -> Result<Output> {
        self.start(shell(sh), Some(limit))?.wait()
    }

    /// Starts `sh` with bash in `/root`, without a limit.
    ///
    /// # Errors
    /// If the lab host has ended.
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
        let child = self.start(request, Some(DEFAULT_LIMIT))?;
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
        let output = self.start(request, Some(DEFAULT_LIMIT))?.wait()?;
        match output.code {
            0 => Ok(output.stdout),
            _ => output.ok().map(String::into_bytes),
        }
    }

    pub(crate) fn start(&self, request: RunRequest, limit: Option<Duration>) -> Result<Child> {
        self.pool.start(request, limit, Sink::Keep)
    }

    /// Runs `sh` and passes its output to this process's output immediately; returns its exit code.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn run_through(&self, sh: &str) -> Result<i32> {
        Ok(self.pool.start(shell(sh), None, Sink::Through)?.wait()?.code)
    }

    /// Starts `sh` on a terminal of `rows` × `columns` characters; its output goes to this process's standard output.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn spawn_on_terminal(&self, sh: &str, rows: u16, columns: u16) -> Result<Child> {
        let mut request = shell(sh);
        request.terminal = Some(Size { rows, columns });
        request.env.push(("TERM".into(), std::env::var("TERM").unwrap_or_else(|_| "linux".into())));
        self.pool.start(request, None, Sink::Through)
    }

    /// Starts a nested guest and waits until commands can be run in it.
    ///
    /// # Errors
    /// If it does not start, or does not answer within its limit.
    pub fn guest(&self, spec: &GuestSpec) -> Result<Guest<'_>> {
        Guest::start(self, spec, self.guests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The version of the running kernel, such as `7.2.12+deb13-amd64`.
    pub fn kernel(&self) -> &str {
        &self.version
    }

    /// Process id of the emulator on this machine.
    pub fn pid(&self) -> u32 {
        self.machine.emulator().pid()
    }

    /// Which kernel of the lab's list is running.
    pub(crate) fn kernel_kind(&self) -> Kernel {
        self.kernel
    }

    /// Whether the processor runs the lab host (KVM); otherwise it is emulated.
    pub fn accelerated(&self) -> bool {
        self.accelerated
    }

    /// Address of the `peer` network namespace, the world outside the lab host.
    pub fn peer_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1)
    }

    /// Address of [`WIRE`] in the network namespace `peer`.
    pub fn wire_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, VF_NET, 1)
    }

    /// What its emulated CPUs do, by the emulator's monitor, also if nothing in the lab host answers: the registers that
    /// say where each CPU is and whether it sleeps, twice, a second apart.
    pub fn cpus(&self) -> String {
        monitor::cpus(self.machine.emulator())
    }

    /// Console log of the lab host.
    pub fn console(&self) -> PathBuf {
        self.machine.emulator().folder().join("console.log")
    }

    /// Lets the emulated CPUs take turns until the result is dropped, for measurements of short times. No other lab may run.
    ///
    /// # Errors
    /// Without root, or in a control group without real-time runtime.
    pub fn take_turns(&self) -> Result<Turns> {
        Turns::of(self.machine.emulator().pid())
    }

    /// The emulated machine.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Shuts the lab host down: files in `/mnt/out` are then complete.
    pub fn power_off(self) {
        self.end();
    }

    /// Like [`LabHost::power_off`], for use while others still refer to it: afterwards no command can be run in it, and
    /// another lab host may boot.
    pub fn end(&self) {
        self.machine.emulator().may_end();
        // The port closes during this command: there is no answer.
        if let Ok(child) = self.spawn("sync; echo o > /proc/sysrq-trigger") {
            let emulator = self.machine.emulator();
            let stopwatch = Stopwatch::begin(emulator);
            while !emulator.wait(Duration::from_secs(1)) && !stopwatch.expired(END_LIMIT) {}
            drop(child);
        }
        self.machine.kill();
    }
}

/// The lab host that all tests of one process share; it is booted at the first call and ends with the process.
/// `/mnt/bin` is the folder of the built programs, `/mnt/out` is the folder `lab-out` in it.
///
/// # Errors
/// Like [`LabHost::boot`]; every later call returns the same error.
pub fn shared() -> Result<&'static LabHost> {
    static SHARED: OnceLock<Result<LabHost, String>> = OnceLock::new();
    SHARED
        .get_or_init(|| {
            let bin = agent_program().map_err(|e| e.to_string())?;
            let bin = bin.parent().map(Path::to_owned);
            let out = bin.as_ref().map(|b| b.join("lab-out"));
            LabHost::boot(&Spec { bin_dir: bin, out_dir: out, ..Spec::default() }).map_err(|e| e.to_string())
        })
        .as_ref()
        .map_err(|e| Error::LabHost(format!("is not there: {e}")))
}

/// The environment variable that is set by whoever has just built the whole workspace, programs included, as `cargo test
/// --workspace` does. Building single packages then would compile most of it a second time: their dependencies have other
/// features without the tests. It would also change programs under tests that run meanwhile.
pub const PROGRAMS_BUILT: &str = "TEIJI_PROGRAMS_BUILT";

/// The `teiji-lab` program of this build, which is also the agent. For a test of another crate cargo does not build it,
/// so it is built here if cargo runs this program.
fn agent_program() -> Result<PathBuf> {
    let me = std::env::current_exe().doing(|| "find this program".into())?;
    if me.file_stem().is_some_and(|n| n == "teiji-lab") {
        return Ok(me);
    }
    if let Some(cargo) = std::env::var_os("CARGO").filter(|_| std::env::var_os(PROGRAMS_BUILT).is_none()) {
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
