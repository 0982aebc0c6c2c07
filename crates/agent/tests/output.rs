//! Files that appear whole, in folders that others write to. Needs root.
#![allow(clippy::unwrap_used)]

use std::fs::{File, read_dir, read_to_string, write};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use teiji_agent::output::{Output, Rights};

const BOTH: [Rights; 2] = [Rights::Kept, Rights::GivenUp];

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn partial(dir: &Path) -> PathBuf {
    let mut all = names(dir).into_iter().filter(|name| name.ends_with(".partial"));
    let found = dir.join(all.next().unwrap());
    assert_eq!(all.next(), None);
    found
}

#[test]
fn a_file_has_its_name_only_once_it_is_whole_and_is_for_its_maker_alone() {
    for rights in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.teiji");
        write(&path, "old").unwrap();
        let output = Output::create(&path, rights).unwrap();
        output.file().write_all(b"new").unwrap();
        let unfinished = partial(dir.path()).metadata().unwrap();
        assert_eq!(unfinished.mode() & 0o7777, 0o600, "the tests run as root");
        assert_eq!(read_to_string(&path).unwrap(), "old");
        output.persist().unwrap();
        assert_eq!(
            (read_to_string(&path).unwrap().as_str(), names(dir.path()).len()),
            ("new", 1),
            "{rights:?}"
        );
        assert_eq!(
            (path.metadata().unwrap().mode() & 0o7777, path.metadata().unwrap().ino()),
            (0o600, unfinished.ino())
        );
    }
}

#[test]
fn what_is_not_kept_leaves_nothing() {
    for rights in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::create(&dir.path().join("r"), rights).unwrap();
        output.file().write_all(b"half").unwrap();
        drop(output);
        assert_eq!(names(dir.path()), [""; 0], "{rights:?}");
    }
}

/// What somebody else plants where root is going to write.
#[test]
fn symbolic_links_are_replaced_and_never_followed() {
    for rights in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        write(&victim, "precious").unwrap();
        // As it was once called, before the name was random.
        symlink(&victim, dir.path().join("r.partial")).unwrap();
        symlink(&victim, dir.path().join("r")).unwrap();
        let output = Output::create_or_open(&dir.path().join("r"), rights).unwrap();
        output.file().write_all(b"report").unwrap();
        output.persist().unwrap();
        assert_eq!(read_to_string(&victim).unwrap(), "precious");
        let made = dir.path().join("r").symlink_metadata().unwrap();
        assert!(made.is_file() && dir.path().join("r.partial").symlink_metadata().unwrap().is_symlink());
        assert_eq!(read_to_string(dir.path().join("r")).unwrap(), "report");

        // One that leads to a device, which is no reason to write there.
        symlink("/dev/full", dir.path().join("d")).unwrap();
        let output = Output::create_or_open(&dir.path().join("d"), rights).unwrap();
        output.file().write_all(b"report").unwrap();
        output.persist().unwrap();
        assert!(dir.path().join("d").symlink_metadata().unwrap().is_file());
    }
}

/// The folder is the one that was opened, whatever has its name by now.
#[test]
fn a_folder_that_is_exchanged_meanwhile_is_not_written_to() {
    for rights in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let [asked, moved, other] = ["asked", "moved", "other"].map(|name| dir.path().join(name));
        std::fs::create_dir(&asked).unwrap();
        std::fs::create_dir(&other).unwrap();
        write(other.join("r"), "precious").unwrap();
        let output = Output::create(&asked.join("r"), rights).unwrap();
        output.file().write_all(b"report").unwrap();
        std::fs::rename(&asked, &moved).unwrap();
        symlink(&other, &asked).unwrap();
        output.persist().unwrap();
        assert_eq!(read_to_string(other.join("r")).unwrap(), "precious");
        assert_eq!(read_to_string(moved.join("r")).unwrap(), "report");
    }
}

#[test]
fn devices_and_pipes_are_written_to_as_they_are_if_nobody_else_can_have_put_them_there() {
    let error = Output::create(Path::new("/dev/null"), Rights::Kept).unwrap_err().to_string();
    assert!(error.contains("no regular file"), "{error}");
    for path in ["/dev/full", "/dev/stdout", "/proc/self/fd/1"] {
        let output = Output::create_or_open(Path::new(path), Rights::Kept).unwrap();
        output.persist().unwrap();
        assert!(!Path::new(path).symlink_metadata().unwrap().is_file(), "{path}");
    }
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::io::read_to_string(File::open(pipe).unwrap()).unwrap()
    });
    let output = Output::create_or_open(&pipe, Rights::Kept).unwrap();
    output.file().write_all(b"report").unwrap();
    drop(output);
    assert_eq!(reader.join().unwrap(), "report");
    // In a folder like /tmp, and of somebody else.
    std::os::unix::fs::chown(&pipe, Some(65534), None).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let error = Output::create_or_open(&pipe, Rights::Kept).unwrap_err().to_string();
    assert!(error.contains("belongs to somebody else"), "{error}");
}

#[test]
fn what_names_no_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for path in
        [dir.path().to_owned(), dir.path().join("a/"), dir.path().join(".."), dir.path().join("no/such")]
    {
        assert!(Output::create(&path, Rights::Kept).is_err(), "{}", path.display());
    }
    let long = dir.path().join("n".repeat(255));
    Output::create(&long, Rights::GivenUp).unwrap().persist().unwrap();
    assert!(long.is_file());
}
