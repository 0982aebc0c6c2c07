//! SIGINT, SIGTERM and SIGHUP (the terminal was closed): the first one requests the end, the second one ends the
//! process at once.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that the first signal sets.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    set_by(&[SIGINT, SIGTERM, SIGHUP])
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
