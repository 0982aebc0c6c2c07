//! The CPU time of looks at the counters of 200 VMs, as `teiji diagnose` takes them: processes with threads of the names and number
//! of QEMU's, which sleep, on this machine's own kernel.
//!
//! ```text
//! cargo bench -p teiji-host --bench usage            (root)
//! ```
//! Fails if a look takes more than [`LIMIT`], 1 % of a CPU at one look a second. Not part of it, as such processes have none: KVM's
//! statistics, taps and their qdiscs. Nor are the names of a VMM's threads, which are read again after 15 s.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use teiji_host::kernel::cpu_time;
use teiji_host::{Look, Root, UsageReader};
use teiji_model::host::{Vcpu, Vm, Worker};

const VMS: usize = 200;
const VCPUS: usize = 4;
/// QEMU's others: its main loop is the process itself.
const OTHERS: usize = 3;
const LIMIT: Duration = Duration::from_millis(10);
const LOOKS: usize = 21;

fn main() {
    if std::env::args().any(|arg| arg == "--vmm") {
        return vmm();
    }
    let mut vmms = Vmms(Vec::new());
    let vms: Vec<Vm> = (0..VMS).map(|n| vmms.start(n)).collect();
    let root = Root::default();
    let mut reader = UsageReader::new(&root);
    let mut well = true;
    let _ = reader.look(&vms, Look::End);
    for look in [Look::Within, Look::End] {
        let mut times = Vec::new();
        let before = root.reads();
        for _ in 0..LOOKS {
            let begun = cpu_time();
            let sample = reader.look(&vms, look);
            times.push(cpu_time() - begun);
            assert_eq!(sample.vms.len(), VMS);
            assert!(sample.vms.values().all(|vm| vm.threads.len() == VCPUS + 1));
        }
        times.sort_unstable();
        let median = times[LOOKS / 2];
        let reads = (root.reads() - before) as f64 / LOOKS as f64;
        println!("{VMS} VMs with {VCPUS} vCPUs, {look:?}: {median:.1?} a look, {reads} reads");
        well &= median <= LIMIT;
    }
    let begun = cpu_time();
    let threads = reader.threads().len();
    println!("{threads} threads of the host: {:.1?}", cpu_time() - begun);
    println!("{}", if well { "within the limit" } else { "NOT within the limit" });
    drop(vmms);
    std::process::exit(i32::from(!well));
}

/// The processes, which end with the value.
struct Vmms(Vec<Child>);

impl Vmms {
    fn start(&mut self, n: usize) -> Vm {
        let program = std::env::current_exe().unwrap();
        let mut child =
            Command::new(program).arg("--vmm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let tids: Vec<u32> = line.split_whitespace().map(|tid| tid.parse().unwrap()).collect();
        let pid = child.id();
        self.0.push(child);
        let vcpu = |(index, tid): (usize, &u32)| Vcpu {
            index: index as u16,
            kvm_id: None,
            tid: *tid,
            cpus: "0".into(),
            last_cpu: 0,
        };
        let worker = Worker {
            tid: tids[VCPUS],
            comm: "vhost".into(),
            kernel_thread: false,
            cpus: "0".into(),
            last_cpu: 0,
        };
        Vm {
            name: format!("vm{n}"),
            pid,
            vcpus: tids[..VCPUS].iter().enumerate().map(vcpu).collect(),
            workers: vec![worker],
            ..Vm::default()
        }
    }
}

impl Drop for Vmms {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Says the ids of its threads, and sleeps until the bench ends.
fn vmm() {
    let (send, receive) = std::sync::mpsc::channel();
    for n in 0..VCPUS + 1 + OTHERS {
        let send = send.clone();
        let name = if n < VCPUS { format!("CPU {n}/KVM") } else { format!("other {n}") };
        let run = move || {
            send.send((n, nix::unistd::gettid())).unwrap();
            loop {
                std::thread::park();
            }
        };
        std::thread::Builder::new().name(name).stack_size(64 << 10).spawn(run).unwrap();
    }
    let mut tids: Vec<_> = (0..VCPUS + 1 + OTHERS).map(|_| receive.recv().unwrap()).collect();
    tids.sort_unstable();
    println!("{}", tids.iter().map(|(_, tid)| tid.to_string()).collect::<Vec<_>>().join(" "));
    let _ = std::io::stdin().read(&mut [0]);
}
