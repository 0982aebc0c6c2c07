//! `teiji-lab shell`: a shell in the lab host on this terminal.

use std::{
    io::{IsTerminal, Read},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use nix::sys::termios::{self, SetArg, Termios};
use teiji_lab::LabHost;

/// The terminal in raw mode; its former mode is restored when this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> anyhow::Result<Raw> {
        let before = termios::tcgetattr(std::io::stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw).context("cannot set the terminal up")?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing can be done if the terminal does not exist any more.
        let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

fn size() -> (u16, u16) {
    let mut w = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `w` outlives the call, which fills it or does not change it.
    unsafe { libc::ioctl(0, libc::TIOCGWINSZ, &mut w) };
    (w.ws_row.max(1), w.ws_col.max(1))
}

/// Opens the shell; returns its exit code.
pub fn run(host: &LabHost) -> anyhow::Result<i32> {
    if !std::io::stdin().is_terminal() {
        bail!("standard input is no terminal: use `teiji-lab run -- command`");
    }
    eprintln!(
        "lab: guests answer `teiji-lab call vsock:101 -- command`, the outside world is `ip netns exec peer ...`; \
         `exit` ends the lab"
    );
    let (rows, columns) = size();
    let child = Arc::new(host.spawn_on_terminal("exec bash -i", rows, columns)?);
    let raw = Raw::enter()?;
    let typing = Arc::clone(&child);
    // The thread stays in its read when the shell ends, and ends with the process.
    thread::spawn(move || {
        let mut keys = [0; 4096];
        while let Ok(n @ 1..) = std::io::stdin().read(&mut keys) {
            if typing.write(&keys[..n]).is_err() {
                break;
            }
        }
    });
    let mut shown = (rows, columns);
    while !child.ended() {
        thread::sleep(Duration::from_millis(50));
        if size() != shown {
            shown = size();
            child.resize(shown.0, shown.1)?;
        }
    }
    drop(raw);
    Ok(child.code().unwrap_or(1))
}
