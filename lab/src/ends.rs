//! Whose fault the end of an emulator was. If the emulated machine failed, the tests in its lab host have no result and
//! start again in another one; any other end is a result of these tests, above all an end that teiji caused.
//!
//! | the emulator ended | whose end |
//! | --- | --- |
//! | when it had been asked to | nobody's |
//! | after one of the panics of its kernel that are known to be the emulated machine's ([`OF_EMULATION`]) | the emulated machine's |
//! | after a CPU executed a breakpoint that is not in memory ([`stale_breakpoint`]) | the emulated machine's |
//! | after another panic of its kernel | the lab host's |
//! | by SIGSEGV, SIGABRT, SIGBUS or SIGILL, or with an exit code other than 0 | the emulator's |
//! | by SIGKILL | the emulator's: the OOM killer, or somebody, killed it |
//! | with exit code 0 after a triple fault or a reset of a CPU on which the kernel ran | the emulated machine's |
//! | with exit code 0 without such a record: a power-off | the lab host's |
//! | in any other way | not known, so the tests fail |
//! | not, but the lab host hangs: after its kernel reported a failure, such as a lockup or a stall | the lab host's |
//! | not, but the lab host hangs without such a report | the emulator's |
//!
//! This is about lab hosts that have come up. One that ends before is booted again, whatever the reason: nothing of teiji has run
//! in it yet.
//!
//! A triple fault needs a CPU that cannot enter its exception handlers; a BPF program cannot change what that takes.
//!
//! A kernel whose CPUs get their timer interrupts reports within half a minute that one of them is stuck, or that a task
//! hangs. Silence means that no CPU gets them, which was seen once, with all emulated CPUs running. It could also be a fault
//! that keeps all CPUs from interrupts, by teiji; that would happen again in the next lab host, and then the tests fail.
//!
//! An emulated CPU that stood still for seconds, as its witness has seen (`remote/witness.rs`), also counts as a failure of the
//! emulated machine: what was measured meanwhile is no result.
//!
//! A nested guest that KVM has stopped (see [`crate::tools::link_up`]) or that was reset also counts as a failure of the
//! emulated machine: its kernel has nothing of teiji.
//!
//! Every such failure is printed in the last lines of a program, also if no test noticed it.

use std::{
    fs, io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::ExitStatus,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What a console log has from the end of the last oops before the panic on (from the panic on, if there was none) in the
/// panics that are known to be the emulated machine's (QEMU 11.1, translation).
///
/// 1. The stack of an idle thread, in the lab's own tests, where nothing of teiji had been loaded: once in about 75 boots. It is
///    seen by the stack protector of `__schedule`, or (once, while the first guest booted and before anything of teiji ran) by
///    its look at the end of the stack.
/// 2. Seen once: a CPU on which `current` is NULL. `irqentry_enter` reads `current->flags`, 0x2c in the kernel of the lab, which is a
///    page fault, whose handler begins with `irqentry_enter`, until the stack is used up and `error_entry` cannot push:
///    the address of the fault is in RBP, and the registers that the entry cleared are still 0. `current` is found through
///    the base of GS, which only the kernel's entry code and KVM's world switch load. A BPF program can change neither
///    `current` nor GS.
const OF_EMULATION: [&[&str]; 3] = [
    &["Kernel stack is corrupted in: __schedule", "Comm: swapper/"],
    &["corrupted stack end detected inside scheduler", "Comm: swapper/", "schedule_idle+"],
    &["RIP: 0010:error_entry+", "RBP: 000000000000002c", "R13: 0000000000000000 R14: 0000000000000000"],
];

/// The breakpoint that a CPU of the emulated machine executed though memory has another instruction there, if that is the
/// first failure that its kernel reported.
///
/// When the kernel changes an instruction (a tracepoint is switched on), it puts a breakpoint (`cc`) there, has every CPU
/// synchronise, completes the instruction, and has every CPU synchronise again. From then on no CPU can meet the breakpoint, but the
/// emulator may still execute what it had translated before. Seen once here, in three CPUs at once, and by others with QEMU 8
/// ("still see int3: when running LTP tracing testing", linux-kernel, July 2023). The kernel prints the bytes before and from
/// the next instruction: the last one before it is what memory has.
fn stale_breakpoint(console: &str) -> Option<&str> {
    let from = console.lines().position(|line| FAILED.iter().any(|words| line.contains(words)))?;
    let mut lines = console.lines().skip(from);
    let oops = lines.next().filter(|line| line.contains("Oops: int3"))?;
    let code = lines.find_map(|line| line.split_once("Code: "))?.1;
    let (before, _) = code.split_once(" <")?;
    (before.rsplit(' ').next() != Some("cc")).then_some(oops)
}

/// The line that ends what the kernel prints about an oops but for the registers at its begin, which follow.
const END_OF_OOPS: &str = "---[ end trace";

/// What the kernel prints when it fails.
const FAILED: [&str; 4] = ["BUG: ", "Oops: ", "general protection fault", "Kernel panic"];
/// What it prints when a CPU or a task does nothing for long. (A soft lockup is a `BUG: `.)
const STALLED: [&str; 4] =
    ["hard LOCKUP", "detected stalls on", "self-detected stall", "blocked for more than"];

/// Whose end it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked for.
    Asked,
    /// The emulator or the machine that it emulates failed, with the reason: tests may start again in another lab host.
    Emulator(String),
    /// The lab host's own end, or one that is not understood, with the reason: tests fail.
    LabHost(String),
}

