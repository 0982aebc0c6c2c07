//! Which functions and tracepoints of the running kernel programs can be attached to.
//!
//! A program's section names its target (`fentry/tun_net_xmit`, `tp_btf/kvm_entry`); the BTF of the kernel and of its
//! modules says whether the target exists. A module that is not loaded has no BTF: `vhost_net` appears with the first
//! VM that uses it.
use crate::Error;
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{OpenObject, OpenProgramMut};
use std::ffi::{CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

/// Modules whose functions are probed, when they are not built in.
const MODULES: [&str; 8] =
    ["tun", "tap", "vhost", "vhost_net", "kvm", "kvm_amd", "kvm_intel", "vfio_pci_core"];

/// The value of [`Hook::found`] for a target in vmlinux; otherwise it is a module's name.
const KERNEL: &str = "kernel";

/// A function or tracepoint that a program is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The program.
    pub program: String,
    /// How it is attached: `fentry`, `fexit` or `tp_btf`.
    pub kind: String,
    /// The function or tracepoint.
    pub target: String,
    /// Where the target is, `None` if the running kernel has none: `kernel`, or a module's name.
    pub found: Option<String>,
    /// The target exists, but the kernel does not allow functions to be probed.
    pub forbidden: bool,
}

impl Hook {
    /// Tells libbpf which module the program's target is in. Without it libbpf searches vmlinux's BTF again for each loaded module,
    /// which takes most of a trace's start on kernels whose types are not sorted by name (6.1, 6.12).
    /// (libbpf compares as many characters of modules' names as this name has, so `kvm` stands for `kvm_amd`, too.)
    ///
    /// # Errors
    /// [`Error::NotPermitted`]; [`Error::Kernel`] if the module is not loaded any more.
    pub(crate) fn set_attach_target(&self, program: &mut OpenProgramMut<'_>) -> Result<(), Error> {
        let Some(module) = self.found.as_deref().filter(|place| *place != KERNEL) else { return Ok(()) };
        let target = format!("{module}:{}", self.target);
        match program.set_attach_target(0, Some(target.clone())) {
            // Without CAP_SYS_ADMIN libbpf finds no modules.
            Err(_) if !crate::permitted() => Err(Error::NotPermitted),
            done => done.map_err(|e| {
                Error::kernel(format!("find {target}, the attach target of {}", self.program), e)
            }),
        }
    }
}

/// Marks functions as not found if this kernel has them but does not allow them to be probed (fentry): kernels of some
/// hosting providers allow tracepoints only. `open` opens the object of these hooks.
pub(crate) fn mark_forbidden(
    hooks: &mut [Hook],
    open: impl Fn() -> Result<OpenObject, Error>,
) -> Result<(), Error> {
    let on_function = |h: &Hook| h.found.is_some() && h.kind != "tp_btf";
    let Some(sample) = hooks.iter().find(|h| on_function(h)).cloned() else { return Ok(()) };
    let mut object = open()?;
    let mut refused = false;
    for mut program in object.progs_mut() {
        let wanted = program.name() == sample.program.as_str();
        program.set_autoload(wanted);
        refused |= wanted && sample.set_attach_target(&mut program).is_err();
    }
    if refused || object.load().is_err() {
        hooks.iter_mut().filter(|h| on_function(h)).for_each(|h| {
            h.found = None;
            h.forbidden = true;
        });
    }
    Ok(())
}

/// Leaves out the programs whose targets this kernel lacks, and those that are not needed; tells libbpf where the others' targets
/// are.
pub(crate) fn select(
    object: &mut OpenObject,
    hooks: &[Hook],
    needed: &dyn Fn(&str) -> bool,
) -> Result<(), Error> {
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let hook = hooks.iter().find(|h| h.program == name && h.found.is_some()).filter(|_| needed(&name));
        program.set_autoload(hook.is_some());
        if let Some(hook) = hook {
            hook.set_attach_target(&mut program)?;
        }
    }
    Ok(())
}

