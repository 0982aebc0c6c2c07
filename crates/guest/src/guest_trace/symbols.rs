//! Where the kernel has some of its data: BPF programs find it by address. `/proc/kallsyms` shows addresses only to those
//! who have CAP_SYSLOG, and data only if the kernel was built with CONFIG_KALLSYMS_ALL, as those of distributions are.
use super::hooks::Hook;
use super::types::guest_symbols;
use std::io::{BufRead, BufReader};

/// Addresses of data of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Symbols(guest_symbols);

impl Symbols {
    /// Reads the kernel's table of symbols. What it does not show is not known; that is no error.
    pub fn read() -> Symbols {
        match std::fs::File::open("/proc/kallsyms") {
            Ok(file) => parse(BufReader::new(file)),
            Err(_) => Symbols(guest_symbols::default()),
        }
    }

    pub(super) fn addresses(&self) -> guest_symbols {
        self.0
    }

    /// Whether packets that are not in one piece can be read.
    fn pages(&self) -> bool {
        self.0.page_offset_base != 0 && self.0.vmemmap_base != 0
    }

    /// Whether it can be known if a thread is interrupted.
    pub(super) fn preemption(&self) -> bool {
        self.0.per_cpu_offset != 0 && (self.0.preempt_count != 0 || self.0.pcpu_hot != 0)
    }

    /// The same without any, for tests of what then happens.
    #[doc(hidden)]
    pub fn none() -> Symbols {
        Symbols(guest_symbols::default())
    }

    pub(super) fn hooks(&self) -> [Hook; 2] {
        let reason = "not in /proc/kallsyms: that needs CAP_SYSLOG and CONFIG_KALLSYMS_ALL";
        [
            Hook::symbol(
                "vmemmap_base",
                self.pages(),
                reason,
                "packets whose headers the driver leaves in pages are not identified",
            ),
            Hook::symbol(
                "__preempt_count",
                self.preemption(),
                reason,
                "which thread woke one that reads a packet is not known",
            ),
        ]
    }
}

/// A line has address, type and name, and for symbols of modules the name of the module.
fn parse(table: impl BufRead) -> Symbols {
    let mut s = guest_symbols::default();
    for line in table.lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let field = match name {
            "page_offset_base" => &mut s.page_offset_base,
            "vmemmap_base" => &mut s.vmemmap_base,
            "__per_cpu_offset" => &mut s.per_cpu_offset,
            "__preempt_count" => &mut s.preempt_count,
            "pcpu_hot" => &mut s.pcpu_hot,
            _ => continue,
        };
        *field = u64::from_str_radix(address, 16).unwrap_or(0);
    }
    Symbols(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_whole_names() {
        let table = "ffffffff81000000 T _text\nffffffff82a00010 D page_offset_base\nffffffff82a00018 D vmemmap_base\n\
                     ffffffff82b00000 D __per_cpu_offset\n000000000001d000 A __preempt_count\n\
                     ffffffffc0000000 d vmemmap_base_x\t[m]\n";
        let s = parse(table.as_bytes());
        assert_eq!((s.0.page_offset_base, s.0.vmemmap_base), (0xffff_ffff_82a0_0010, 0xffff_ffff_82a0_0018));
        assert_eq!((s.0.preempt_count, s.0.pcpu_hot), (0x1d000, 0));
        assert!(s.pages() && s.preemption());
        assert!(s.hooks().iter().all(|h| h.present));
    }

    /// So the kernel shows them to those without CAP_SYSLOG.
    #[test]
    fn zeros_are_no_addresses() {
        let table = "0000000000000000 D page_offset_base\n0000000000000000 D vmemmap_base\n";
        let s = parse(table.as_bytes());
        assert!(!s.pages() && !s.preemption());
        assert!(s.hooks().iter().all(|h| !h.present && !h.reason.is_empty()));
    }
}
