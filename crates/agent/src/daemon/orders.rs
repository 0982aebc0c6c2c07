//! The privileged part's end of the socket to the front: carries out orders.
//!
//! The front is not trusted. What it sends is bounded, and is one of a few orders ([`Order`]). No order changes a setting or
//! confirms a change. The commands for that do not go through the agent. Anything else that the front sends ends it, and the
//! agent starts another one. Each order is carried out in a thread of its own: if a read of the host hangs, other orders are
//! answered nevertheless, and the heartbeat is sent.
//!
//! Orders that change something and those that read have places of their own, so that however many read, an operator can
//! change something. What is read is found out by one thread at a time, and the answer is given to all who ask within a second.
//! All of this has the priority of any program.

use super::detached::Traces;
use super::protocol::{Answer, FullStatus, Numbered, Order, Refusal};
use super::reconciler::Reconciler;
use super::wire::{self, MAX_REQUEST};
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use teiji_host::priority;

/// Most orders that are carried out at a time: of those that change something, and of those that read.
const MAX_ORDERS: usize = 16;
/// For how long the answer to one reader is that to others as well.
const FRESH: Duration = Duration::from_secs(1);
/// How long the front may take to send an order, or to take an answer.
const FRONT_IO_TIMEOUT: Duration = Duration::from_secs(5);

/// What orders act on.
pub(super) struct Orders {
    reconciler: Arc<Reconciler>,
    traces: Traces,
    changing: AtomicUsize,
    reading: AtomicUsize,
    status: Recent,
    all_traces: Recent,
}

/// The last answer to an order that reads.
#[derive(Default)]
struct Recent {
    /// How often it has been forgotten.
    changes: AtomicU64,
    /// The answer, when it was begun to be found out, and after how many changes.
    last: Mutex<Option<(Instant, u64, Answer)>>,
}

impl Recent {
    /// The last answer, or what `find` finds out, if that is too old. Others wait for it meanwhile.
    fn get(&self, find: impl FnOnce() -> Result<Answer, Refusal>) -> Result<Answer, Refusal> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.changes.load(Ordering::SeqCst);
        if let Some((begun, after, answer)) = &*last
            && begun.elapsed() < FRESH
            && *after == changes
        {
            return Ok(answer.clone());
        }
        let begun = Instant::now();
        let answer = find()?;
        *last = Some((begun, changes, answer.clone()));
        Ok(answer)
    }

    /// Something has changed. Does not wait for those who find out what was so before.
    fn forget(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
}

/// The place of an order, which is given back whatever becomes of the order.
struct Place {
    orders: Arc<Orders>,
    changes: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.changes {
            self.orders.status.forget();
            self.orders.all_traces.forget();
        }
        self.orders.running(self.changes).fetch_sub(1, Ordering::SeqCst);
    }
}

/// The answer to an order; a panic is one, too, so that nobody waits for another.
fn answered(carry_out: impl FnOnce() -> Result<Answer, Refusal>) -> Result<Answer, Refusal> {
    catch_unwind(AssertUnwindSafe(carry_out)).unwrap_or_else(|_| {
        Err(Refusal::Failed(
            "the agent failed while it did this, which is a fault of teiji: see its log".into(),
        ))
    })
}

impl Orders {
    pub(super) fn new(reconciler: Arc<Reconciler>, traces: Traces) -> Arc<Orders> {
        let (status, all_traces) = Default::default();
        let (changing, reading) = Default::default();
        Arc::new(Orders { reconciler, traces, changing, reading, status, all_traces })
    }

    /// This agent keeps the state directory from now on.
    pub(super) fn claimed(&self) {
        self.reconciler.wake();
    }

    /// How many orders of a sort are carried out: of those that change something, or of those that read.
    fn running(&self, changes: bool) -> &AtomicUsize {
        if changes { &self.changing } else { &self.reading }
    }

    /// A place for an order, if one is free.
    fn place(self: &Arc<Self>, order: &Order) -> Option<Place> {
        let place = Place { orders: Arc::clone(self), changes: order.changes() };
        // Given back again if there were too many.
        (self.running(place.changes).fetch_add(1, Ordering::SeqCst) < MAX_ORDERS).then_some(place)
    }

    /// Ends the traces, and starts no other ones. `waiting` is called while they complete their recordings.
    pub(super) fn end_traces(&self, waiting: &mut dyn FnMut()) {
        self.traces.end_all(waiting);
    }

    /// Carries out the orders of a front until it is gone, in the calling thread.
    ///
    /// # Errors
    /// If it sends anything but orders.
    pub(super) fn serve(self: &Arc<Self>, front: UnixStream) -> io::Result<()> {
        let answers = Arc::new(Mutex::new(front.try_clone()?));
        let receive = || wire::receive::<Numbered<Order>>(&front, MAX_REQUEST, None, FRONT_IO_TIMEOUT);
        while let Some(order) = receive()? {
            let Numbered { number, content: order } = order;
            let Some(place) = self.place(&order) else {
                answer(&answers, number, Err(Refusal::Busy));
                continue;
            };
            let to = Arc::clone(&answers);
            let work = move || {
                if let Err(error) = priority::ordinary_thread() {
                    tracing::warn!("an order is carried out at the agent's own priority: {error}");
                }
                let result = answered(|| place.orders.carry_out(&order));
                drop(place);
                answer(&to, number, result);
            };
            if Builder::new().name("order".into()).spawn(work).is_err() {
                answer(&answers, number, Err(Refusal::Busy));
            }
        }
        Ok(())
    }

