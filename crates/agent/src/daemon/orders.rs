//! The privileged part's end of the socket to the front: carries out orders.
//!
//! The front is not trusted. What it sends is bounded, and is one of a few orders ([`Order`]); anything else ends it, and
//! the agent starts another one. Each order is carried out in a thread of its own, so that a write to the host that hangs
//! does not keep others from being answered, and never the heartbeat.

use super::detached::Traces;
use super::protocol::{Answer, FullStatus, Numbered, Order, Refusal};
use super::reconciler::Reconciler;
use super::wire::{self, MOST_OF_REQUEST};
use crate::apply::{Engine, Message, Rollback};
use crate::backend::HostBackend;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Most orders that are carried out at a time.
const MOST: usize = 16;
/// How long the front may take to send an order, or to take an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a rollback waits for another teiji.
const WAIT: Duration = Duration::from_secs(10);

/// What orders act on.
pub(super) struct Orders {
    reconciler: Arc<Reconciler>,
    traces: Traces,
    running: AtomicUsize,
}

impl Orders {
    pub(super) fn new(reconciler: Arc<Reconciler>, traces: Traces) -> Arc<Orders> {
        Arc::new(Orders { reconciler, traces, running: AtomicUsize::new(0) })
    }

    /// Carries out the orders of a front until it is gone, in the calling thread.
    ///
    /// # Errors
    /// If it sends anything but orders.
    pub(super) fn serve(self: &Arc<Self>, front: UnixStream) -> io::Result<()> {
        let answers = Arc::new(Mutex::new(front.try_clone()?));
        while let Some(order) = wire::receive::<Numbered<Order>>(&front, MOST_OF_REQUEST, None, PATIENCE)? {
            let Numbered { number, content: order } = order;
            let (orders, to) = (Arc::clone(self), Arc::clone(&answers));
            if self.running.fetch_add(1, Ordering::SeqCst) >= MOST {
                self.running.fetch_sub(1, Ordering::SeqCst);
                answer(&answers, number, Err(Refusal::Busy));
                continue;
            }
            let work = move || {
                let result = orders.carry_out(&order);
                orders.running.fetch_sub(1, Ordering::SeqCst);
                answer(&to, number, result);
            };
            if Builder::new().name("order".into()).spawn(work).is_err() {
                self.running.fetch_sub(1, Ordering::SeqCst);
                answer(&answers, number, Err(Refusal::Busy));
            }
        }
        Ok(())
    }

    fn carry_out(&self, order: &Order) -> Result<Answer, Refusal> {
        let failed = |error: crate::apply::Error| Refusal::Failed(error.to_string());
        let engine = || -> Result<Engine<HostBackend>, Refusal> { self.reconciler.engine().map_err(failed) };
        let texts = |messages: &[Message]| messages.iter().map(Message::to_string).collect();
        match order {
            Order::Status => {
                let engine = engine()?;
                let status = engine.status_or_damage();
                let links = engine.backend().links();
                let agent = self.reconciler.status();
                Ok(Answer::Status(Box::new(FullStatus { agent, status, links })))
            }
            Order::Reconcile => self.reconciler.reconcile_now().map(Answer::Done).map_err(Refusal::Failed),
            Order::Confirm => engine()?.confirm().map(|all| Answer::Done(texts(&all))).map_err(failed),
            Order::Trace(order) => self.traces.start(order).map(Answer::Started).map_err(Refusal::Failed),
            Order::Traces => {
                self.traces.all().map(Answer::Traces).map_err(|e| Refusal::Failed(e.to_string()))
            }
            Order::StopTrace(number) => {
                self.traces.stop(*number).map(|()| Answer::Done(Vec::new())).map_err(Refusal::Failed)
            }
            Order::RemoveTrace(number) => {
                self.traces.remove(*number).map(|()| Answer::Done(Vec::new())).map_err(Refusal::Failed)
            }
            Order::Rollback { force } => {
                let options = Rollback { force: *force, wait: WAIT };
                let done = engine()?.rollback(&options).map_err(failed)?;
                let mut all = vec![format!("restored: {} settings", done.restored)];
                all.extend(done.messages.iter().map(Message::to_string));
                Ok(Answer::Done(all))
            }
        }
    }
}

/// If the front does not take it, its socket is closed, and the agent starts another front.
fn answer(to: &Mutex<UnixStream>, number: u64, content: Result<Answer, Refusal>) {
    let to = to.lock().unwrap_or_else(PoisonError::into_inner);
    if wire::send(&to, &Numbered { number, content }, PATIENCE).is_err() {
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::super::claim::Claim;
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// Everything that a front could send: frames with orders, frames with anything, and bytes without frames.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let framed = |text: Vec<u8>| [&(text.len() as u32).to_ne_bytes()[..], &text].concat();
        let text = prop_oneof![
            "\\{\"number\":[0-9]{1,20},\"content\":\"(status|confirm|traces|reboot)\"\\}",
            "\\{\"number\":[0-9]{1,3},\"content\":\\{\"rollback\":\\{\"force\":(true|false|1)(,\"x\":1)?\\}\\}\\}",
            "\\{\"number\":[0-9]{1,3},\"content\":\\{\"(stop|remove)-trace\":-?[0-9]{1,9}\\}\\}",
            "[\\[\\]{}\":,a-z0-9]{0,40}",
        ];
        prop_oneof![
            3 => text.prop_map(move |text| framed(text.into_bytes())),
            1 => proptest::collection::vec(any::<u8>(), 0..40),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever the front sends, the privileged part neither fails nor does anything but carry out orders: here,
        /// where teiji holds nothing, there is nothing that an order could change but the lock of the state directory.
        #[test]
        fn the_front_can_only_give_orders(frames in proptest::collection::vec(frame(), 0..12)) {
            let dir = tempfile::tempdir().unwrap();
            let state = dir.path().join("state");
            let reconciler = Arc::new(Reconciler::new(&state, &dir.path().join("pins"), Arc::new(Claim::on(&state))).unwrap());
            let orders = Orders::new(reconciler, Traces::of(&state));
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&frames.concat()).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = orders.serve(ours);
            drop(theirs);
            while orders.running.load(Ordering::SeqCst) > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let names: Vec<String> =
                dir.path().read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            prop_assert!(names.is_empty() || names == ["state"], "{:?}", names);
            if state.exists() {
                let names: Vec<String> =
                    state.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
                prop_assert!(names.iter().all(|name| name == "lock"), "{:?}", names);
            }
        }
    }
}
