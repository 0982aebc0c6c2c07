//! SIGINT, SIGTERM and SIGHUP (the terminal was closed): the first one requests the end, the second one ends the
//! process at once.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that the first signal sets.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    set_by(&[SIGINT, SIGTERM, SIGHUP])
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

/// Of a daemon: a flag that SIGTERM and SIGINT set, and one that each SIGHUP sets.
pub(super) fn daemon_flags() -> Result<(Arc<AtomicBool>, Arc<AtomicBool>)> {
    let reload = Arc::new(AtomicBool::new(false));
    flag::register(SIGHUP, Arc::clone(&reload)).context("cannot catch SIGHUP")?;
    Ok((set_by(&[SIGINT, SIGTERM])?, reload))
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
    use std::sync::atomic::Ordering;

    #[test]
    fn the_first_signal_only_asks() {
        let stop = super::stop_flag().unwrap();
        assert!(!stop.load(Ordering::SeqCst));
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        assert!(stop.load(Ordering::SeqCst));
    }
}