    fn carry_out(&self, order: &Order) -> Result<Answer, Refusal> {
        match order {
            Order::Status => self.status.get(|| {
                let engine = self.reconciler.engine().map_err(|e| Refusal::Failed(e.to_string()))?;
                let status = engine.status_or_damage();
                let links = engine.backend().links();
                let agent = self.reconciler.status();
                Ok(Answer::Status(Box::new(FullStatus { agent, status, links })))
            }),
            Order::Trace(order) => self.traces.start(order).map(Answer::Started).map_err(Refusal::Failed),
            Order::Traces => self
                .all_traces
                .get(|| self.traces.all().map(Answer::Traces).map_err(|e| Refusal::Failed(e.to_string()))),
            Order::StopTrace(number) => {
                self.traces.stop(*number).map(|()| Answer::Done).map_err(Refusal::Failed)
            }
            Order::RemoveTrace(number) => {
                self.traces.remove(*number).map(|()| Answer::Done).map_err(Refusal::Failed)
            }
        }
    }
}

/// If the front does not take it, its socket is closed, and the agent starts another front.
fn answer(to: &Mutex<UnixStream>, number: u64, content: Result<Answer, Refusal>) {
    let to = to.lock().unwrap_or_else(PoisonError::into_inner);
    if wire::send(&to, &Numbered { number, content }, FRONT_IO_TIMEOUT).is_err() {
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::super::claim::Claim;
    use super::*;
    use crate::apply::{Engine, Options, Progress};
    use crate::backend::HostBackend;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::AtomicBool;
    use teiji_host::Root;
    use teiji_model::plan::{Plan, Step};
    use teiji_model::resource::{Resource, Value};

    /// Everything that a front could send: frames with orders, frames with anything, and bytes without frames.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let framed = |text: Vec<u8>| [&(text.len() as u32).to_ne_bytes()[..], &text].concat();
        let text = prop_oneof![
            "\\{\"number\":[0-9]{1,20},\"content\":\"(status|reconcile|confirm|traces|reboot)\"\\}",
            "\\{\"number\":[0-9]{1,3},\"content\":\\{\"trace\":\\{\"vms\":\\[(\"--record=/x\"|\"none \")?\\],\"flow\":\"(udp|udp port 5060|x)\",\
             \"direction\":\"(in|both)\",\"matching\":\"(sip|none)\",\"seconds\":(0|1|null|700000)(,\"path\":\"/\")?\\}\\}\\}",
            "\\{\"number\":[0-9]{1,3},\"content\":\\{\"rollback\":\\{\"force\":(true|false|1)(,\"x\":1)?\\}\\}\\}",
            "\\{\"number\":[0-9]{1,3},\"content\":\\{\"(stop|remove)-trace\":-?[0-9]{1,9}\\}\\}",
            "[\\[\\]{}\":,a-z0-9]{0,40}",
        ];
        prop_oneof![
            3 => text.prop_map(move |text| framed(text.into_bytes())),
            1 => proptest::collection::vec(any::<u8>(), 0..40),
        ]
    }

    /// The files of the state directory.
    fn files(state: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries =
            state.read_dir().unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file());
        entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
    }

    /// Has a state directory with a setting that teiji holds, and another change of it that waits for its confirmation, as
    /// `apply --confirm-within` leaves it while an operator looks at the host. The setting is that of a made-up host, which
    /// no real one has.
    fn with_lease(dir: &Path) -> PathBuf {
        let (root, state) = (dir.join("root"), dir.join("state"));
        let irq = root.join(format!("proc/irq/{}", u32::MAX));
        std::fs::create_dir_all(&irq).unwrap();
        std::fs::write(irq.join("smp_affinity_list"), "0\n").unwrap();
        let backend = HostBackend::new(Root::new(root), &dir.join("pins"), &state);
        let engine = Engine::open(&state, backend).unwrap();
        let apply = |present: &str, wanted: &str, confirm_within| {
            let step = Step {
                setting: Resource::IrqCpus(u32::MAX),
                whose: String::new(),
                present: Value::Cpus(present.parse().unwrap()),
                wanted: Value::Cpus(wanted.parse().unwrap()),
                reason: String::new(),
                cost: String::new(),
            };
            let plan = Plan { steps: vec![step], ..Plan::default() };
            let options = Options { confirm_within, ..Options::default() };
            // A panic leaves what a process leaves that is killed.
            let progress = &mut |progress: Progress<'_>| {
                assert!(!matches!(progress, Progress::Waiting { .. }), "killed while it waits");
            };
            engine.apply(&plan, &options, progress, &AtomicBool::new(false)).map(drop)
        };
        apply("0", "1", None).unwrap();
        let waiting = || apply("1", "2", Some(Duration::from_secs(86_400)));
        assert!(catch_unwind(AssertUnwindSafe(waiting)).is_err());
        state
    }

    /// However many read, something can be changed; and those who read do not each have it found out.
    #[test]
    fn readers_take_no_place_of_those_who_change() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let claim = Arc::new(Claim::on(&state));
        let reconciler = Arc::new(Reconciler::new(&state, &dir.path().join("pins"), claim).unwrap());
        let orders = Orders::new(reconciler, Traces::of(&state));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serving = {
            let orders = Arc::clone(&orders);
            std::thread::spawn(move || orders.serve(ours))
        };
        let long = Duration::from_secs(60);
        let send = |number, content| wire::send(&theirs, &Numbered { number, content }, long).unwrap();
        let receive = || {
            let got = wire::receive::<Numbered<Result<Answer, Refusal>>>(&theirs, 1 << 20, Some(long), long);
            got.unwrap().unwrap()
        };
        // As if it took long to find out.
        let slow = orders.status.last.lock().unwrap();
        for number in 0..2 * MAX_ORDERS as u64 {
            send(number, Order::Status);
        }
        for _ in 0..MAX_ORDERS {
            assert_eq!(receive().content, Err(Refusal::Busy));
        }
        send(100, Order::StopTrace(1));
        let changed = receive();
        assert!(changed.number == 100 && matches!(&changed.content, Err(Refusal::Failed(_))), "{changed:?}");
        drop(slow);
        let first = receive().content.unwrap();
        // What is answered in one go is the same answer, unless that has taken longer than it is kept.
        for _ in 1..MAX_ORDERS {
            assert!(matches!((&first, receive().content), (Answer::Status(_), Ok(Answer::Status(_)))));
        }
        drop(theirs);
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn an_order_that_panics_gives_its_place_back_and_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Arc::new(Claim::on(dir.path()));
        let reconciler = Arc::new(Reconciler::new(dir.path(), dir.path(), claim).unwrap());
        let orders = Orders::new(reconciler, Traces::of(dir.path()));
        for order in [Order::Status, Order::StopTrace(1)] {
            let places: Vec<Place> = (0..MAX_ORDERS).map(|_| orders.place(&order).unwrap()).collect();
            assert!(orders.place(&order).is_none());
            for place in places {
                let work = move || {
                    let _place = place;
                    panic!("an order")
                };
                assert!(std::thread::spawn(work).join().is_err());
            }
            assert_eq!(orders.running(order.changes()).load(Ordering::SeqCst), 0);
        }
        assert!(matches!(answered(|| panic!("an order")), Err(Refusal::Failed(_))));
    }

    #[test]
    fn an_answer_is_given_again_for_a_while() {
        let (recent, found) = (Recent::default(), AtomicUsize::new(0));
        let get = || recent.get(|| Ok(Answer::Started(found.fetch_add(1, Ordering::SeqCst) as u32))).unwrap();
        let begun = Instant::now();
        let answers: Vec<Answer> = (0..100).map(|_| get()).collect();
        let most = begun.elapsed().as_secs() as usize + 1;
        assert!(found.load(Ordering::SeqCst) <= most, "{answers:?}");
        recent.forget();
        let before = found.load(Ordering::SeqCst);
        assert_eq!(get(), Answer::Started(before as u32));
        // What fails is tried again.
        recent.forget();
        assert_eq!(recent.get(|| Err(Refusal::Busy)), Err(Refusal::Busy));
        assert_eq!(get(), Answer::Started(before as u32 + 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever the front sends, the privileged part neither fails nor does anything but carry out orders: what teiji
        /// holds, and what waits for its confirmation, is as before, and there is nothing else but the files of a trace.
        #[test]
        fn the_front_can_only_give_orders(frames in proptest::collection::vec(frame(), 0..12)) {
            let dir = tempfile::tempdir().unwrap();
            let state = with_lease(dir.path());
            let before = files(&state);
            prop_assert!(["held.json", "transaction"].iter().all(|name| before.contains_key(*name)), "{:?}", before.keys());
            let reconciler = Arc::new(Reconciler::new(&state, &dir.path().join("pins"), Arc::new(Claim::on(&state))).unwrap());
            // Nobody looks here, so nobody waits for that.
            reconciler.stop();
            let orders = Orders::new(reconciler, Traces::of(&state));
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&frames.concat()).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = orders.serve(ours);
            drop(theirs);
            while [&orders.changing, &orders.reading].iter().any(|n| n.load(Ordering::SeqCst) > 0) {
                std::thread::sleep(Duration::from_millis(1));
            }
            prop_assert_eq!(&files(&state), &before);
            let names = |of: &Path| -> BTreeSet<String> {
                of.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
            };
            prop_assert_eq!(names(dir.path()), BTreeSet::from(["root".to_owned(), "state".to_owned()]));
            let others = names(&state).into_iter().find(|name| !before_or_traces(&before, name));
            prop_assert_eq!(others, None);
        }
    }

    fn before_or_traces(before: &BTreeMap<String, Vec<u8>>, name: &str) -> bool {
        name == "traces" || before.contains_key(name)
    }
}
