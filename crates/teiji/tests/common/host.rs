//! A generated host for `--root`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A directory that stands for a host with CPUs 0 to 3 and VMs with these names, process ids from 700 on, and one vCPU
/// each. Anybody may read it.
pub fn made_up(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("proc/self/status", "CapEff:\t000001ffffffffff\n");
    put("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
    put("proc/sys/kernel/sched_rt_period_us", "1000000\n");
    put("sys/devices/system/cpu/online", "0-3\n");
    put("sys/module/kvm/parameters/halt_poll_ns", "200000\n");
    for cpu in 0..4 {
        put(&format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"), "0\n");
    }
    for (name, pid) in names.iter().zip(700..) {
        let (proc, tid) = (format!("proc/{pid}"), pid + 1000);
        put(&format!("{proc}/cmdline"), &format!("qemu-system-x86_64\0-name\0{name}\0-m\0256\0"));
        for (at, comm) in [
            (proc.clone(), "qemu-system-x86"),
            (format!("{proc}/task/{pid}"), "qemu-system-x86"),
            (format!("{proc}/task/{tid}"), "CPU 0/KVM"),
            (format!("proc/{tid}"), "CPU 0/KVM"),
            (format!("proc/{tid}/task/{tid}"), "CPU 0/KVM"),
        ] {
            // From field 3 on: 18 priority, 22 start time.
            let mut fields = vec!["0"; 50];
            (fields[0], fields[15], fields[19]) = ("S", "20", "4242");
            put(&format!("{at}/comm"), &format!("{comm}\n"));
            put(&format!("{at}/status"), "Uid:\t0\t0\t0\t0\nCpus_allowed_list:\t0-3\n");
            put(&format!("{at}/stat"), &format!("1 ({comm}) {}\n", fields.join(" ")));
        }
        let fds = dir.path().join(format!("{proc}/fd"));
        fs::create_dir_all(&fds).unwrap();
        symlink("anon_inode:kvm-vm", fds.join("9")).unwrap();
        symlink("anon_inode:kvm-vcpu:0", fds.join("10")).unwrap();
    }
    dir
}
