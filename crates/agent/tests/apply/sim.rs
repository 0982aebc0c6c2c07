//! A made-up host with a made-up disk and clock. The process on it can be killed before, within and after every
//! operation that changes something; the disk can be full or broken from any operation on.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use teiji_agent::apply::clock::Clock;
use teiji_agent::apply::store::{CONFIRMED, HELD_NEXT, Store, TRANSACTION};
use teiji_agent::apply::{Applied, Engine, Error, Options, Progress, SettingsBackend};
use teiji_model::cpus::CpuSet;
use teiji_model::plan::{Held, Hold, Plan, Step};
use teiji_model::qdisc::Device;
use teiji_model::resource::dependency::{self, Change};
use teiji_model::resource::{Class, Resource, ResourceError, ResourceKind, Value};

pub type Settings = BTreeMap<Resource, Value>;

/// How the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Fine,
    /// No room from this operation on; names can be changed and removed.
    Full(u64),
    /// This operation fails and has no effect.
    Fails(u64),
    /// This operation says that it failed, but what it did is on the disk.
    Lies(u64),
}

/// What is killed.
struct Killed;

pub struct SimState {
    pub settings: RefCell<Settings>,
    /// Control groups that were made for a move.
    pub made: RefCell<BTreeSet<String>>,
    pub files: RefCell<BTreeMap<String, Vec<u8>>>,
    pub now: Cell<Duration>,
    pub boot: RefCell<String>,
    locked: Cell<bool>,
    /// Changes so far that a kill can fall between, and at which it falls.
    points: Cell<u64>,
    kill_at: Cell<u64>,
    operations: Cell<u64>,
    pub disk: Cell<Disk>,
    /// Writing such a value fails.
    pub refused: RefCell<Vec<Value>>,
    /// The next change of this resource fails.
    pub fails: RefCell<Option<Resource>>,
    /// Every write of this value to this resource fails.
    pub stuck: RefCell<Option<(Resource, Value)>>,
    /// Writing such a value finds that the place it names is gone.
    pub absent: RefCell<Vec<Value>>,
    /// What the kernel makes of such a value.
    pub normalised: RefCell<Vec<(Value, Value)>>,
    /// CPUs that are online: `SCHED_DEADLINE` threads have to be allowed on all of them.
    pub online: RefCell<CpuSet>,
    /// The largest segments that a device's queue counts on.
    pub counts_on: RefCell<Vec<((Device, Value), u32)>>,
    /// Changes since the process began what it does: each has to come where the dependencies have it.
    changes: RefCell<Vec<(Resource, Value, Value)>>,
    /// Changes that were stuck since then: none that requires one of these may be made.
    missing: RefCell<Vec<(Resource, Value, Value)>>,
    /// The values that the last move has reset and that nobody has written since. Writing them again is no change.
    before_reset: RefCell<Settings>,
    /// Whether a move into another control group lets threads run on all CPUs, as before Linux 6.2.
    pub resets_cpus: Cell<bool>,
    /// Kinds that are not changed by one write.
    pub classes: RefCell<BTreeMap<ResourceKind, Class>>,
}

#[derive(Clone)]
pub struct Sim(pub Rc<SimState>);

struct Lock(Rc<SimState>);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.locked.set(false);
    }
}

impl Sim {
    pub fn new(settings: Settings) -> Self {
        Sim(Rc::new(SimState {
            settings: RefCell::new(settings),
            made: RefCell::default(),
            files: RefCell::default(),
            now: Cell::new(Duration::from_secs(1000)),
            boot: RefCell::new("this boot".into()),
            locked: Cell::new(false),
            points: Cell::new(0),
            kill_at: Cell::new(0),
            operations: Cell::new(0),
            disk: Cell::new(Disk::Fine),
            refused: RefCell::default(),
            fails: RefCell::default(),
            stuck: RefCell::default(),
            absent: RefCell::default(),
            missing: RefCell::default(),
            before_reset: RefCell::default(),
            normalised: RefCell::default(),
            online: RefCell::default(),
            counts_on: RefCell::default(),
            changes: RefCell::default(),
            resets_cpus: Cell::new(false),
            classes: RefCell::default(),
        }))
    }

