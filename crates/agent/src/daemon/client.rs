//! Asks an agent.

use super::protocol::{Answer, Order, Refusal, Reply, Request, VERSION};
use super::wire::{self, MAX_ANSWER};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an agent may take to say what it does.
pub const STATUS_WITHIN: Duration = Duration::from_secs(10);
/// How long it may take to change something: longer than its front waits for the privileged part.
pub const CHANGE_WITHIN: Duration = Duration::from_secs(130);
/// How long it may take to accept a request.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an agent did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// None is there.
    #[error("no agent runs on this host (nothing answers on {path}): `systemctl start teiji-agent` starts it", path = .0.display())]
    Absent(PathBuf),
    /// The caller may not ask it.
    #[error("only root, and the group teiji if the host has one, may ask the agent ({path})", path = .0.display())]
    NotPermitted(PathBuf),
    /// The connection failed.
    #[error("the agent does not answer on {path}: see `systemctl status teiji-agent`")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Asks the agent that listens on `socket`, which has to answer in this time.
///
/// # Errors
/// If there is none, it does not answer, or it refuses.
pub fn ask(socket: &Path, order: &Order, within: Duration) -> Result<Answer, Error> {
    let silent = |source| Error::Silent { path: socket.to_owned(), source };
    let stream = UnixStream::connect(socket).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
            Error::Absent(socket.to_owned())
        }
        ErrorKind::PermissionDenied => Error::NotPermitted(socket.to_owned()),
        _ => silent(e),
    })?;
    let order = serde_json::to_value(order).map_err(|e| silent(e.into()))?;
    wire::send(&stream, &Request { version: VERSION, order }, SEND_TIMEOUT).map_err(silent)?;
    let reply: Option<Reply> = wire::receive(&stream, MAX_ANSWER, Some(within), within).map_err(silent)?;
    let reply = reply.ok_or_else(|| silent(ErrorKind::UnexpectedEof.into()))?;
    Ok(reply.result?)
}
