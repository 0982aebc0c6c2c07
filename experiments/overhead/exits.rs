//! A guest of six instructions. It executes `cpuid` in a loop: each time it leaves guest mode, and KVM answers without
//! returning to user space.

use anyhow::{Context, Result, bail};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::switches::tid;

/// Address of the code in the guest's memory.
const START: u64 = 0x1000;
/// Size of the guest's memory, bytes.
const MEMORY: usize = 0x4000;
/// `loop: xor eax,eax; cpuid; dec esi; jnz loop; out 0x80,al; hlt`, for real mode.
const CODE: [u8; 12] = [0x66, 0x31, 0xc0, 0x0f, 0xa2, 0x66, 0x4e, 0x75, 0xf7, 0xe6, 0x80, 0xf4];

/// The guest. Its vCPU has a thread that ends with this value.
pub struct Guest {
    begin: Sender<u32>,
    done: Receiver<Result<f64>>,
    /// The vCPU's thread id.
    pub tid: u32,
}

impl Guest {
    /// Creates the guest.
    ///
    /// # Errors
    /// If KVM is not available.
    pub fn new() -> Result<Guest> {
        let (begin, orders) = channel::<u32>();
        let (report, done) = channel();
        let (known, tids) = channel();
        std::thread::Builder::new().name("cost-vcpu".into()).spawn(move || {
            let mut machine = make();
            let _ = known.send(machine.as_ref().map(|_| tid()).map_err(|e| format!("{e:#}")));
            let Ok((_, vcpu)) = &mut machine else { return };
            for count in orders {
                if report.send(run(vcpu, count)).is_err() {
                    return;
                }
            }
        })?;
        let tid = tids.recv().context("the vCPU's thread ended")?.map_err(anyhow::Error::msg)?;
        Ok(Guest { begin, done, tid })
    }

    /// Lets the guest leave guest mode this many times; returns ns for each time.
    ///
    /// # Errors
    /// If KVM cannot run the guest.
    pub fn exit(&self, count: u32) -> Result<f64> {
        self.begin.send(count).context("the vCPU's thread is gone")?;
        self.done.recv().context("the vCPU's thread is gone")?
    }
}

fn make() -> Result<(VmFd, VcpuFd)> {
    let kvm = Kvm::new().context("cannot open /dev/kvm")?;
    let vm = kvm.create_vm().context("cannot make a VM")?;
    // As VMMs do: KVM handles a vCPU without KVM's interrupt controller in a shorter way.
    vm.create_irq_chip().context("cannot make the VM's interrupt controllers")?;
    let length = NonZeroUsize::new(MEMORY).context("memory")?;
    // SAFETY: new memory to which nothing refers yet; it is never unmapped, so the VM may keep it.
    let memory = unsafe {
        nix::sys::mman::mmap_anonymous(
            None,
            length,
            nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE,
            nix::sys::mman::MapFlags::MAP_PRIVATE,
        )
    }
    .context("cannot get the guest's memory")?
    .cast::<u8>();
    // SAFETY: START and the code are within the mapping, and nothing else uses it yet.
    unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), memory.as_ptr().add(START as usize), CODE.len()) };
    let region = kvm_userspace_memory_region {
        slot: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: memory.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: the region is mapped for as long as this process runs.
    unsafe { vm.set_user_memory_region(region) }.context("cannot give the guest its memory")?;
    let vcpu = vm.create_vcpu(0).context("cannot make a vCPU")?;
    let mut s = vcpu.get_sregs().context("cannot read the vCPU's registers")?;
    s.cs.base = 0;
    s.cs.selector = 0;
    vcpu.set_sregs(&s).context("cannot set the vCPU's registers")?;
    Ok((vm, vcpu))
}

fn run(vcpu: &mut VcpuFd, count: u32) -> Result<f64> {
    let mut regs = vcpu.get_regs().context("cannot read the vCPU's registers")?;
    regs.rip = START;
    regs.rsi = u64::from(count);
    regs.rflags = 2;
    vcpu.set_regs(&regs).context("cannot set the vCPU's registers")?;
    let begun = Instant::now();
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(..)) => break,
            Err(e) if e.errno() == libc::EINTR => {}
            other => bail!("the guest left its loop: {other:?}"),
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(count))
}
