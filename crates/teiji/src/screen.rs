//! The terminal as a whole: a screen that is drawn again and again, keys that are read without Enter, and the terminal as
//! it was afterwards, also after a signal or a panic. (Not after SIGKILL.)
//!
//! ```text
//!  Screen::enter ─► pictures, keys ─► drop, or the hook of a panic, or `restore` ─► as it was
//! ```
//!
//! Pictures are drawn under the lock that restoring takes, so none is drawn after the terminal was restored. What is logged
//! meanwhile is kept, as it would spoil the picture, and is written once the terminal is as it was.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The alternate screen without a cursor and without wrapped lines, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// How long to wait for a key.
const WAIT: Duration = Duration::from_millis(100);

/// The terminal as it was: `None` while it is as it was. The inner value is that of the input, if that is a terminal.
static FORMER: Mutex<Option<Option<Termios>>> = Mutex::new(None);
/// What was logged while there is a screen, and how many bytes had no room.
static HELD: Mutex<(Vec<u8>, usize)> = Mutex::new((Vec::new(), 0));
/// Room for it, bytes.
const MOST_HELD: usize = 64 << 10;

fn former() -> MutexGuard<'static, Option<Option<Termios>>> {
    FORMER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module. There is one at a time.
#[derive(Debug)]
pub struct Screen(());

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Up, or k.
    Up,
    /// Down, or j.
    Down,
    /// A letter, in lower case.
    Letter(char),
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If it cannot be set up.
    pub fn enter() -> Result<Screen> {
        let stdin = std::io::stdin();
        let before = if stdin.is_terminal() {
            let before = tcgetattr(&stdin).context("cannot read the settings of the terminal")?;
            *former() = Some(Some(before.clone()));
            tcsetattr(&stdin, OptionalActions::Now, &single_keys(&before))
                .context("cannot set up the terminal")?;
            Some(before)
        } else {
            None
        };
        *former() = Some(before);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        let screen = Screen(());
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows of the terminal.
    pub fn size() -> (usize, usize) {
        let size = tcgetwinsize(std::io::stdout()).ok();
        // A serial line does not know its size.
        let (columns, rows) = size.map_or((0, 0), |s| (usize::from(s.ws_col), usize::from(s.ws_row)));
        (if columns == 0 { 80 } else { columns }, if rows == 0 { 24 } else { rows })
    }

    /// Whether the terminal was taken and not restored yet.
    pub fn is_taken() -> bool {
        former().is_some()
    }

    /// Shows these lines, which fit the screen. After [`restore`] it does nothing.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub fn draw(lines: &[String]) -> Result<()> {
        let former = former();
        if former.is_none() {
            return Ok(());
        }
        let mut text = String::from("\x1b[H");
        for (i, line) in lines.iter().enumerate() {
            text += line;
            text += if i + 1 < lines.len() { "\x1b[K\r\n" } else { "\x1b[K\x1b[J" };
        }
        write(&text)
    }

    /// The keys that were pressed within the next tenth of a second; `None` if the terminal is gone.
    pub fn keys() -> Option<Vec<Key>> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() && former().as_ref().is_none_or(Option::is_none) {
            std::thread::sleep(WAIT);
            return Some(Vec::new());
        }
        let keys = read_keys(&stdin);
        if keys.is_none() {
            // It is asked again until the trace has ended, and would answer at once.
            std::thread::sleep(WAIT);
        }
        keys
    }
}

/// The settings for input without Enter.
fn single_keys(before: &Termios) -> Termios {
    let mut raw = before.clone();
    // Ctrl-C still sends a signal. Ctrl-Z would leave this screen to the shell, and so would Ctrl-\\.
    raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    raw.input_modes -= InputModes::IXON;
    raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
    raw.special_codes[SpecialCodeIndex::VQUIT] = 0;
    // Reads do not wait.
    raw.special_codes[SpecialCodeIndex::VMIN] = 0;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    raw
}

