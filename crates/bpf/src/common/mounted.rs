//! For tests: a BPF file system in a temporary folder. Needs root.
use super::pins::Pins;

pub(crate) struct Mounted(tempfile::TempDir);

impl Mounted {
    pub(crate) fn new() -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("bpf"), dir.path(), Some("bpf"), flags, None::<&str>).unwrap();
        Mounted(dir)
    }

    pub(crate) fn pins(&self) -> Pins {
        Pins::new(&self.0.path().join("teiji"), "edf")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}
