//! `teiji top` on a pseudo-terminal, of a tap without traffic on the machine that runs the test. Needs root, and a kernel that
//! supports the packet probes. Each test has its own network namespace.
#![allow(clippy::unwrap_used)]

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::termios::{LocalModes, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const SETUP: &str =
    "mount -t sysfs sysfs /sys && ip tuntap add tap0 mode tap && ip link set tap0 up && exec \"$0\" \"$@\"";
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
/// After this a test has failed.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a program has written to a terminal so far.
type Written = Arc<(Mutex<String>, Condvar)>;

/// A program on a terminal of its own.
struct Terminal {
    master: File,
    slave: OwnedFd,
    written: Written,
    process: Child,
    settings: String,
}

/// The settings of a terminal, as far as they matter.
fn settings(terminal: &OwnedFd) -> String {
    let t = tcgetattr(terminal).unwrap();
    format!(
        "{:?} {:?} {:?} {:?} {:?}",
        t.input_modes, t.output_modes, t.control_modes, t.local_modes, t.special_codes
    )
}

impl Terminal {
    /// The command is dropped here, as it has the other end of the terminal, too.
    fn run(mut command: Command) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let settings = settings(&pty.slave);
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let process = command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").spawn().unwrap();
        let (master, written) = (File::from(pty.master), Written::default());
        let (mut from, to) = (master.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It ends with an error when nobody has the other end any more.
            while let Ok(n) = from.read(&mut bytes) {
                to.0.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
                to.1.notify_all();
            }
            to.0.lock().unwrap().push('\0');
            to.1.notify_all();
        });
        Terminal { master, slave: pty.slave, written, process, settings }
    }

    /// Runs `teiji top`, until it shows figures.
    fn top(args: &[&str]) -> Terminal {
        let terminal = Terminal::taken(args);
        terminal.until(|text| text.contains("q quit"));
        terminal
    }

    /// Runs `teiji top`, until it has the terminal.
    fn taken(args: &[&str]) -> Terminal {
        let mut command = Command::new("unshare");
        command.args([
            "--net",
            "--mount",
            "sh",
            "-c",
            SETUP,
            env!("CARGO_BIN_EXE_teiji"),
            "top",
            "--tap",
            "tap0",
        ]);
        command.args(["--interval", "200ms"]).args(args);
        let terminal = Terminal::run(command);
        terminal.until(|text| text.contains(ENTER));
        terminal
    }

    /// Waits until what was written so far is as wanted.
    #[track_caller]
    fn until(&self, wanted: impl Fn(&str) -> bool) {
        let text = self.written.0.lock().unwrap();
        let (text, late) = self.written.1.wait_timeout_while(text, PATIENCE, |text| !wanted(text)).unwrap();
        assert!(!late.timed_out(), "{text:?}");
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// Waits for the end; checks that the terminal is as it was. Returns what was written after that, too.
    #[track_caller]
    fn end(mut self) -> (ExitStatus, String) {
        self.until(|text| text.contains(LEAVE));
        let status = self.process.wait().unwrap();
        assert_eq!(settings(&self.slave), self.settings);
        drop(self.slave);
        let text = self.written.0.lock().unwrap();
        let (text, late) = self.written.1.wait_timeout_while(text, PATIENCE, |t| !t.ends_with('\0')).unwrap();
        assert!(!late.timed_out());
        let (before, after) = text.split_once(LEAVE).unwrap();
        assert!(
            before.contains("\x1b[?25h") && before.ends_with("\x1b[?7h\x1b[?25h"),
            "cursor and line wrap are back"
        );
        assert!(!after.contains("\x1b[H") && !after.contains(ENTER), "nothing is drawn any more: {after:?}");
        (status, after.to_owned())
    }
}

#[test]
fn keys_have_an_effect_at_once_and_q_ends_in_the_report() {
    let mut top = Terminal::top(&["--flow", "udp port 5060"]);
    let modes = tcgetattr(&top.slave).unwrap().local_modes;
    assert!(!modes.contains(LocalModes::ECHO), "keys are echoed");
    top.press("p");
    top.until(|text| text.contains("PAUSED"));
    top.press("ps\x1b[B\x1b[A");
    top.until(|text| text.rsplit("\x1b[H").next().unwrap().contains("sort: requests/s"));
    top.press("q");
    let (status, after) = top.end();
    assert!(status.success(), "{status}");
    assert!(after.contains("udp port 5060") && after.contains("requests   0 seen"), "{after}");
}

#[test]
fn a_terminal_of_another_size_is_drawn_again() {
    let mut top = Terminal::top(&[]);
    let lines = |text: &str| text.rsplit("\x1b[H").next().unwrap().matches("\r\n").count() + 1;
    top.until(|text| lines(text) == 24);
    let size = rustix::termios::Winsize { ws_row: 31, ws_col: 70, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&top.master, size).unwrap();
    top.until(|text| lines(text) == 31);
    top.press("q");
    top.end();
}

#[test]
fn signals_and_the_end_of_the_time_restore_the_terminal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let top = Terminal::top(&[]);
        top.signal(signal);
        let (status, after) = top.end();
        assert!(status.success() && after.contains("requests   0 seen"), "{signal}: {status}, {after}");
    }
    // Until it ends by itself, on a busy machine before it has drawn anything.
    let (status, after) = Terminal::taken(&["--for", "3s"]).end();
    assert!(status.success() && after.contains("requests   0 seen"), "{status}, {after}");
}

/// Is run by the next test, on a terminal; without it there is nothing to do.
#[test]
fn child_that_panics() {
    if std::env::var_os("TEIJI_TEST_PANIC").is_some() {
        let _screen = teiji::screen::Screen::enter().unwrap();
        teiji::screen::Screen::draw(&["a picture".to_owned()]).unwrap();
        let thread = std::thread::spawn(|| panic!("a mistake"));
        assert!(thread.join().is_err());
        // Whoever goes on draws nothing any more.
        teiji::screen::Screen::draw(&["another picture".to_owned()]).unwrap();
    }
}

#[test]
fn a_panic_restores_the_terminal_before_it_is_told() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_that_panics", "--nocapture"]).env("TEIJI_TEST_PANIC", "1");
    let terminal = Terminal::run(child);
    terminal.until(|text| text.contains("a picture"));
    let (_, after) = terminal.end();
    assert!(after.contains("a mistake") && !after.contains("another picture"), "{after}");
}