/// The keys that come from a terminal within the next tenth of a second; `None` if it was hung up: then it has input for ever,
/// and nothing can be read.
fn read_keys(input: impl AsFd) -> Option<Vec<Key>> {
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: WAIT.subsec_nanos().into() };
    match poll(&mut polled, Some(&wait)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Some(Vec::new()),
        Ok(_) => {}
        Err(_) => return None,
    }
    let gone = polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    let mut bytes = [0; 64];
    match rustix::io::read(&input, &mut bytes) {
        Ok(0) if gone => None,
        Ok(n) => Some(parse(&bytes[..n])),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Some(Vec::new()),
        Err(_) => None,
    }
}

/// Writes the log to standard error; while there is a screen, once the terminal is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let former = former();
        if former.is_none() {
            return io::stderr().write(line);
        }
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0.len() + line.len() <= MOST_HELD {
            held.0.extend_from_slice(line);
        } else {
            held.1 += line.len();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What was held back of the log.
fn held() -> Vec<u8> {
    let (mut text, more) = std::mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
    if more > 0 {
        text.extend(format!("teiji: {more} more bytes of the log had no room\n").into_bytes());
    }
    text
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Leaves the terminal as it was before [`Screen::enter`]; once.
pub fn restore() {
    let mut former = former();
    if let Some(before) = former.take() {
        let _ = write(LEAVE);
        if let Some(before) = before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
        let _ = io::stderr().write_all(&held());
    }
}

fn write(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to the terminal")
}

/// The keys in what a terminal sends; anything else is skipped.
fn parse(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        bytes = rest;
        match first {
            0x1b if matches!(rest.first(), Some(b'[' | b'O')) => {
                // Up to its last byte, as ECMA-48 defines it.
                let end = rest[1..].iter().position(|b| (0x40..=0x7e).contains(b));
                match end.map(|end| (end, rest[1 + end])) {
                    Some((0, b'A')) => keys.push(Key::Up),
                    Some((0, b'B')) => keys.push(Key::Down),
                    _ => {}
                }
                bytes = end.map_or(&[], |end| &rest[2 + end..]);
            }
            b'k' => keys.push(Key::Up),
            b'j' => keys.push(Key::Down),
            letter if letter.is_ascii_alphabetic() => {
                keys.push(Key::Letter(letter.to_ascii_lowercase().into()))
            }
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A terminal whose other end is gone has input for ever, without a byte in it: who goes on reading would take a whole CPU.
    #[test]
    fn a_terminal_that_was_hung_up_is_gone() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        tcsetattr(&pty.slave, OptionalActions::Now, &single_keys(&before)).unwrap();
        assert_eq!(read_keys(&pty.slave), Some(vec![]), "nothing was pressed");
        rustix::io::write(&pty.master, b"qs").unwrap();
        assert_eq!(read_keys(&pty.slave), Some(vec![Key::Letter('q'), Key::Letter('s')]));
        drop(pty.master);
        assert_eq!(read_keys(&pty.slave), None);
        assert_eq!(read_keys(&pty.slave), None);
    }

    #[test]
    fn what_is_logged_while_there_is_a_screen_is_kept() {
        *former() = Some(None);
        let mut log = Log;
        log.write_all(b"a line\n").unwrap();
        log.write_all(&vec![b'x'; MOST_HELD]).unwrap();
        log.write_all(b"another\n").unwrap();
        *former() = None;
        let text = String::from_utf8(held()).unwrap();
        assert_eq!(text, format!("a line\nanother\nteiji: {MOST_HELD} more bytes of the log had no room\n"));
        assert!(held().is_empty());
    }

    #[test]
    fn keys_are_read_and_all_else_is_skipped() {
        use Key::{Down, Letter, Up};
        assert_eq!(parse(b"\x1b[A\x1bOBqPjk"), [Up, Down, Letter('q'), Letter('p'), Down, Up]);
        // Function keys, modified arrows, a mouse, half a sequence, and what is no key here.
        assert_eq!(parse(b"\x1b[15~\x1b[1;5A\x1b[<0;10;10Ms"), [Letter('s')]);
        for odd in [&b"\x1b"[..], b"\x1b[", b"\x1b[12", b"\x1bO", b"\x00\xff\xf0\x9f\x98\x80", b""] {
            assert_eq!(parse(odd), []);
        }
    }
}