impl End {
    /// Judges how an emulator ended, by its exit status and by what `qemu.log` and `console.log` have at that time.
    pub(crate) fn of(asked: bool, how: &io::Result<ExitStatus>, qemu: &str, console: &str) -> End {
        if asked {
            return End::Asked;
        }
        if let Some(oops) = stale_breakpoint(console) {
            return End::Emulator(format!(
                "the emulated machine failed: a CPU executed a breakpoint that is not in memory: {oops}"
            ));
        }
        if let Some(panic) = console.find("Kernel panic") {
            let first = console[panic..].lines().next().unwrap_or_default();
            let told = &console[console[..panic].rfind(END_OF_OOPS).unwrap_or(panic)..];
            return if OF_EMULATION.iter().any(|parts| parts.iter().all(|part| told.contains(part))) {
                End::Emulator(format!("the emulated machine failed: {first}"))
            } else {
                End::LabHost(format!("the kernel of the lab host panicked: {first}"))
            };
        }
        let status = match how {
            Ok(status) => status,
            Err(e) => return End::LabHost(format!("the emulator could not be waited for ({e})")),
        };
        match status.signal() {
            Some(libc::SIGKILL) => {
                End::Emulator("the emulator was killed, by the OOM killer or by hand".into())
            }
            Some(libc::SIGSEGV | libc::SIGABRT | libc::SIGBUS | libc::SIGILL) => {
                End::Emulator(format!("the emulator failed ({status})"))
            }
            None if status.code().is_some_and(|code| code != 0) => {
                End::Emulator(format!("the emulator failed ({status})"))
            }
            None if status.success() => match recorded(qemu) {
                Some(why) => End::Emulator(format!("the lab host was reset: {why}")),
                None => End::LabHost(
                    "the lab host ended by itself: qemu.log has neither a triple fault (KVM does not record it) nor a reset \
                     of a running CPU, so it powered itself off or reset its board"
                        .into(),
                ),
            },
            _ => End::LabHost(format!("the emulator ended in an unknown way ({status})")),
        }
    }

    /// Judges a lab host that does not answer while its emulator runs, by what `console.log` has.
    pub(crate) fn of_hang(asked: bool, console: &str) -> End {
        if asked {
            return End::Asked;
        }
        let reports = |line: &&str| FAILED.iter().chain(&STALLED).any(|words| line.contains(words));
        match console.lines().find(reports) {
            Some(line) => End::LabHost(format!("the lab host hangs after its kernel reported: {line}")),
            None => {
                End::Emulator("the emulator hangs: the kernel of the lab host has reported nothing".into())
            }
        }
    }

    /// Why it ended, if nobody had asked for it.
    pub(crate) fn why(&self) -> Option<&str> {
        match self {
            End::Asked => None,
            End::Emulator(why) | End::LabHost(why) => Some(why),
        }
    }
}

/// A record that `-d cpu_reset` writes when a CPU is reset: its registers before that.
struct Reset<'t> {
    /// `CPU Reset (CPU 0)`.
    heading: &'t str,
    registers: Vec<&'t str>,
}