/// The kernel's types: its own and those of the modules in `MODULES` that are loaded.
pub struct KernelTypes {
    base: *mut sys::btf,
    modules: Vec<(&'static str, *mut sys::btf)>,
}

impl KernelTypes {
    /// Parses the BTF in `/sys/kernel/btf`. A module whose BTF cannot be parsed counts as not loaded.
    ///
    /// # Errors
    /// [`Error::NoBtf`] if the kernel has none.
    pub fn load() -> Result<Self, Error> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::NoBtf);
        }
        // SAFETY: takes no argument; returns null on failure.
        let base = unsafe { sys::btf__load_vmlinux_btf() };
        if base.is_null() {
            return Err(Error::NoBtf);
        }
        let mut modules = Vec::new();
        for name in MODULES {
            if !Path::new("/sys/kernel/btf").join(name).exists() {
                continue;
            }
            let Ok(c_name) = CString::new(name) else { continue };
            // SAFETY: the name is a C string, `base` is valid and outlives the split BTF (see Drop).
            let btf = unsafe { sys::btf__load_module_btf(c_name.as_ptr(), base) };
            if !btf.is_null() {
                modules.push((name, btf));
            }
        }
        Ok(KernelTypes { base, modules })
    }

    /// Where a type is defined: `kernel`, a module, or nowhere.
    fn find(&self, name: &str, kind: u32) -> Option<&'static str> {
        let c_name = CString::new(name).ok()?;
        // SAFETY: `base` is valid while self lives, the name is a C string.
        if unsafe { sys::btf__find_by_name_kind(self.base, c_name.as_ptr(), kind) } > 0 {
            return Some(KERNEL);
        }
        let own = |btf| self.own_types(btf).any(|id| self.has_name_and_kind(btf, id, &c_name, kind));
        self.modules.iter().find(|(_, btf)| own(*btf)).map(|(module, _)| *module)
    }

    /// The ids of a module's own types: those of the kernel, which they are based on, come first.
    fn own_types(&self, module: *const sys::btf) -> std::ops::Range<u32> {
        // SAFETY: both are valid while self lives.
        unsafe { sys::btf__type_cnt(self.base)..sys::btf__type_cnt(module) }
    }

    /// Whether a type has this name and is of this kind.
    fn has_name_and_kind(&self, btf: *const sys::btf, id: u32, name: &CStr, kind: u32) -> bool {
        // SAFETY: `btf` is valid while self lives; null for an id that it does not have.
        let Some(described) = (unsafe { sys::btf__type_by_id(btf, id).as_ref() }) else { return false };
        // `btf_kind`
        if described.info >> 24 & 0x1f != kind {
            return false;
        }
        // SAFETY: as above; the text lives as long as `btf`.
        let text = unsafe { sys::btf__name_by_offset(btf, described.name_off) };
        // SAFETY: not null, and a C string.
        !text.is_null() && unsafe { CStr::from_ptr(text) } == name
    }

    /// Whether the kernel itself has a function.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.find(name, sys::BTF_KIND_FUNC) == Some(KERNEL)
    }

    /// Whether the kernel lets BPF programs be its `operations`, a struct such as `Qdisc_ops`.
    pub fn has_struct_ops(&self, operations: &str) -> bool {
        self.find(&format!("bpf_struct_ops_{operations}"), sys::BTF_KIND_STRUCT).is_some()
    }

    /// Whether BPF programs can use a variable of the kernel itself. That the kernel has it is not enough: it finds the address
    /// in its table of symbols, which has variables only with CONFIG_KALLSYMS_ALL. So the verifier is asked, with a program that
    /// does nothing else.
    ///
    /// # Errors
    /// [`Error::NotPermitted`]; [`Error::Kernel`] if the program is refused for another reason than the variable.
    pub(crate) fn can_use_variable(&self, name: &str) -> Result<bool, Error> {
        let Ok(c_name) = CString::new(name) else { return Ok(false) };
        // SAFETY: `base` is valid while self lives, the name is a C string.
        let id = unsafe { sys::btf__find_by_name_kind(self.base, c_name.as_ptr(), sys::BTF_KIND_VAR) };
        if id <= 0 {
            return Ok(false);
        }
        let insn = |code: u32, src_reg: u32, imm: i32| {
            let mut insn = sys::bpf_insn { code: code as u8, imm, ..sys::bpf_insn::default() };
            insn.set_src_reg(src_reg as u8);
            insn
        };
        let program = [
            // r0 = the variable's address, in two instructions
            insn(sys::BPF_LD | sys::BPF_IMM | sys::BPF_DW, sys::BPF_PSEUDO_BTF_ID, id),
            insn(0, 0, 0),
            insn(sys::BPF_ALU64 | sys::BPF_MOV | sys::BPF_K, 0, 0),
            insn(sys::BPF_JMP | sys::BPF_EXIT, 0, 0),
        ];
        // SAFETY: `program` lives longer than the call, its length is given; null is allowed for name and options.
        let fd = unsafe {
            sys::bpf_prog_load(
                sys::BPF_PROG_TYPE_SOCKET_FILTER,
                std::ptr::null(),
                c"GPL".as_ptr(),
                program.as_ptr(),
                program.len() as u64,
                std::ptr::null_mut(),
            )
        };
        match fd {
            // SAFETY: nobody else has the descriptor.
            0.. => drop(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ if fd == -libc::ENOENT => return Ok(false),
            _ if fd == -libc::EPERM => return Err(Error::NotPermitted),
            _ => {
                let reason = std::io::Error::from_raw_os_error(-fd).to_string();
                return Err(Error::Kernel { doing: format!("ask whether a program can use {name}"), reason });
            }
        }
        Ok(true)
    }

    /// The names of an enum of the kernel itself, by value; none if it does not have that enum.
    pub(crate) fn enumerators(&self, name: &str) -> Vec<(u32, String)> {
        let Ok(c_name) = CString::new(name) else { return Vec::new() };
        // SAFETY: `base` is valid while self lives, the name is a C string.
        let id = unsafe { sys::btf__find_by_name_kind(self.base, c_name.as_ptr(), sys::BTF_KIND_ENUM) };
        if id <= 0 {
            return Vec::new();
        }
        // SAFETY: `id` is a type of `base`.
        let described = unsafe { sys::btf__type_by_id(self.base, id as u32) };
        if described.is_null() {
            return Vec::new();
        }
        // SAFETY: libbpf has checked the BTF: an enum's description is followed by as many enumerators as the low 16 bits
        // of `info` say (`btf_vlen`); they live as long as `base`.
        let all = unsafe {
            let count = (*described).info & 0xffff;
            std::slice::from_raw_parts(described.add(1).cast::<sys::btf_enum>(), count as usize)
        };
        all.iter()
            .filter_map(|e| {
                // SAFETY: the offset is one into `base`'s strings; what is returned lives as long as `base`.
                let text = unsafe { sys::btf__name_by_offset(self.base, e.name_off) };
                // SAFETY: not null, and a C string.
                let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
                Some((e.val as u32, text.to_string_lossy().into_owned()))
            })
            .collect()
    }

    /// The hooks of all programs of an object.
    pub(crate) fn hooks(&self, object: &OpenObject) -> Vec<Hook> {
        object
            .progs()
            .filter_map(|p| self.hook(&p.name().to_string_lossy(), &p.section().to_string_lossy()))
            .collect()
    }

    /// Where the target of a program's section is; `None` also for sections of other kinds.
    pub fn hook(&self, program: &str, section: &str) -> Option<Hook> {
        let (kind, target) = section.split_once('/')?;
        let found = match kind {
            "fentry" | "fexit" => self.find(target, sys::BTF_KIND_FUNC),
            "tp_btf" => self.find(&format!("btf_trace_{target}"), sys::BTF_KIND_TYPEDEF),
            _ => return None,
        };
        Some(Hook {
            program: program.to_string(),
            kind: kind.to_string(),
            target: target.to_string(),
            found: found.map(str::to_string),
            forbidden: false,
        })
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        for (_, btf) in self.modules.drain(..) {
            // SAFETY: owned by self, freed once, before the base it refers to.
            unsafe { sys::btf__free(btf) };
        }
        // SAFETY: owned by self, freed once.
        unsafe { sys::btf__free(self.base) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with this machine's own table of symbols, which may list no variables; `experiments/src/verify.rs`
    /// tries kernels that do. Needs root.
    #[test]
    fn a_variable_can_be_used_if_the_kernel_finds_its_address() {
        let kernel = KernelTypes::load().unwrap();
        let table = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let listed = |name: &str| table.lines().any(|line| line.split(' ').nth(2) == Some(name));
        // Variables of some kernels and of all; a function; none.
        for name in ["__preempt_count", "pcpu_hot", "runqueues", "schedule", "no_such_variable"] {
            let is_function = name == "schedule";
            assert_eq!(kernel.can_use_variable(name).unwrap(), listed(name) && !is_function, "{name}");
        }
    }
}
