//! The emulator's monitor: what the CPUs of a lab host do that does not answer.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use crate::machine::Emulator;

/// The name of its socket in the emulator's folder.
pub(crate) const SOCKET: &str = "monitor.sock";
/// How long the monitor may take to answer: it waits for the emulator's main loop, which may hang, too, or
/// only be slow.
const LIMIT: Duration = Duration::from_secs(60);
/// The time between two looks at the CPUs: those whose registers are the same twice do nothing, or the same thing.
const BETWEEN: Duration = Duration::from_secs(1);
/// What the monitor prints when it is ready for a command.
const PROMPT: &str = "(qemu) ";

/// The registers of each CPU that say where it is and whether it sleeps, twice.
pub(crate) fn cpus(emulator: &Emulator) -> String {
    let looks = [Duration::ZERO, BETWEEN].map(|pause| {
        thread::sleep(pause);
        match ask(emulator, "info registers -a", LIMIT) {
            Ok(answer) => shown(&answer),
            Err(e) => format!("\n  its monitor does not say what its CPUs do: {e}"),
        }
    });
    looks.concat()
}

/// Of the registers that the monitor prints, those that are shown: a line for each CPU.
fn shown(answer: &str) -> String {
    let mut all = String::new();
    for word in answer.split_whitespace() {
        if word.starts_with("CPU#") {
            all += "\n  ";
            all += word;
        } else if ["RIP=", "EIP=", "RSP=", "RFL=", "EFL=", "CPL=", "HLT="].iter().any(|n| word.starts_with(n))
        {
            all += " ";
            all += word;
        }
    }
    all
}

/// Asks the monitor something; at most `limit` for all of it.
fn ask(emulator: &Emulator, command: &str, limit: Duration) -> std::io::Result<String> {
    let mut socket = emulator.connect(SOCKET)?;
    let until = Instant::now() + limit;
    socket.set_write_timeout(Some(limit))?;
    read_prompt(&mut socket, until)?;
    socket.write_all(format!("{command}\n").as_bytes())?;
    read_prompt(&mut socket, until)
}

/// Reads what the monitor prints before its next prompt.
fn read_prompt(socket: &mut UnixStream, until: Instant) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let rest = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(rest))?;
        let n = socket.read(&mut part)?;
        bytes.extend_from_slice(&part[..n]);
        let text = String::from_utf8_lossy(&bytes);
        if text.ends_with(PROMPT) {
            return Ok(text.into_owned());
        }
        if n == 0 || Instant::now() >= until {
            let why = format!("it said only {:?}", text.chars().take(200).collect::<String>());
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, path::Path};

    const ANSWER: &str = "info registers -a\r\n\r\nCPU#0\r\nRAX=0000000000000000 RBX=0000000000000001\r\n\
        R12=0000000000000000 RSP=ffffffff82603e88\r\nRIP=ffffffff81337cdf RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\r\n\
        ES =0000 0000000000000000 00000000 00000000\r\n\r\nCPU#1\r\nRAX=0000000000000000\r\nRIP=ffffffff81000000 HLT=0\r\n";

    /// A monitor that answers `answers` commands.
    fn monitor(folder: &Path, answers: usize) -> thread::JoinHandle<()> {
        let listener = UnixListener::bind(folder.join(SOCKET)).unwrap();
        thread::spawn(move || {
            for n in 0..2 {
                let (mut socket, _) = listener.accept().unwrap();
                write!(socket, "QEMU 11.1 monitor\r\n{PROMPT}").unwrap();
                if n < answers {
                    let _ = socket.read(&mut [0; 100]).unwrap();
                    write!(socket, "{ANSWER}{PROMPT}").unwrap();
                }
            }
        })
    }

    #[test]
    fn where_each_cpu_is_is_shown_twice_and_silence_is_said() {
        for (answers, silent) in [(2, 0), (1, 1), (0, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let thread = monitor(folder.path(), answers);
            let said = cpus(&Emulator::new(0, folder.path()));
            thread.join().unwrap();
            let expected = "\n  CPU#0 RSP=ffffffff82603e88 RIP=ffffffff81337cdf RFL=00000246 CPL=0 HLT=1\n  CPU#1 RIP=ffffffff81000000 HLT=0";
            assert_eq!(said.matches(expected).count(), answers, "{said}");
            assert_eq!(said.matches("does not say").count(), silent, "{said}");
        }
    }
}