    /// The same host and disk, its process gone.
    pub fn copy(&self) -> Self {
        let copy = Sim::new(self.settings());
        *copy.0.files.borrow_mut() = self.0.files.borrow().clone();
        *copy.0.made.borrow_mut() = self.0.made.borrow().clone();
        *copy.0.normalised.borrow_mut() = self.0.normalised.borrow().clone();
        *copy.0.online.borrow_mut() = self.0.online.borrow().clone();
        *copy.0.counts_on.borrow_mut() = self.0.counts_on.borrow().clone();
        *copy.0.classes.borrow_mut() = self.0.classes.borrow().clone();
        copy.0.resets_cpus.set(self.0.resets_cpus.get());
        copy.0.now.set(self.0.now.get());
        copy
    }

    pub fn settings(&self) -> Settings {
        self.0.settings.borrow().clone()
    }

    pub fn set(&self, setting: Resource, value: Value) {
        self.0.settings.borrow_mut().insert(setting, value);
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.files.borrow().contains_key(name)
    }

    /// Groups that were made and that nothing is in.
    pub fn empty_groups(&self) -> BTreeSet<String> {
        let settings = self.settings();
        let used = |group: &String| settings.values().any(|v| *v == Value::Group(group.clone()));
        self.0.made.borrow().iter().filter(|g| !used(g)).cloned().collect()
    }

    /// Whether nothing of a transaction is left.
    pub fn is_clean(&self) -> bool {
        ![TRANSACTION, HELD_NEXT, CONFIRMED].iter().any(|name| self.has(name))
    }

    pub fn engine(&self) -> Engine<Sim, Sim, Sim> {
        let boot = self.0.boot.borrow().clone();
        Engine::with(self.clone(), self.clone(), self.clone(), &boot)
    }