impl Reset<'_> {
    /// Whether the kernel ran on the CPU: paging was on. At boot each CPU is reset several times, before its paging is on.
    fn of_running_cpu(&self) -> bool {
        let cr0 = self.registers.iter().find_map(|l| l.strip_prefix("CR0="));
        let cr0 = cr0.and_then(|l| u32::from_str_radix(l.split(' ').next()?, 16).ok());
        cr0.is_some_and(|cr0| cr0 & 1 << 31 != 0)
    }

    /// Address of the next instruction, if it is known.
    fn instruction(&self) -> Option<&str> {
        let line = self.registers.iter().find_map(|l| l.strip_prefix("RIP=").or(l.strip_prefix("EIP=")));
        line?.split(' ').next()
    }
}

/// A line of `qemu.log`: a message, or a record of a reset.
enum Logged<'t> {
    Message(&'t str),
    Reset(Reset<'t>),
}

fn logged(qemu: &str) -> Vec<Logged<'_>> {
    // `EAX=…`, `CS =…`, `XMM00=…`, `Opmask00=…`
    let register = |line: &str| {
        line.split_once('=').is_some_and(|(name, _)| {
            let name = name.trim_end();
            (1..=8).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric())
        })
    };
    let mut all = Vec::new();
    for line in qemu.lines().filter(|l| !l.trim().is_empty()) {
        if line.starts_with("CPU Reset (") {
            all.push(Logged::Reset(Reset { heading: line, registers: Vec::new() }));
        } else if let Some(Logged::Reset(reset)) = all.last_mut()
            && register(line)
        {
            reset.registers.push(line);
        } else {
            all.push(Logged::Message(line));
        }
    }
    all
}

/// What `qemu.log` says about the reason for which a lab host was reset.
fn recorded(qemu: &str) -> Option<String> {
    let mut found = Vec::new();
    for item in logged(qemu) {
        match item {
            // By an exception while a double fault is handled, or by a machine check.
            Logged::Message(line) if line.to_lowercase().contains("triple fault") => {
                found.push(format!("a triple fault (qemu.log: {line})"));
            }
            Logged::Reset(reset) if reset.of_running_cpu() => {
                let at = reset.instruction().unwrap_or("an unknown address");
                found.push(format!("a reset of a CPU on which the kernel ran ({} at {at})", reset.heading));
            }
            Logged::Message(_) | Logged::Reset(_) => {}
        }
    }
    (!found.is_empty()).then(|| found.join(", "))
}

/// The last lines of `qemu.log`, without the resets of CPUs at boot and without the lesser registers of others, and those
/// of `console.log`, preceded by the first lines of what the kernel printed when it failed.
pub(crate) fn last_lines<'t>(qemu: &'t str, console: &'t str) -> Vec<(&'static str, &'t str)> {
    const LINES: usize = 15;
    /// Of an oops or a panic: enough for its reason, the registers and the callers.
    const FAILURE: usize = 60;
    const SHOWN: [&str; 10] =
        ["EAX=", "ESI=", "EIP=", "RAX=", "RSI=", "R8 =", "R12=", "RIP=", "CS =", "CR0="];
    let mut of_qemu = Vec::new();
    for item in logged(qemu) {
        match item {
            // The emulator prints this for several features at every start.
            Logged::Message(line) if line.contains("doesn't support requested feature") => {}
            Logged::Message(line) => of_qemu.push(line),
            Logged::Reset(reset) if reset.of_running_cpu() => {
                of_qemu.push(reset.heading);
                let shown = |l: &&&str| SHOWN.iter().any(|name| l.starts_with(name));
                of_qemu.extend(reset.registers.iter().filter(shown));
            }
            Logged::Reset(_) => {}
        }
    }
    let of_console: Vec<&str> = console.lines().collect();
    let failed = of_console.iter().position(|l| FAILED.iter().any(|begin| l.contains(begin)));
    let last = |file, lines: Vec<&'t str>, failed: Option<usize>| {
        let from = lines.len().saturating_sub(LINES);
        let failure = failed.map_or(0..0, |at| at..at + FAILURE);
        // Two parts of a log are no trace together.
        let gap = failed.filter(|_| failure.end < from).map(|_| failure.end);
        let shown = move |(n, line): (usize, &'t str)| {
            let wanted = n >= from || failure.contains(&n);
            let line = if gap == Some(n) { Some("…") } else { wanted.then_some(line) };
            line.map(|line| (file, line))
        };
        lines.into_iter().enumerate().filter_map(shown)
    };
    last("qemu.log", of_qemu, None).chain(last("console.log", of_console, failed)).collect()
}

