//! The engine on a real directory, with real locks and processes that are really killed.

use crate::common::{cpus, task};
use crate::sim::plan;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use teiji_agent::apply::store::{Directory, LOCK, Store, TRANSACTION};
use teiji_agent::apply::{Engine, Error, Options, Rollback, SettingsBackend};
use teiji_model::resource::{Resource, ResourceError, Value};

/// Settings that are files, each changed by one rename: seen by all processes.
#[derive(Clone)]
struct Files(PathBuf);

impl Files {
    fn path(&self, setting: &Resource) -> PathBuf {
        self.0.join(setting.to_string())
    }
}

impl SettingsBackend for Files {
    fn read(&self, setting: &Resource) -> Result<Value, ResourceError> {
        let text = std::fs::read(self.path(setting)).map_err(|_| ResourceError::Gone(setting.to_string()))?;
        Ok(serde_json::from_slice(&text).unwrap())
    }

    fn write(&self, setting: &Resource, value: &Value) -> Result<(), ResourceError> {
        let new = self.0.join("new");
        std::fs::write(&new, serde_json::to_vec(value).unwrap()).unwrap();
        std::fs::rename(new, self.path(setting)).unwrap();
        Ok(())
    }

    fn remove_leftovers(&self) {}
}

fn before() -> BTreeMap<Resource, Value> {
    let mut settings: BTreeMap<Resource, Value> =
        (1..6).map(|n| (Resource::ThreadCpus(task(n)), Value::Cpus(cpus("0-3")))).collect();
    settings.insert(Resource::HaltPoll, Value::Nanoseconds(1));
    settings
}

fn after() -> BTreeMap<Resource, Value> {
    let mut settings: BTreeMap<Resource, Value> =
        (1..6).map(|n| (Resource::ThreadCpus(task(n)), Value::Cpus(cpus("2")))).collect();
    settings.insert(Resource::HaltPoll, Value::Nanoseconds(2));
    settings
}

/// A host in `dir`, its state beside it.
fn engine(dir: &Path) -> (Files, Engine<Files>) {
    let host = Files(dir.join("host"));
    if !host.0.exists() {
        std::fs::create_dir(&host.0).unwrap();
        for (setting, value) in before() {
            host.write(&setting, &value).unwrap();
        }
    }
    (host.clone(), Engine::open(&dir.join("state"), host).unwrap())
}

fn settings(host: &Files) -> BTreeMap<Resource, Value> {
    before().into_keys().map(|s| (s.clone(), host.read(&s).unwrap())).collect()
}

fn all() -> teiji_model::plan::Plan {
    plan(&before(), &after().into_iter().collect::<Vec<_>>())
}

fn apply(engine: &Engine<Files>, confirm_within: Option<Duration>) -> Result<(), Error> {
    let options = Options { confirm_within, ..Options::default() };
    engine.apply(&all(), &options, &mut |_| {}, &AtomicBool::new(false)).map(drop)
}

/// Not a test by itself: what the processes do that others kill. Apply and rollback for ever.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("TEIJI_TEST_STATE") else { return };
    let (_, engine) = engine(Path::new(&dir));
    if std::env::var_os("TEIJI_TEST_WAIT").is_some() {
        apply(&engine, Some(Duration::from_secs(20))).unwrap();
        return;
    }
    loop {
        apply(&engine, None).unwrap();
        engine.rollback(&Rollback::default()).unwrap();
    }
}

fn spawn(dir: &Path, wait: bool) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "real::child"]).env("TEIJI_TEST_STATE", dir);
    if wait {
        command.env("TEIJI_TEST_WAIT", "1");
    }
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn killed_processes_leave_one_state_or_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (host, engine) = engine(dir.path());
    let lock = dir.path().join("state").join(LOCK);
    let (mut interrupted, mut recovered) = (0, 0);
    for round in 0..40u64 {
        let mut child = spawn(dir.path(), false);
        // At work, however slow this machine is; from then on it is nearly always within a transaction.
        let until = Instant::now() + Duration::from_secs(15);
        while std::fs::read_to_string(&lock).unwrap_or_default().trim() != child.id().to_string() {
            assert!(Instant::now() < until, "the other process does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 1_700 % 30_000));
        // Still there: it ends only by being killed.
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        interrupted += u32::from(dir.path().join("state").join(TRANSACTION).exists());
        recovered += u32::from(!engine.recover(Duration::ZERO).unwrap().is_empty());
        let (settings, held) = (settings(&host), engine.held().unwrap().settings.len());
        assert!(
            (settings == before() && held == 0) || (settings == after() && held == 6),
            "round {round}: {held} held, {settings:?}"
        );
        engine.rollback(&Rollback::default()).unwrap();
        assert_eq!(self::settings(&host), before());
    }
    assert!(interrupted > 5 && recovered == interrupted, "{interrupted} interrupted, {recovered} recovered");
}

#[test]
fn one_process_confirms_another() {
    let dir = tempfile::tempdir().unwrap();
    let (host, engine) = engine(dir.path());
    for kill in [false, true] {
        let mut child = spawn(dir.path(), true);
        let until = Instant::now() + Duration::from_secs(15);
        while !engine.status().unwrap().transaction.is_some_and(|t| t.applied) {
            assert!(Instant::now() < until, "the other process does not apply");
            std::thread::sleep(Duration::from_millis(5));
        }
        // It still holds the lock while the disk takes the file that says so.
        while engine.status().unwrap().busy {
            assert!(Instant::now() < until, "the other process does not release the lock");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = engine.status().unwrap();
        assert!(status.transaction.unwrap().can_be_confirmed());
        assert!(matches!(apply(&engine, None), Err(Error::Awaiting { pid, .. }) if pid == child.id()));
        // It is left alone until its time is over.
        assert_eq!(engine.recover(Duration::from_secs(10)).unwrap(), []);
        if kill {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(engine.confirm().unwrap(), []);
        assert_eq!(child.wait().unwrap().success(), !kill);
        assert_eq!((settings(&host), engine.held().unwrap().settings.len()), (after(), 6));
        assert_eq!(engine.rollback(&Rollback::default()).unwrap().restored, 6);
        assert_eq!(settings(&host), before());
    }
}

#[test]
fn the_directory_is_private_and_has_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let (_, engine) = engine(dir.path());
    apply(&engine, None).unwrap();
    let state = dir.path().join("state");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let files: Vec<PathBuf> = state.read_dir().unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{file:?}");
    }
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o777)).unwrap();
    let Err(Error::State { source, .. }) = engine.recover(Duration::ZERO) else {
        panic!("trusts a directory of others")
    };
    assert!(source.to_string().contains("others may write to"), "{source}");
    // Nor does it follow a link that someone has put there before.
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::remove_file(state.join(LOCK)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", state.join(LOCK)).unwrap();
    assert!(matches!(engine.recover(Duration::ZERO), Err(Error::State { .. })));
}

#[test]
fn lines_are_put_where_they_belong() {
    let dir = tempfile::tempdir().unwrap();
    let store = Directory::new(dir.path());
    store.write("x", b"one\n").unwrap();
    store.append("x", 4, b"torn").unwrap();
    store.append("x", 4, b"2\n").unwrap();
    assert_eq!(store.read("x").unwrap().unwrap(), b"one\n2\n");
    assert_eq!(store.read("y").unwrap(), None);
    store.remove("x").unwrap();
    store.remove("x").unwrap();
    assert_eq!(store.read("x").unwrap(), None);
}
