//! Experiment `sip`: paper P0 on real SIP load, with a guest that reports. See README.md beside this file.

pub mod calls;
pub mod findings;

use anyhow::{Context, Result};
use serde::Deserialize;
use teiji_lab::{Child, Guest, LabHost};

/// The arguments of a trace of SIP.
pub const TRACE: &str = "--vm vm1 --guest --flow 'udp port 5060' --match sip";

/// How much of the experiment is run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Calls that are compared with sipp's log and the capture.
    pub calls: u64,
    /// Calls per second.
    pub rate: f64,
    /// Echo requests, two packets each, whose times are checked for causality.
    pub echoes: u64,
    /// Calls in each run of a finding.
    pub of_finding: u64,
}

/// The extent that the README's claims are made for.
pub const FULL: Extent = Extent { calls: 2100, rate: 15.0, echoes: 50_500, of_finding: 60 };
/// A short form, to see whether the parts work.
pub const SHORT: Extent = Extent { calls: 100, rate: 10.0, echoes: 1_000, of_finding: 40 };

/// The server that answers by a thread for each request, or by a pool.
const SERVER: &str = include_str!("server.py");

/// What that server counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Counted {
    /// Requests that it answered.
    pub answered: u64,
    /// Threads that it created for them.
    pub threads: u64,
}

/// That server, running in a guest.
pub struct Server<'g> {
    guest: &'g Guest<'g>,
    child: Child,
}

impl<'g> Server<'g> {
    /// Starts it; `mode` is `thread` or `pool`. Calls it until the programs are in memory.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(host: &LabHost, guest: &'g Guest<'g>, mode: &str) -> Result<Server<'g>> {
        guest.run(&format!("cat >/run/server.py <<'END'\n{SERVER}END\n"))?.ok()?;
        let child = guest.spawn(&format!(
            "echo $$ >/run/server.pid; exec python3 /run/server.py {mode} {} 5060",
            guest.ip()
        ))?;
        child.wait_for("serving", crate::reporting::START).context("the SIP server did not start")?;
        crate::load::call(host, guest, 5.0, 10)?;
        Ok(Server { guest, child })
    }

    /// Ends it; returns what it counted.
    ///
    /// # Errors
    /// If it does not tell.
    pub fn stop(self) -> Result<Counted> {
        self.guest.run("kill -TERM $(cat /run/server.pid)")?.ok()?;
        let printed = self.child.wait()?.ok()?;
        let last = printed.lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| format!("the server printed {printed:?}"))
    }
}
