//! Messages between a client, the front and the privileged part: a length of four bytes, then JSON.
//!
//! Each side bounds what it reads, in bytes and in time, because the other one may be anybody.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest request, bytes.
pub(crate) const MAX_REQUEST: usize = 64 << 10;
/// The longest answer, bytes: the status of thousands of settings.
pub(crate) const MAX_ANSWER: usize = 32 << 20;
/// Bytes of the length.
const LENGTH: usize = 4;

/// Sends a message; `within` bounds the time for all of it.
///
/// # Errors
/// If the other side does not take it in time, or is gone.
pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize, within: Duration) -> io::Result<()> {
    let until = Instant::now() + within;
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut rest = [&length.to_ne_bytes()[..], &text].concat();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(&rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => drop(rest.drain(..sent)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Waits for a message for as long as it takes, or for `idle`; once it has begun, it has to be complete within `within`.
/// `None` if the other side has closed the connection.
///
/// # Errors
/// If it is longer than `most` bytes, no such message, or not complete in time.
pub(crate) fn receive<T: DeserializeOwned>(
    mut stream: &UnixStream,
    most: usize,
    idle: Option<Duration>,
    within: Duration,
) -> io::Result<Option<T>> {
    let mut length = [0; LENGTH];
    stream.set_read_timeout(idle)?;
    let first = loop {
        match stream.read(&mut length) {
            Ok(0) => return Ok(None),
            Ok(n) => break n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    };
    let until = Instant::now() + within;
    fill(stream, &mut length[first..], until)?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > most {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("a message of {length} bytes; {most} are allowed"),
        ));
    }
    let mut text = vec![0; length];
    fill(stream, &mut text, until)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

fn fill(mut stream: &UnixStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn received(bytes: &[u8], most: usize) -> io::Result<Option<Vec<u32>>> {
        let (one, mut other) = UnixStream::pair().unwrap();
        other.write_all(bytes).unwrap();
        drop(other);
        receive(&one, most, Some(LONG), LONG)
    }

    #[test]
    fn a_message_arrives() {
        let (one, other) = UnixStream::pair().unwrap();
        let long: Vec<u32> = (0..200_000).collect();
        let sent = long.clone();
        let sender = std::thread::spawn(move || send(&one, &sent, LONG));
        assert_eq!(receive::<Vec<u32>>(&other, MAX_ANSWER, Some(LONG), LONG).unwrap(), Some(long));
        sender.join().unwrap().unwrap();
        assert_eq!(receive::<Vec<u32>>(&other, 10, Some(LONG), LONG).unwrap(), None);
    }

    #[test]
    fn whatever_is_no_message_is_an_error() {
        let framed = |text: &[u8]| [&(text.len() as u32).to_ne_bytes()[..], text].concat();
        assert_eq!(received(&framed(b"[1,2]"), 5).unwrap(), Some(vec![1, 2]));
        assert!(received(&framed(b"[1,2]"), 4).is_err());
        assert!(received(&framed(b"[1,2"), 9).is_err() && received(&framed(b""), 9).is_err());
        assert!(received(&u32::MAX.to_ne_bytes(), 1 << 20).is_err());
        let whole = framed(b"[1,2]");
        assert!((1..whole.len()).all(|cut| received(&whole[..cut], 9).is_err()));
        assert_eq!(received(&[], 9).unwrap(), None);
    }

    /// The time is for the whole message: a byte now and then does not extend it.
    #[test]
    fn a_slow_sender_does_not_hold_up_the_receiver() {
        let (one, mut other) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            while other.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // A length of 0x01010101; the text does not end in time.
        let result = receive::<u32>(&one, usize::MAX >> 8, Some(LONG), Duration::from_millis(100));
        assert!(result.is_err());
        drop(one);
        sender.join().unwrap();
    }

    #[test]
    fn a_receiver_that_does_not_read_does_not_hold_up_the_sender() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(send(&one, &vec![0u8; 4 << 20], Duration::from_millis(50)).is_err());
    }
}
