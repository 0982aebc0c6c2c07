//! CPUs and scheduling of threads, by real system calls on threads of this test. Needs root, as `make test` does.
#![allow(clippy::unwrap_used)]

use nix::unistd::gettid;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use teiji_host::{Root, Settings, task};
use teiji_model::cpus::CpuSet;
use teiji_model::resource::{Resource, ResourceError, Scheduling, Task, Value};

/// Deadline threads share the CPUs' real-time bandwidth: only one test at a time requests it.
static BANDWIDTH: Mutex<()> = Mutex::new(());

/// A thread that sleeps until it is dropped; changes made to it end with it.
struct Sleeper {
    task: Task,
    wake: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        let (wake, sleep) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(gettid().as_raw() as u32).unwrap();
            let _ = sleep.recv();
        });
        let task = task(&Root::default(), receiver.recv().unwrap()).unwrap();
        Sleeper { task, wake: Some(wake), thread: Some(thread) }
    }

    fn cpus(&self) -> Resource {
        Resource::ThreadCpus(self.task)
    }

    fn scheduling(&self) -> Resource {
        Resource::ThreadScheduling(self.task)
    }

    fn end(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn settings() -> Settings {
    Settings::new(Root::default())
}

/// The CPUs that this test may use.
fn allowed() -> CpuSet {
    let sleeper = Sleeper::new();
    let Value::Cpus(cpus) = settings().read(&sleeper.cpus()).unwrap() else { panic!() };
    cpus
}

#[test]
fn cpus_are_those_of_procfs_and_are_set() {
    let (sleeper, settings) = (Sleeper::new(), settings());
    let before = settings.read(&sleeper.cpus()).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", sleeper.task.id)).unwrap();
    let listed: CpuSet =
        status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().parse().unwrap();
    let online: CpuSet = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().parse().unwrap();
    let listed: CpuSet = listed.iter().filter(|cpu| online.contains(*cpu)).collect();
    assert_eq!(before, Value::Cpus(listed.clone()));

    let one = Value::Cpus(listed.iter().take(1).collect());
    settings.write(&sleeper.cpus(), &one).unwrap();
    assert_eq!(settings.read(&sleeper.cpus()).unwrap(), one);
    settings.write(&sleeper.cpus(), &before).unwrap();
    assert_eq!(settings.read(&sleeper.cpus()).unwrap(), before);
}

#[test]
fn cpus_that_are_not_there_are_refused_or_taken_away() {
    let (sleeper, settings) = (Sleeper::new(), settings());
    for none in [CpuSet::default(), CpuSet::from_iter([8191]), CpuSet::from_iter([9999])] {
        let error = settings.write(&sleeper.cpus(), &Value::Cpus(none)).unwrap_err();
        assert!(matches!(&error, ResourceError::Refused(why) if why.contains("EINVAL")), "{error}");
    }
    let all = allowed();
    let more = all.union(&CpuSet::from_iter([8190, 8191]));
    settings.write(&sleeper.cpus(), &Value::Cpus(more)).unwrap();
    assert_eq!(settings.read(&sleeper.cpus()).unwrap(), Value::Cpus(all));
}

#[test]
fn classes_are_set_and_taken_back() {
    let _alone = BANDWIDTH.lock().unwrap_or_else(PoisonError::into_inner);
    let (sleeper, settings) = (Sleeper::new(), settings());
    let before = settings.read(&sleeper.scheduling()).unwrap();
    for wanted in [
        Scheduling::Fifo { priority: 3 },
        Scheduling::Other { nice: 5 },
        Scheduling::RoundRobin { priority: 99 },
        Scheduling::Batch { nice: -4 },
        Scheduling::Idle,
        Scheduling::Deadline { runtime: 1_000_000, deadline: 50_000_000, period: 100_000_000 },
    ] {
        let wanted = Value::Scheduling(wanted);
        settings.write(&sleeper.scheduling(), &wanted).unwrap();
        assert_eq!(settings.read(&sleeper.scheduling()).unwrap(), wanted);
    }
    settings.write(&sleeper.scheduling(), &before).unwrap();
    assert_eq!(settings.read(&sleeper.scheduling()).unwrap(), before);
}

#[test]
fn a_deadline_thread_is_refused_with_the_reason() {
    let _alone = BANDWIDTH.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = settings();
    let deadline =
        |runtime, period| Value::Scheduling(Scheduling::Deadline { runtime, deadline: period, period });
    let refusal = |sleeper: &Sleeper, value: &Value| {
        let error = settings.write(&sleeper.scheduling(), value).unwrap_err();
        let ResourceError::Refused(why) = error else { panic!("{error:?}") };
        why
    };

    let sleeper = Sleeper::new();
    let why = refusal(&sleeper, &deadline(2_000_000, 1_000_000));
    assert!(why.contains("runtime <= deadline") && why.contains("EINVAL"), "{why}");

    // Each thread requests a whole CPU; the last request exceeds what is left.
    let mut admitted = Vec::new();
    let why = loop {
        let sleeper = Sleeper::new();
        match settings.write(&sleeper.scheduling(), &deadline(100_000_000, 100_000_000)) {
            Ok(()) => admitted.push(sleeper),
            Err(error) => break error.to_string(),
        }
        assert!(admitted.len() <= allowed().len(), "the kernel admits more than it has");
    };
    assert!(why.contains("admission control") && why.contains("EBUSY"), "{why}");

    if let Some(sleeper) = admitted.first() {
        let one = Value::Cpus(allowed().iter().take(1).collect());
        let error = settings.write(&sleeper.cpus(), &one).unwrap_err().to_string();
        assert!(error.contains("deadline thread") && error.contains("EBUSY"), "{error}");
    }
    drop(admitted);

    if allowed().len() > 1 {
        let one = Value::Cpus(allowed().iter().take(1).collect());
        settings.write(&sleeper.cpus(), &one).unwrap();
        let why = refusal(&sleeper, &deadline(1_000_000, 100_000_000));
        assert!(why.contains("pinned") && why.contains("EPERM"), "{why}");
    }
}

#[test]
fn a_thread_that_ended_or_is_another_is_gone() {
    let settings = settings();
    let mut sleeper = Sleeper::new();
    let stranger = Task { started: sleeper.task.started + 1, ..sleeper.task };
    let fifo = Value::Scheduling(Scheduling::Fifo { priority: 1 });
    let check = |task: Task| {
        let cpus = Value::Cpus(CpuSet::from_iter([0]));
        for (setting, value) in
            [(Resource::ThreadScheduling(task), &fifo), (Resource::ThreadCpus(task), &cpus)]
        {
            assert!(matches!(settings.read(&setting), Err(ResourceError::Gone(_))));
            assert!(matches!(settings.write(&setting, value), Err(ResourceError::Gone(_))));
        }
        assert!(matches!(settings.read(&Resource::Group(task)), Err(ResourceError::Gone(_))));
    };
    check(stranger);
    let mine = settings.read(&sleeper.scheduling()).unwrap();
    assert_ne!(mine, fifo, "a change meant for another met this thread");
    sleeper.end();
    check(sleeper.task);
    check(Task { id: 0, started: 0 }); // 0 would be the calling thread
    check(Task { id: u32::MAX, started: 0 });
}

#[test]
fn a_process_that_ended_but_was_not_waited_for_is_gone() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    assert_eq!(task(&Root::default(), child.id()), None);
    child.wait().unwrap();
}

