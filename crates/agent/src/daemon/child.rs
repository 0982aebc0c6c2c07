//! Processes that the agent starts: the front, and traces.

use std::io;
use std::process::{Child, Command};
use teiji_host::priority;

/// What systemd tells the agent by its environment. A process that had it could speak for the agent.
const OF_SYSTEMD: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Starts a child of the agent, which is an ordinary process: systemd does not listen to it, and it is not spared if memory runs
/// out. `what` is what a warning calls it.
///
/// # Errors
/// If it cannot be started.
pub(super) fn start_child(what: &str, command: &mut Command) -> io::Result<Child> {
    for name in OF_SYSTEMD {
        command.env_remove(name);
    }
    let child = command.spawn()?;
    if let Err(error) = priority::ordinary_memory(child.id()) {
        tracing::warn!("{what} is spared like the agent if memory runs out: {error}");
    }
    Ok(child)
}
