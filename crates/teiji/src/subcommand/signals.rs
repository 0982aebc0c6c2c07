//! SIGINT, SIGTERM and SIGHUP (the terminal was closed): the first one requests the end, the second one ends the
//! process at once, unless it is a trace of the agent.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use signal_hook::{SigId, flag, low_level};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use teiji_agent::service::Signals;

/// A flag that the first signal sets.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    set_by(&[SIGINT, SIGTERM, SIGHUP])
}

/// A flag that any signal sets, for a process that nobody ends from a terminal: several may ask for its end, such as an operator
/// and the agent, and none of them means to cut it short.
pub(super) fn patient_stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    Ok(stop)
}

/// For a command that has the terminal to restore: the second signal must not end it on the spot.
pub(super) struct Gentle {
    /// Set by the first signal.
    pub(super) stop: Arc<AtomicBool>,
    /// Set by every signal.
    pub(super) again: Arc<AtomicBool>,
    shutdown: Vec<SigId>,
}

impl Gentle {
    /// Until [`Gentle::hold`] the second signal ends the process at once, as always.
    pub(super) fn catch() -> Result<Gentle> {
        let (stop, again) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut shutdown = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let end = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop));
            shutdown.push(end.context("cannot catch Ctrl-C")?);
            for flag in [&stop, &again] {
                flag::register(signal, Arc::clone(flag)).context("cannot catch Ctrl-C")?;
            }
        }
        Ok(Gentle { stop, again, shutdown })
    }

    /// From now on signals only set the flags.
    pub(super) fn hold(&self) {
        for id in &self.shutdown {
            low_level::unregister(*id);
        }
    }
}

/// Of a daemon: SIGTERM and SIGINT ask for its end, each SIGHUP for another look at the host.
pub(super) struct Daemon {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    wake: UnixStream,
}

impl Daemon {
    pub(super) fn catch() -> Result<Daemon> {
        let reload = Arc::new(AtomicBool::new(false));
        flag::register(SIGHUP, Arc::clone(&reload)).context("cannot catch SIGHUP")?;
        let stop = set_by(&[SIGINT, SIGTERM])?;
        let (wake, woken) = UnixStream::pair().context("cannot make a socket for signals")?;
        wake.set_nonblocking(true).context("cannot make a socket for signals")?;
        // Handlers run in the order of their registration: the flags are set by then.
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let woken = woken.try_clone().context("cannot make a socket for signals")?;
            pipe::register(signal, woken).context("cannot catch signals")?;
        }
        Ok(Daemon { stop, reload, wake })
    }

    pub(super) fn as_seen(&self) -> Signals<'_> {
        Signals { stop: &self.stop, reload: &self.reload, wake: &self.wake }
    }
}

fn set_by(signals: &[i32]) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // In this order: the first handler ends the process if the flag is set already; the second sets the flag.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch Ctrl-C")?;
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    use signal_hook::low_level::raise;
    use std::io::Read;
    use std::sync::atomic::Ordering;

    /// One test for all, as a signal reaches every handler of the process.
    #[test]
    fn the_first_signal_only_asks_and_wakes_a_daemon() {
        let daemon = super::Daemon::catch().unwrap();
        let signals = daemon.as_seen();
        let woken = || { signals.wake }.read(&mut [0; 8]).ok();
        assert_eq!(woken(), None);
        raise(SIGHUP).unwrap();
        assert_eq!(woken(), Some(1));
        assert!(signals.reload.swap(false, Ordering::SeqCst) && !signals.stop.load(Ordering::SeqCst));
        let stop = super::stop_flag().unwrap();
        assert!(!stop.load(Ordering::SeqCst));
        raise(SIGTERM).unwrap();
        assert!(stop.load(Ordering::SeqCst));
        assert_eq!(woken(), Some(1));
        assert!(signals.stop.load(Ordering::SeqCst) && !signals.reload.load(Ordering::SeqCst));
    }
}
