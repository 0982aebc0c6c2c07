//! Runs a command in a guest from a shell in the lab host, and passes on its input, output and exit code.

use std::{
    io::{self, Read, Write},
    thread,
    time::{Duration, Instant},
};

use super::dial;
use crate::{
    error::{Doing, Error, Result},
    proto::{self, FromAgent, RunRequest, ToAgent},
};

/// How long one attempt to reach the guest lasts: a guest that still boots does not answer.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Runs `argv` in guest `cid`; tries to reach the guest for `wait`. Returns the exit code.
///
/// # Errors
/// If the guest cannot be reached, or ends during the command.
pub fn call(cid: u32, argv: Vec<String>, wait: Duration) -> Result<i32> {
    let deadline = Instant::now() + wait;
    let mut stream = loop {
        match dial(cid, ATTEMPT) {
            Ok(s) => break s,
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(100)),
            Err(e) => return Err(e).doing(|| format!("reach the agent of guest {cid}")),
        }
    };
    let lost = || format!("talk to the agent of guest {cid}");
    proto::send(&mut stream, &ToAgent::Run(RunRequest { argv, ..RunRequest::default() })).doing(lost)?;
    let mut input = stream.try_clone().doing(lost)?;
    thread::spawn(move || {
        let mut chunk = vec![0; proto::CHUNK];
        while let Ok(n) = io::stdin().read(&mut chunk) {
            let message = if n == 0 { ToAgent::StdinEnd } else { ToAgent::Stdin(chunk[..n].to_vec()) };
            if proto::send(&mut input, &message).is_err() || n == 0 {
                break;
            }
        }
    });
    loop {
        match proto::receive::<FromAgent>(&mut stream).doing(lost)? {
            Some(FromAgent::Stdout(b)) => {
                let mut out = io::stdout().lock();
                out.write_all(&b).and_then(|()| out.flush()).doing(|| "write to standard output".into())?;
            }
            Some(FromAgent::Stderr(b)) => {
                io::stderr().write_all(&b).doing(|| "write to standard error".into())?;
            }
            Some(FromAgent::Done(end)) => return Ok(end.code),
            Some(FromAgent::Refused(why)) => return Err(Error::Protocol(format!("refused: {why}"))),
            Some(FromAgent::Pong { .. } | FromAgent::Started { .. }) => {}
            None => return Err(Error::Guest { name: cid.to_string(), why: "ended meanwhile".into() }),
        }
    }
}