/// What has happened to the lab hosts of this process.
struct History {
    /// Ends that nobody had asked for, of lab hosts that had come up, each with the last lines of its logs.
    ends: Vec<(End, String)>,
    /// Why lab hosts were replaced by others.
    replaced: Vec<String>,
    /// Why nested guests that had come up failed, each with its state.
    guests: Vec<(String, String)>,
    /// Why nested guests were booted again.
    rebooted: Vec<String>,
    /// The console log of the lab host that came up last.
    console: Option<PathBuf>,
}

static HISTORY: Mutex<History> = Mutex::new(History::new());

fn history<T>(look: impl FnOnce(&mut History) -> T) -> T {
    look(&mut HISTORY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Counts the end of a lab host that had come up; `lines` are the last ones of its logs.
pub(crate) fn count(end: &End, lines: &str) {
    if *end != End::Asked {
        history(|h| h.ends.push((end.clone(), lines.to_owned())));
    }
}

/// The reasons of all failures of emulators whose lab hosts had come up.
pub(crate) fn failures() -> Vec<String> {
    let why = |(end, _): &(End, String)| match end {
        End::Emulator(why) => Some(why.clone()),
        End::Asked | End::LabHost(_) => None,
    };
    history(|h| h.ends.iter().filter_map(why).collect())
}

/// Counts a lab host that is replaced by another.
pub(crate) fn replaced(why: String) {
    history(|h| h.replaced.push(why));
}

/// Counts a nested guest that had come up and that the emulated machine ended; `state` is what is known about it.
pub(crate) fn guest_failed(why: String, state: String) {
    history(|h| h.guests.push((why, state)));
}

/// The reasons that [`guest_failed`] was given.
pub(crate) fn guest_failures() -> Vec<String> {
    history(|h| h.guests.iter().map(|(why, _)| why.clone()).collect())
}

/// Counts a nested guest that is booted again.
pub(crate) fn rebooted(why: String) {
    history(|h| h.rebooted.push(why));
}

/// What the witness of a CPU writes to the kernel's log.
pub(crate) fn standstill(cpu: usize, stood: Duration) -> String {
    format!("{STANDSTILL}{cpu} stood still for {:.1} s", stood.as_secs_f64())
}

/// How it begins.
const STANDSTILL: &str = "teiji-lab: emulated CPU ";

/// A lab host has come up; this is its console log.
pub(crate) fn watch(console: PathBuf) {
    history(|h| h.console = Some(console));
}

/// The standstills of CPUs that the lab host which came up last has reported, each as [`standstill`] says it.
pub(crate) fn standstills() -> Vec<String> {
    let console = history(|h| h.console.clone());
    reported_standstills(&console.and_then(|path| fs::read(path).ok()).unwrap_or_default())
}

fn reported_standstills(console: &[u8]) -> Vec<String> {
    let line = |line: &str| line.find(STANDSTILL).map(|at| line[at..].trim_end().to_owned());
    String::from_utf8_lossy(console).lines().filter_map(line).collect()
}

/// Whether a lab host of this process has ended by itself after it had come up.
pub fn any_by_itself() -> bool {
    history(|h| h.ends.iter().any(|(end, _)| matches!(end, End::LabHost(_))))
}

/// How many lab hosts of this process were replaced and how many have ended by themselves, and why, for the last lines of
/// a program.
pub fn summary() -> Vec<String> {
    history(|h| h.summary())
}

impl History {
    const fn new() -> History {
        History {
            ends: Vec::new(),
            replaced: Vec::new(),
            guests: Vec::new(),
            rebooted: Vec::new(),
            console: None,
        }
    }

    fn summary(&self) -> Vec<String> {
        let (mut failed, mut by_itself) = (Vec::new(), Vec::new());
        for (end, lines) in &self.ends {
            match end {
                End::Asked => {}
                End::Emulator(why) => failed.push(format!("{why}{lines}")),
                End::LabHost(why) => by_itself.push(format!("{why}{lines}")),
            }
        }
        failed.extend(self.guests.iter().map(|(why, state)| format!("{why}: {state}")));
        let mut all = Vec::new();
        let mut add = |title: &str, items: &[String]| {
            all.push(format!("{title}: {}", items.len()));
            all.extend(items.iter().map(|item| format!("  {item}")));
        };
        add("lab hosts that were replaced by others", &self.replaced);
        for (title, items) in [
            ("nested guests that were booted again", &self.rebooted),
            ("failures of emulated machines", &failed),
            ("FAILED: lab hosts that ended though nobody had asked for it", &by_itself),
        ] {
            if !items.is_empty() {
                add(title, items);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> io::Result<ExitStatus> {
        Ok(ExitStatus::from_raw(code << 8))
    }

    fn signal(signal: i32) -> io::Result<ExitStatus> {
        Ok(ExitStatus::from_raw(signal))
    }

    const OTHER_PANIC: &str = "[    1.0] Kernel panic - not syncing: Fatal exception in interrupt\n";

    /// As a lab host printed it.
    const NO_CURRENT: &str = "[  701.682569] ---[ end trace 0000000000000000 ]---\n\
        [  701.685465] RIP: 0010:error_entry+0xd/0x170\n\
        [  701.685509] RSP: 0018:ffffc90001d34000 EFLAGS: 00000046\n\
        [  701.685522] RAX: 0000000000000000 RBX: ffffc90001d34088 RCX: ffffffff81001948\n\
        [  701.685529] RDX: 0000000000000000 RSI: ffffffff8100128d RDI: ffffc90001d34088\n\
        [  701.685536] RBP: 000000000000002c R08: 0000000000000000 R09: 0000000000000000\n\
        [  701.685542] R10: 0000000000000000 R11: 0000000000000000 R12: 0000000000000000\n\
        [  701.685547] R13: 0000000000000000 R14: 0000000000000000 R15: 0000000000000000\n\
        [  701.685883] Kernel panic - not syncing: Fatal exception in interrupt\n";
    /// The same of another one.
    const STALE: &str = "[   78.047675] Oops: int3: 0000 [#1] SMP NOPTI\n\
        [   78.048969] CPU: 3 UID: 0 PID: 0 Comm: swapper/3 Not tainted 7.3.4+deb13-amd64 #1 PREEMPT(lazy)\n\
        [   78.050353] RIP: 0010:__schedule+0x30c/0x1080\n\
        [   78.050722] Code: 75 0d 31 d2 41 80 be e9 00 00 00 00 0f 95 c2 e9 e5 05 00 00 e9 <93> 05 00 00 49 8b 44 24\n\
        [   78.058334] Modules linked in: vhost_net tun\n\
        [   78.060519] ---[ end trace 0000000000000000 ]---\n\
        [   78.063630] Kernel panic - not syncing: Fatal exception in interrupt\n";
    const READY: &str = "[    1.0] teiji-lab: ready\n";

    /// The form of a record by QEMU, with the registers of a CPU at power-on.
    const AT_BOOT: &str = "CPU Reset (CPU 0)\n\
        EAX=00000000 EBX=00000000 ECX=00000000 EDX=00800f12\n\
        EIP=0000fff0 EFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\n\
        CS =f000 ffff0000 0000ffff 00009b00\n\
        GDT=     00000000 0000ffff\n\
        CR0=60000010 CR2=00000000 CR3=00000000 CR4=00000000\n\
        XMM00=0000000000000000 0000000000000000 XMM01=0000000000000000 0000000000000000\n";
    const RUNNING: &str = "CPU Reset (CPU 1)\n\
        RAX=0000000000000000 RBX=ffffffff82a00000 RCX=0000000000000001 RDX=0000000000000000\n\
        RIP=ffffffff81337cdf RFL=00000046 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=0\n\
        CR0=80050033 CR2=00007f0000000000 CR3=0000000001000000 CR4=000006f0\n\
        XMM00=0000000000000000 0000000000000000 XMM01=0000000000000000 0000000000000000\n";

    /// One that is in memory was put there, and one that follows another failure may be a consequence of it.
    #[test]
    fn a_breakpoint_that_is_not_in_memory_is_the_emulators() {
        let of = |console: &str| End::of(false, &exit(0), "", console);
        let End::Emulator(why) = of(&format!("{READY}{STALE}")) else { panic!() };
        assert!(why.contains("not in memory") && why.contains("Oops: int3"), "{why}");
        let earlier = "[   78.0] BUG: unable to handle page fault for address: 0\n";
        for other in [
            STALE.replace("00 e9 <93>", "00 cc <93>"),
            STALE.replace("Oops: int3", "Oops: invalid opcode"),
            STALE.replace("Code: ", "Kode: "),
            format!("{earlier}{STALE}"),
        ] {
            assert!(matches!(of(&other), End::LabHost(_)), "{other}");
        }
    }

    #[test]
    fn only_signals_and_exit_codes_of_the_emulator_are_failures_of_it() {
        let end = |how: &io::Result<ExitStatus>| End::of(false, how, AT_BOOT, READY);
        for n in [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGILL] {
            assert!(
                matches!(end(&signal(n)), End::Emulator(why) if why.contains("the emulator failed")),
                "{n}"
            );
        }
        let killed = end(&signal(libc::SIGKILL));
        assert!(
            matches!(&killed, End::Emulator(why) if why.contains("by the OOM killer or by hand")),
            "{killed:?}"
        );
        assert!(matches!(end(&exit(1)), End::Emulator(why) if why.contains("exit status: 1")));
        for how in [exit(0), signal(libc::SIGTERM), Err(io::Error::other("no child"))] {
            assert!(matches!(end(&how), End::LabHost(_)), "{how:?}");
        }
    }

    const CORRUPTED_STACK_END: &str = "\
[   69.094469] Kernel panic - not syncing: corrupted stack end detected inside scheduler
[   69.096787] CPU: 0 UID: 0 PID: 0 Comm: swapper/0 Not tainted 7.3.4+deb13-amd64 #1 PREEMPT(lazy)  Debian 7.3.4-1~bpo13+1
[   69.097804] Call Trace:
[   69.098670]  <TASK>
[   69.099652]  panic+0x6b/0x70
[   69.099730]  __schedule+0x1080/0x1080
[   69.099848]  schedule_idle+0x23/0x40
[   69.099952]  do_idle+0x153/0x2c0
";

    #[test]
    fn an_end_that_was_asked_for_is_nobodys_and_a_panic_is_the_emulated_machines_only_as_it_is_known() {
        for how in [exit(0), exit(1), signal(libc::SIGKILL)] {
            assert_eq!(End::of(true, &how, "", READY), End::Asked);
            for panicked in [
                OTHER_PANIC,
                "[    1.0] Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: __schedule+0x1074/0x1080\n\
                 [    1.0] CPU: 0 UID: 0 PID: 90 Comm: teiji Not tainted\n",
            ] {
                let end = End::of(false, &how, "", panicked);
                assert!(matches!(&end, End::LabHost(why) if why.contains("not syncing")), "{end:?}");
            }
            for (registers, whose) in
                [(NO_CURRENT.to_owned(), true), (NO_CURRENT.replace("002c", "0030"), false)]
            {
                let end = End::of(false, &how, "", &registers);
                assert_eq!(matches!(&end, End::Emulator(_)), whose, "{end:?}");
                let earlier =
                    format!("{registers}[  702.0] ---[ end trace 0000000000000000 ]---\n{OTHER_PANIC}");
                let end = End::of(false, &how, "", &earlier.replacen("Kernel panic", "Oops", 1));
                assert!(matches!(&end, End::LabHost(_)), "{end:?}");
            }
            for (idle, what) in [
                (
                    "[   66.3] Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: __schedule+0x1074/0x1080\n\
                     [   66.3] CPU: 0 UID: 0 PID: 0 Comm: swapper/0 Not tainted 7.3.4+deb13-amd64\n",
                    "corrupted in: __schedule",
                ),
                (CORRUPTED_STACK_END, "corrupted stack end"),
            ] {
                let end = End::of(false, &how, "", idle);
                assert!(matches!(&end, End::Emulator(why) if why.contains(what)), "{end:?}");
            }
            // Another thread's stack, or an idle thread that does not come from being idle.
            for (this, other) in [("swapper/0", "teiji"), ("schedule_idle+", "schedule+")] {
                let end = End::of(false, &how, "", &CORRUPTED_STACK_END.replace(this, other));
                assert!(matches!(&end, End::LabHost(_)), "{end:?}");
            }
        }
    }

    #[test]
    fn a_reset_is_the_emulated_machines_and_a_power_off_is_not() {
        let end = |qemu: &str| End::of(false, &exit(0), qemu, READY);
        let silent = end(&AT_BOOT.repeat(14));
        assert!(matches!(&silent, End::LabHost(why) if why.contains("powered itself off")), "{silent:?}");
        let reset = |qemu: &str| match end(qemu) {
            End::Emulator(why) => why,
            other => panic!("{other:?}"),
        };
        let fault = reset(&format!("{AT_BOOT}{AT_BOOT}Triple fault\n"));
        assert!(fault.contains("a triple fault"), "{fault}");
        let machine_check = reset("CPU 1: MCE capability is not enabled, raising triple fault\n");
        assert!(machine_check.contains("a triple fault"), "{machine_check}");
        let running = reset(&format!("{AT_BOOT}{RUNNING}"));
        assert!(running.contains("(CPU Reset (CPU 1) at ffffffff81337cdf)"), "{running}");
        let asked = end("qemu-system-x86_64: terminating on signal 15 from pid 7 (kill)\n");
        assert!(matches!(asked, End::LabHost(_)), "{asked:?}");
    }

    #[test]
    fn the_last_lines_leave_out_the_boot() {
        let qemu = format!(
            "qemu: warning: TCG doesn't support requested feature: CPUID.01H\n{AT_BOOT}{RUNNING}Triple fault\n"
        );
        let console: String = (0..20).map(|n| format!("line {n}\n")).collect();
        let lines = last_lines(&qemu, &console);
        let of = |file| lines.iter().filter(|(f, _)| *f == file).map(|(_, l)| *l).collect::<Vec<_>>();
        let named: Vec<&str> = of("qemu.log").iter().map(|l| l.split(['=', '(']).next().unwrap()).collect();
        assert_eq!(named, ["CPU Reset ", "RAX", "RIP", "CR0", "Triple fault"]);
        assert_eq!((of("console.log").len(), of("console.log")[14]), (15, "line 19"));
    }

    #[test]
    fn the_last_lines_begin_with_the_failure_of_the_kernel() {
        let console: String = (0..10)
            .map(|n| format!("before {n}\n"))
            .chain(["[ 7.1] BUG: TASK stack guard page was hit\n".into()])
            .chain((0..100).map(|n| format!("after {n}\n")))
            .collect();
        let lines: Vec<&str> = last_lines("", &console).iter().map(|(_, l)| *l).collect();
        assert_eq!((lines.len(), lines[0]), (76, "[ 7.1] BUG: TASK stack guard page was hit"));
        assert_eq!((lines[59], lines[60], lines[61], lines[75]), ("after 58", "…", "after 85", "after 99"));
    }

    #[test]
    fn standstills_are_read_from_the_console() {
        let said = standstill(2, Duration::from_millis(6_240));
        let console = format!("[   29.5] kvm [203]: vcpu0\n[  102.57] {said}\r\n");
        assert_eq!(
            reported_standstills(console.as_bytes()),
            ["teiji-lab: emulated CPU 2 stood still for 6.2 s"]
        );
    }

    #[test]
    fn the_summary_has_each_lab_host_that_was_replaced_or_ended_by_itself() {
        let mut history = History::new();
        assert_eq!(history.summary(), ["lab hosts that were replaced by others: 0"]);
        history.ends = vec![
            (End::Emulator("killed".into()), String::new()),
            (End::LabHost("a triple fault".into()), "\n  console.log: ready".into()),
        ];
        history.replaced = vec!["test a: killed".into()];
        history.guests = vec![("KVM stopped vm1".into(), "paused".into())];
        history.rebooted = vec!["vm2: silent".into()];
        let lines = history.summary();
        assert_eq!(lines[..2], ["lab hosts that were replaced by others: 1", "  test a: killed"]);
        assert_eq!(lines[2..4], ["nested guests that were booted again: 1", "  vm2: silent"]);
        assert_eq!(
            lines[4..7],
            ["failures of emulated machines: 2", "  killed", "  KVM stopped vm1: paused"]
        );
        assert!(lines[7].starts_with("FAILED") && lines[7].ends_with(": 1"), "{lines:?}");
        assert_eq!(lines[8..], ["  a triple fault\n  console.log: ready"]);
    }
}
