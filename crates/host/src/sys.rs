//! System calls that nix lacks or limits to 1024 CPUs: affinity and scheduling of a thread, by its id; open files.
//!
//! The only module of the crate with `unsafe`. It makes no decisions. An id that is no thread returns `ESRCH`; so does
//! 0, which the kernel would take for the calling thread.
#![allow(unsafe_code)]

use nix::errno::Errno;
use teiji_model::cpus::{CpuSet, MAX_CPUS};

/// A mask of CPUs in the kernel's format: `unsigned long[]`, the least significant bit first.
type Mask = [libc::c_ulong; MAX_CPUS as usize / BITS];
const BITS: usize = libc::c_ulong::BITS as usize;

/// CPUs that a thread may run on: the allowed ones that are active (`sched_getaffinity(2)`).
pub(crate) fn affinity(thread: u32) -> Result<CpuSet, Errno> {
    let mut mask: Mask = [0; MAX_CPUS as usize / BITS];
    // SAFETY: the kernel writes at most the given number of bytes, the size of `mask`, which is aligned and outlives
    // the call; any bit pattern is valid for integers.
    let written = Errno::result(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, id(thread)?, size_of::<Mask>(), mask.as_mut_ptr())
    })?;
    // The raw call returns the number of bytes written; the rest of the mask stays 0.
    let bits = usize::try_from(written).map_err(|_| Errno::EIO)?.min(size_of::<Mask>()) * 8;
    let set =
        (0..MAX_CPUS).take(bits).filter(|&cpu| mask[cpu as usize / BITS] >> (cpu as usize % BITS) & 1 == 1);
    Ok(set.collect())
}

/// Restricts a thread to these CPUs (`sched_setaffinity(2)`).
pub(crate) fn set_affinity(thread: u32, cpus: &CpuSet) -> Result<(), Errno> {
    let mut mask: Mask = [0; MAX_CPUS as usize / BITS];
    for cpu in cpus.iter() {
        *mask.get_mut(cpu as usize / BITS).ok_or(Errno::EINVAL)? |= 1 << (cpu as usize % BITS);
    }
    // SAFETY: the kernel only reads the given number of bytes, the size of `mask`, which outlives the call.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, id(thread)?, size_of::<Mask>(), mask.as_ptr())
    })?;
    Ok(())
}

/// `struct sched_attr` of a thread (`sched_getattr(2)`), with the fields that Linux 3.14 had.
pub(crate) fn scheduling(thread: u32) -> Result<libc::sched_attr, Errno> {
    let mut attr = empty_attr();
    // SAFETY: the kernel writes at most `attr.size` bytes, the size of the structure, to `attr`, whose fields are
    // integers and which outlives the call.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_sched_getattr, id(thread)?, &raw mut attr, attr.size, 0 as libc::c_uint)
    })?;
    Ok(attr)
}

/// Sets the scheduling of a thread (`sched_setattr(2)`). `attr` is made by [`empty_attr`].
pub(crate) fn set_scheduling(thread: u32, attr: &libc::sched_attr) -> Result<(), Errno> {
    debug_assert_eq!(attr.size as usize, size_of::<libc::sched_attr>());
    let mut attr = *attr;
    // SAFETY: the kernel reads `attr.size` bytes, the size of the structure, from `attr`. It writes only the field
    // `size`, and only if it does not know that size; every kernel knows this one, the first that there was.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_sched_setattr, id(thread)?, &raw mut attr, 0 as libc::c_uint)
    })?;
    Ok(())
}

/// All parameters zero, with the size filled in.
pub(crate) fn empty_attr() -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

fn id(thread: u32) -> Result<libc::pid_t, Errno> {
    libc::pid_t::try_from(thread).ok().filter(|id| *id > 0).ok_or(Errno::ESRCH)
}

/// Lets this process have as many open files as it may (`RLIMIT_NOFILE`, getrlimit(2)); returns how many that are.
pub(crate) fn allow_open_files() -> Result<u64, Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`, which is aligned and outlives the call.
    Errno::result(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel only reads one `rlimit`, which outlives the call.
    let set = Errno::result(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) });
    Ok(if set.is_ok() { limit.rlim_max } else { before })
}

/// A private part of memory, or a file that is mapped.
pub(crate) struct Memory {
    at: std::ptr::NonNull<libc::c_void>,
    size: usize,
}

impl Memory {
    /// Memory that nothing was written to, without transparent huge pages.
    pub(crate) fn new(size: usize) -> Result<Memory, Errno> {
        let memory = Memory::map(size, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: the range is a mapping of this process; the advice changes no content. A kernel without huge pages refuses (EINVAL).
        let _ = unsafe { libc::madvise(memory.at.as_ptr(), size, libc::MADV_NOHUGEPAGE) };
        Ok(memory)
    }

    /// A file.
    pub(crate) fn of_file(file: &impl std::os::fd::AsRawFd, size: usize) -> Result<Memory, Errno> {
        Memory::map(size, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(size: usize, flags: libc::c_int, file: libc::c_int) -> Result<Memory, Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without an address the kernel chooses a range that nothing else has.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, flags, file, 0) };
        if at == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        std::ptr::NonNull::new(at).map(|at| Memory { at, size }).ok_or(Errno::ENOMEM)
    }

    /// Its pages come from this node (`mbind(2)`, `MPOL_BIND`).
    pub(crate) fn bind(&self, node: u32) -> Result<(), Errno> {
        let mut mask: Mask = [0; MAX_CPUS as usize / BITS];
        *mask.get_mut(node as usize / BITS).ok_or(Errno::EINVAL)? |= 1 << (node as usize % BITS);
        // The kernel takes one bit less than it is told.
        let bits = MAX_CPUS as usize + 1;
        // SAFETY: the range is this mapping, whose content stays; the kernel reads `bits` - 1 bits of `mask`, which outlives the call.
        Errno::result(unsafe {
            let at = self.at.as_ptr();
            libc::syscall(libc::SYS_mbind, at, self.size, libc::MPOL_BIND, mask.as_ptr(), bits, 0)
        })?;
        Ok(())
    }

    /// Its words of 4 bytes.
    pub(crate) fn words(&self) -> &[std::sync::atomic::AtomicU32] {
        // SAFETY: the mapping has `size` bytes, is aligned to a page, can be read and written, and lives as long as `self`; any bits
        // are a valid integer, and whoever else writes to it (the kernel to a file) is another thread to an atomic.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.size / 4) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, to which no reference is left.
        unsafe { libc::munmap(self.at.as_ptr(), self.size) };
    }
}

/// A file in memory, of this size (`memfd_create(2)`).
pub(crate) fn file_in_memory(size: u64) -> Result<std::fs::File, Errno> {
    let fd = nix::sys::memfd::memfd_create(c"teiji", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let file = std::fs::File::from(fd);
    file.set_len(size).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(file)
}

/// Page faults of this thread so far (`getrusage(2)`).
pub(crate) fn page_faults() -> u64 {
    use nix::sys::resource::{UsageWho, getrusage};
    getrusage(UsageWho::RUSAGE_THREAD)
        .map_or(0, |usage| (usage.minor_page_faults() + usage.major_page_faults()).unsigned_abs())
}

/// The time stamp counter, in the order of the program.
pub(crate) fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has these instructions, and this process does not forbid itself to read the TSC (prctl).
    // They touch no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        let now = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        now
    }
}