    pub fn apply(&self, plan: &Plan) -> Result<Applied, Error> {
        let progress = &mut |progress: Progress<'_>| {
            if progress == Progress::Undoing {
                self.another();
            }
        };
        self.engine().apply(plan, &Options::default(), progress, &AtomicBool::new(false))
    }

    pub fn apply_within(
        &self,
        plan: &Plan,
        seconds: u64,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Applied, Error> {
        let options = Options { confirm_within: Some(Duration::from_secs(seconds)), ..Options::default() };
        self.engine().apply(plan, &options, progress, &AtomicBool::new(false))
    }

    /// Time passes.
    pub fn wait(&self, seconds: u64) {
        self.0.now.set(self.0.now.get() + Duration::from_secs(seconds));
    }

    pub fn held(&self) -> Held {
        self.engine().held().unwrap()
    }

    /// Kills the process at the `n`th change from now, from 1; `None` if it ended before that.
    pub fn killed_at<T>(&self, n: u64, run: impl FnOnce(&Sim) -> T) -> Option<T> {
        self.0.points.set(0);
        self.0.kill_at.set(n);
        let result = catch_unwind(AssertUnwindSafe(|| run(self)));
        self.0.kill_at.set(0);
        match result {
            Ok(_) if self.0.points.get() >= n => panic!("survived its death"),
            Ok(value) => Some(value),
            Err(panic) if panic.is::<Killed>() => None,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// From now on such a queue of this device counts on segments of at most so many bytes.
    pub fn count_on(&self, device: &Device, queue: &Value, most: u32) {
        let mut all = self.0.counts_on.borrow_mut();
        match all.iter_mut().find(|((d, q), _)| d == device && q == queue) {
            Some((_, known)) => *known = most.max(*known),
            None => all.push(((device.clone(), queue.clone()), most)),
        }
    }

    /// What the kernel says of a thread of `SCHED_DEADLINE` that may not run on every CPU, or shall not.
    fn refusal(&self, setting: &Resource, value: &Value) -> Option<ResourceError> {
        let settings = self.0.settings.borrow();
        let online = self.0.online.borrow();
        let not_all = |cpus: &Value| matches!(cpus, Value::Cpus(c) if !online.without(c).is_empty());
        let sched_deadline = |v: &Value| matches!(v, Value::Scheduling(s) if s.is_sched_deadline());
        let refused = |why: &str| Some(ResourceError::Refused(why.into()));
        match setting {
            Resource::ThreadCpus(task) => {
                let is = settings.get(&Resource::ThreadScheduling(*task)).is_some_and(sched_deadline);
                if is && not_all(value) { refused("EBUSY: it has a deadline") } else { None }
            }
            Resource::ThreadScheduling(task) => {
                let kept = settings.get(&Resource::ThreadCpus(*task)).is_some_and(not_all);
                if sched_deadline(value) && kept {
                    refused("EPERM: it may not run on every CPU")
                } else {
                    None
                }
            }
            _ => None,
        }
    }

    /// A process begins something, or ends it: what comes next need not come before what was done.
    fn another(&self) {
        self.0.changes.borrow_mut().clear();
        self.0.missing.borrow_mut().clear();
    }

    /// Every change comes after those that it depends on. An undo, which changes what was changed before, begins anew.
    fn obeys(&self, resource: &Resource, from: Value, to: &Value) {
        let mut changes = self.0.changes.borrow_mut();
        if changes.iter().any(|(r, ..)| r == resource) {
            changes.clear();
        }
        let now = Change { resource, from: &from, to };
        for (resource, from, to) in &*self.0.missing.borrow() {
            let missing = Change { resource, from, to };
            assert!(
                !dependency::requires(&now, &missing),
                "{} was changed, and {resource} was not",
                now.resource
            );
        }
        for (resource, from, to) in &*changes {
            let earlier = Change { resource, from, to };
            if let Some(why) = dependency::violation(&earlier, &now) {
                panic!("{resource} was changed before {}: {why}", now.resource);
            }
        }
        changes.push((resource.clone(), from, to.clone()));
    }

    /// What the kernel does to threads whose process is moved. All of the host, for simplicity.
    fn moved(&self, resource: &Resource) {
        if self.0.resets_cpus.get() && matches!(resource, Resource::Group(_)) {
            let online = Value::Cpus(self.0.online.borrow().clone());
            for (resource, value) in self.0.settings.borrow_mut().iter_mut() {
                if matches!(resource, Resource::ThreadCpus(_)) && *value != online {
                    let before = std::mem::replace(value, online.clone());
                    self.0.before_reset.borrow_mut().insert(resource.clone(), before);
                }
            }
        }
    }

    /// No queue ever has to send larger segments than it counts on.
    fn guarantees_hold(&self) {
        let settings = self.0.settings.borrow();
        for ((device, queue), most) in &*self.0.counts_on.borrow() {
            if settings.get(&Resource::RootQdisc(device.clone())) == Some(queue)
                && let Some(Value::Bytes(size)) = settings.get(&Resource::SegmentSize(device.clone()))
            {
                assert!(size <= most, "{device} has segments of {size} bytes, its queue counts on {most}");
            }
        }
    }

    fn point(&self) {
        let n = self.0.points.get() + 1;
        self.0.points.set(n);
        if n == self.0.kill_at.get() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// One file operation: `whole` does it. Killed before, or after.
    fn operation(
        &self,
        needs_room: bool,
        whole: impl FnOnce(&mut BTreeMap<String, Vec<u8>>),
    ) -> io::Result<()> {
        self.point();
        let n = self.0.operations.get() + 1;
        self.0.operations.set(n);
        let (fails, done) = match self.0.disk.get() {
            Disk::Full(from) => (n >= from && needs_room, false),
            Disk::Fails(at) => (n == at, false),
            Disk::Lies(at) => (n == at, true),
            Disk::Fine => (false, false),
        };
        if !fails || done {
            whole(&mut self.0.files.borrow_mut());
        }
        self.point();
        if fails { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }

    pub fn operations(&self) -> u64 {
        self.0.operations.get()
    }
}

impl SettingsBackend for Sim {
    fn read(&self, setting: &Resource) -> Result<Value, ResourceError> {
        self.0.settings.borrow().get(setting).cloned().ok_or_else(|| ResourceError::Gone(setting.to_string()))
    }

    fn write(&self, setting: &Resource, value: &Value) -> Result<(), ResourceError> {
        SettingsBackend::read(self, setting)?;
        if self.0.refused.borrow().contains(value) {
            return Err(ResourceError::Refused("EINVAL: no".into()));
        }
        if self.0.fails.borrow_mut().take_if(|fails| fails == setting).is_some() {
            return Err(ResourceError::Refused("EBUSY: not now".into()));
        }
        if self.0.absent.borrow().contains(value) {
            return Err(ResourceError::Gone(value.to_string()));
        }
        if self.0.stuck.borrow().as_ref().is_some_and(|(s, v)| s == setting && v == value) {
            let change = (setting.clone(), SettingsBackend::read(self, setting)?, value.clone());
            self.0.missing.borrow_mut().push(change);
            return Err(ResourceError::Refused("EBUSY: stuck".into()));
        }
        if let Some(refusal) = self.refusal(setting, value) {
            return Err(refusal);
        }
        if let Value::Group(group) = value
            && group.starts_with("/teiji/")
        {
            self.point();
            self.0.made.borrow_mut().insert(group.clone());
        }
        self.point();
        if self.0.before_reset.borrow_mut().remove(setting).as_ref() != Some(value) {
            self.obeys(setting, SettingsBackend::read(self, setting)?, value);
        }
        let normalised = self.0.normalised.borrow();
        let made = normalised.iter().find(|(from, _)| from == value).map_or(value, |(_, to)| to);
        self.set(setting.clone(), made.clone());
        self.moved(setting);
        self.guarantees_hold();
        self.point();
        Ok(())
    }

    fn class(&self, resource: &Resource) -> Class {
        let classes = self.0.classes.borrow();
        classes.get(&resource.kind()).copied().unwrap_or_else(|| resource.kind().class())
    }

    /// All threads of the host, for simplicity; on every kernel, as nobody asks which it is.
    fn disturbed_by(&self, resource: &Resource) -> Vec<Resource> {
        let settings = self.0.settings.borrow();
        let threads = settings.keys().filter(|r| matches!(r, Resource::ThreadCpus(_)));
        if matches!(resource, Resource::Group(_)) { threads.cloned().collect() } else { Vec::new() }
    }

    fn remove_leftovers(&self) {
        self.another();
        while let Some(group) = self.empty_groups().pop_first() {
            self.point();
            self.0.made.borrow_mut().remove(&group);
        }
    }
}

impl Store for Sim {
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.files.borrow().get(name).cloned())
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.operation(true, |files| drop(files.insert(name.to_owned(), content.to_vec())))
    }

    fn append(&self, name: &str, at: u64, line: &[u8]) -> io::Result<()> {
        let half = |files: &mut BTreeMap<String, Vec<u8>>, part: &[u8]| {
            let file = files.get_mut(name).expect("only what is there is appended to");
            assert!(at as usize <= file.len());
            file.truncate(at as usize);
            file.extend(part);
        };
        if self.0.disk.get() == Disk::Fine {
            half(&mut self.0.files.borrow_mut(), &line[..line.len() / 2]);
        }
        self.operation(true, |files| half(files, line))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        assert!(self.has(from));
        self.operation(false, |files| {
            let content = files.remove(from).unwrap();
            files.insert(to.to_owned(), content);
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if !self.has(name) {
            return Ok(());
        }
        self.operation(false, |files| drop(files.remove(name)))
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any>>> {
        self.another();
        let taken = self.0.locked.replace(true);
        Ok((!taken).then(|| Box::new(Lock(Rc::clone(&self.0))) as Box<dyn Any>))
    }

    fn holder(&self) -> io::Result<Option<Option<u32>>> {
        Ok(self.0.locked.get().then_some(Some(4711)))
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/state").join(name)
    }
}

impl Clock for Sim {
    fn unix(&self) -> u64 {
        1_800_000_000 + self.0.now.get().as_secs()
    }

    fn since_boot(&self) -> Duration {
        // Ticks, so that no two instants are the same.
        self.0.now.set(self.0.now.get() + Duration::from_micros(1));
        self.0.now.get()
    }

    fn sleep(&self, time: Duration) {
        self.point();
        self.0.now.set(self.0.now.get() + time);
    }
}

pub fn step(setting: Resource, present: Value, wanted: Value) -> Step {
    Step { setting, whose: "sip1".into(), present, wanted, reason: "vm.sip1".into(), cost: String::new() }
}

/// The plan that makes `settings` so.
pub fn plan(before: &Settings, wanted: &[(Resource, Value)]) -> Plan {
    let steps = wanted.iter().map(|(s, v)| step(s.clone(), before[s].clone(), v.clone())).collect();
    Plan { steps, ..Plan::default() }
}

/// `settings` with these put in.
pub fn with(settings: &Settings, changes: &[(Resource, Value)]) -> Settings {
    let mut settings = settings.clone();
    settings.extend(changes.iter().cloned());
    settings
}

/// Held settings without what depends on time.
pub fn timeless(held: &Held) -> BTreeMap<Resource, (Value, Value)> {
    let pair = |h: &Hold| (h.original.clone(), h.value.clone());
    held.settings.iter().map(|(s, h)| (s.clone(), pair(h))).collect()
}