#[test]
fn a_missing_capability_is_named() {
    let sleeper = Sleeper::new();
    let setting = sleeper.scheduling();
    // Each thread has its own capabilities.
    let error = std::thread::spawn(move || {
        let mut own = capabilities(None).unwrap();
        own.effective.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, own).unwrap();
        settings().write(&setting, &Value::Scheduling(Scheduling::Fifo { priority: 1 })).unwrap_err()
    });
    let error = error.join().unwrap();
    assert!(matches!(&error, ResourceError::NotPermitted(why) if why.contains("CAP_SYS_NICE")), "{error:?}");
    assert!(error.to_string().contains("EPERM"), "{error}");
}

#[test]
fn a_value_of_another_kind_is_refused() {
    let sleeper = Sleeper::new();
    let error = settings().write(&sleeper.cpus(), &Value::Weight(3)).unwrap_err();
    assert!(matches!(error, ResourceError::Refused(_)), "{error:?}");
}

#[test]
fn threads_of_a_copied_tree_are_not_this_machines() {
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::new();
    let id = sleeper.task.id;
    let (proc, task) = (format!("proc/{id}"), format!("proc/{id}/task/{id}"));
    std::fs::create_dir_all(dir.path().join(&task)).unwrap();
    for file in [format!("{proc}/stat"), format!("{proc}/status"), format!("{task}/stat")] {
        std::fs::copy(format!("/{file}"), dir.path().join(&file)).unwrap();
    }
    let copy = Settings::new(Root::new(dir.path()));
    for setting in [sleeper.cpus(), sleeper.scheduling()] {
        let value = settings().read(&setting).unwrap();
        assert_eq!(copy.read(&setting).unwrap(), value);
        assert!(matches!(copy.write(&setting, &value), Err(ResourceError::Unsupported(_))));
    }
}

/// Of a process only the threads that a plan may name, whatever others come and go.
#[test]
fn the_threads_of_a_vm_are_told_from_others() {
    let own = std::process::id();
    let named = |name: &str| {
        let (sender, receiver) = mpsc::channel();
        let (wake, sleep) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            sender.send(gettid().as_raw() as u32).unwrap();
            let _ = sleep.recv();
        });
        (receiver.recv().unwrap(), wake, thread.unwrap())
    };
    let (vcpu, worker, other) = (named("CPU 3/KVM"), named("vhost-4711"), named("worker"));
    let both = [vcpu.0, worker.0].into();
    assert_eq!(teiji_host::vm_threads(own), both);
    let (_, wake, thread) = other;
    drop(wake);
    thread.join().unwrap();
    assert_eq!(teiji_host::vm_threads(own), both);
    for (_, wake, thread) in [vcpu, worker] {
        drop(wake);
        thread.join().unwrap();
    }
    assert!(teiji_host::vm_threads(own).is_empty());
}
