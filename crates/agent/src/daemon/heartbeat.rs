//! The heartbeat: a thread that depends on no file and waits for nothing but the time.

use super::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use teiji_bpf::qdisc_edf::Heartbeat;
use teiji_host::privilege;

/// Time between two heartbeats, a fraction of what is safe ([`teiji_bpf::qdisc_edf::HEARTBEAT_INTERVAL_MAX`]).
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);

/// A thread without privileges that sends the heartbeat until this value is dropped.
pub(super) struct HeartbeatThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HeartbeatThread {
    /// # Errors
    /// [`Error::Thread`].
    pub(super) fn start(heartbeat: Arc<Heartbeat>) -> Result<HeartbeatThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            heartbeat.send();
            if let Err(error) = privilege::give_up() {
                tracing::error!("the heartbeat: {error}; deadlines are kept all the same");
            }
            while !stopped.load(Ordering::Relaxed) {
                heartbeat.send();
                std::thread::park_timeout(HEARTBEAT_INTERVAL);
            }
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(send).map_err(Error::Thread)?;
        Ok(HeartbeatThread { stop, thread: Some(thread) })
    }

    /// Whether the thread runs.
    pub(super) fn runs(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
