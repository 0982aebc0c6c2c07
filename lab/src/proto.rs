//! The messages between the lab and its agents: frames of a length (4 bytes, little endian) and a body ([`ToAgent`] or
//! [`FromAgent`]) over a byte stream. That is a virtio-serial port to the lab host, or a vsock connection to a guest.
//! One command at a time runs over a stream.
//!
//! ```text
//! lab                         agent
//!  | Run(request)  ------------> |
//!  | <---------- Started{pid}    |   or Refused(why): nothing runs, the stream is free again
//!  | Stdin, StdinEnd, Resize --> |   any number
//!  | <---------- Stdout, Stderr  |   any number
//!  | Kill -----------------------> |   ends the whole process group
//!  | <---------- Done(end)       |   the stream is free again
//! ```

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Incremented with every change of these types; both sides must have the same version.
pub(crate) const VERSION: u32 = 2;

/// The vsock port of a guest's agent.
pub(crate) const VSOCK_PORT: u32 = 5000;

/// The longest body that is accepted, bytes.
const LONGEST: usize = 16 << 20;

/// The greatest number of bytes of output or input per frame.
pub(crate) const CHUNK: usize = 64 << 10;

/// From the lab to an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// Asks for [`FromAgent::Pong`].
    Ping,
    /// Starts a command.
    Run(RunRequest),
    /// Bytes for the command's standard input.
    Stdin(Vec<u8>),
    /// The end of the command's standard input.
    StdinEnd,
    /// Kills the command and all processes that it started.
    Kill,
    /// The terminal has a new size.
    Resize(Size),
}

/// From an agent to the lab.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// The agent is there.
    Pong {
        /// [`VERSION`] of its program.
        version: u32,
        /// Its kernel, as `uname -r` prints it.
        kernel: String,
    },
    /// The command runs as the leader of process group `pid`.
    Started {
        /// The process id in that machine.
        pid: u32,
    },
    /// Output of the command to its standard output (or terminal).
    Stdout(Vec<u8>),
    /// Output of the command to its standard error.
    Stderr(Vec<u8>),
    /// The command has ended.
    Done(End),
    /// The command could not be started.
    Refused(String),
}

/// A command to run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables that are added to the agent's environment.
    pub env: Vec<(String, String)>,
    /// Working folder; `/root` if not given.
    pub cwd: Option<String>,
    /// If set, the command gets a terminal of this size.
    pub terminal: Option<Size>,
    /// If set, the command runs in the guest with this context id (only for the lab host's agent).
    pub guest: Option<u32>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct End {
    /// Exit code; 128 + n if signal n ended it.
    pub code: i32,
}

/// Writes one frame.
pub(crate) fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let mut frame = vec![0; 4];
    frame = postcard::to_extend(message, frame).map_err(io::Error::other)?;
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&frame)
}

/// Reads one frame; `None` if the stream has ended between frames.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    let mut got = 0;
    while got < 4 {
        match from.read(&mut head[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let mut body = vec![0; length(head)?];
    from.read_exact(&mut body)?;
    decode(&body).map(Some)
}

/// Takes one frame from the front of `buffer`, if it is complete.
pub(crate) fn take<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
    let end = 4 + length(*head)?;
    if buffer.len() < end {
        return Ok(None);
    }
    let message = decode(&buffer[4..end])?;
    buffer.drain(..end);
    Ok(Some(message))
}

fn length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {length} bytes")));
    }
    Ok(length)
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    postcard::from_bytes(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let mut bytes = Vec::new();
        send(&mut bytes, &FromAgent::Stdout(vec![7; 1000])).unwrap();
        send(&mut bytes, &FromAgent::Done(End { code: 3 })).unwrap();
        let mut buffer = Vec::new();
        let mut seen = Vec::new();
        for b in bytes {
            buffer.push(b);
            while let Some(m) = take::<FromAgent>(&mut buffer).unwrap() {
                seen.push(m);
            }
        }
        assert!(matches!(&seen[0], FromAgent::Stdout(v) if v.len() == 1000));
        assert!(matches!(seen[1], FromAgent::Done(End { code: 3 })));
        assert_eq!(seen.len(), 2);
    }

    #[test]
    fn a_huge_length_is_refused() {
        let mut bytes: &[u8] = &[0xff; 8];
        assert!(receive::<FromAgent>(&mut bytes).is_err());
    }
}
