//! A process that is a VM to anybody who looks at it: it holds the descriptors of a KVM virtual machine, its vCPUs and
//! taps, and has threads with the names that QEMU gives them. The vCPUs do not run.

use crate::overhead::packets;
use anyhow::{Context, Result};
use kvm_ioctls::Kvm;
use std::io::{Read, Write};

/// What a VM has.
#[derive(clap::Args, Debug)]
pub struct Machine {
    /// As QEMU's option of this name
    #[arg(long)]
    pub name: String,
    /// Number of vCPUs
    #[arg(long, default_value_t = 2)]
    pub vcpus: u16,
    /// Names of its taps
    #[arg(long = "tap")]
    pub taps: Vec<String>,
}

/// Is such a VM until standard input is closed. Prints the thread ids of the vCPUs when it is complete.
///
/// # Errors
/// If there is no KVM, or no tap can be made.
pub fn run(machine: &Machine) -> Result<()> {
    let vm = Kvm::new().context("cannot open /dev/kvm")?.create_vm().context("cannot make a VM")?;
    let mut vcpus = Vec::new();
    let (send, tids) = std::sync::mpsc::channel();
    for index in 0..machine.vcpus {
        vcpus.push(vm.create_vcpu(u64::from(index)).context("cannot make a vCPU")?);
        let send = send.clone();
        std::thread::Builder::new().name(format!("CPU {index}/KVM")).spawn(move || {
            let _ = send.send(nix::unistd::gettid().as_raw());
            loop {
                std::thread::park();
            }
        })?;
    }
    let taps = machine.taps.iter().map(|name| packets::open(name)).collect::<Result<Vec<_>>>()?;
    let tids: Vec<String> = tids.iter().take(machine.vcpus.into()).map(|tid| tid.to_string()).collect();
    println!("{}", tids.join(" "));
    std::io::stdout().flush()?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop((vm, vcpus, taps));
    Ok(())
}
