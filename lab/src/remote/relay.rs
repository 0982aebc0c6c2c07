//! Forwards a command to a guest's agent, frame by frame.

use std::{
    fs::File,
    io::{self, Read, Write},
    time::Duration,
};

use super::{command::Failure, dial, readable, wait_readable, watch};
use crate::proto::{self, FromAgent, RunRequest, ToAgent};

/// How long the guest's agent may take to accept a connection: a vCPU may stand still for seconds. It is less than the lab waits
/// for the end of a command that it has killed, so that the lab learns the reason.
const CONNECT_LIMIT: Duration = Duration::from_secs(50);

/// Runs `request` in guest `cid` for the caller behind `stream`.
pub(super) fn run(stream: &mut File, cid: u32, request: RunRequest) -> Result<(), Failure> {
    let unreachable = |e| Failure::Start(format!("cannot reach guest {cid}: {e}"));
    let mut guest = dial(cid, CONNECT_LIMIT).map_err(unreachable)?;
    proto::send(&mut guest, &ToAgent::Run(request)).map_err(unreachable)?;
    let mut from_guest = Vec::new();
    let mut chunk = vec![0; proto::CHUNK];
    loop {
        let (caller_has, guest_has) = {
            let mut fds = [watch(stream), watch(&guest)];
            wait_readable(&mut fds, None).map_err(Failure::Stream)?;
            (readable(&fds[0]), readable(&fds[1]))
        };
        if guest_has {
            let n = guest.read(&mut chunk).unwrap_or(0);
            if n == 0 {
                return Err(Failure::Start(format!("guest {cid} ended during the command")));
            }
            from_guest.extend_from_slice(&chunk[..n]);
            while let Some(message) = proto::take::<FromAgent>(&mut from_guest).map_err(Failure::Stream)? {
                proto::send(stream, &message).map_err(Failure::Stream)?;
                if matches!(message, FromAgent::Done(_) | FromAgent::Refused(_)) {
                    return Ok(());
                }
            }
        }
        if caller_has {
            // Closing the connection to the guest on return ends the command there.
            let n = stream.read(&mut chunk).map_err(Failure::Stream)?;
            if n == 0 {
                return Err(Failure::Stream(io::ErrorKind::UnexpectedEof.into()));
            }
            // If the guest has ended, the next read from it reports that.
            let _ = guest.write_all(&chunk[..n]);
        }
    }
}
