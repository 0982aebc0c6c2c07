//! What probes have counted of a thread of a VM: how often it did something, and how long that took. Unlike the kernel's own counters
//! they cost a little at each of these moments, but no event leaves the kernel.
//!
//! All times are those of the clock: a thread that waits for a CPU meanwhile waits within them.

use serde::{Deserialize, Serialize, Serializer};

/// How often something was done, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// How often it has ended.
    pub count: u64,
    /// In all, ns; what goes on is in it.
    pub ns: u64,
}

impl Activity {
    /// What was done since an earlier look. Saturates, as what goes on is estimated.
    pub fn since(self, before: Activity) -> Activity {
        Activity { count: self.count.saturating_sub(before.count), ns: self.ns.saturating_sub(before.ns) }
    }

    /// This and what another thread did. Saturates.
    pub fn and(self, other: Activity) -> Activity {
        Activity { count: self.count.saturating_add(other.count), ns: self.ns.saturating_add(other.ns) }
    }
}

/// Makes the enum and its list from one table.
macro_rules! exits {
    ($($(#[$doc:meta])* $exit:ident, $name:literal;)*) => {
        /// Why a vCPU left guest mode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Exit { $($(#[$doc])* $exit,)* }

        impl Exit {
            /// All of them, by their numbers.
            pub const ALL: [Exit; [$(Exit::$exit,)*].len()] = [$(Exit::$exit,)*];

            /// For people, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Exit::$exit => $name,)* }
            }
        }
    };
}

exits! {
    /// The host got an interrupt, or the guest's timer ended (Intel's preemption timer).
    Interrupt, "host interrupt or timer";
    /// The guest can take an interrupt now.
    Window, "interrupt window";
    /// The guest halted the vCPU.
    Halt, "halt";
    /// It used an I/O port.
    Port, "I/O port";
    /// It accessed memory that is not mapped: of a device, such as a doorbell, or its own for the first time.
    Memory, "MMIO or page fault";
    /// It accessed a model-specific register, such as that of a timer.
    Msr, "MSR";
    /// It accessed its interrupt controller.
    Apic, "interrupt controller";
    /// It asked what its CPU can do.
    Cpuid, "CPUID";
    /// It called the hypervisor.
    Hypercall, "hypercall";
    /// It waits for a lock in a loop.
    Pause, "pause loop";
    /// Anything else.
    Other, "other";
}

/// What a thread has done since it was first followed. Of a vCPU `guest`, `halted` and the `exits` add up to `observed`, but for what it
/// did before its first entry or exit was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// How long it has been counted, ns.
    pub observed: u64,
    /// vCPU: it was in guest mode.
    pub guest: Activity,
    /// vCPU: the guest had halted it: it polled or slept.
    pub halted: Activity,
    /// Of `halted`: those in which it was woken while KVM still polled.
    pub woken_polling: Activity,
    /// vCPU: exits by [`Exit`], with the time until it was in guest mode again, but for what it was halted.
    #[serde(serialize_with = "by_name")]
    pub exits: [Activity; Exit::ALL.len()],
    /// vhost worker: it carried packets to the guest (`handle_rx`).
    pub rx: Activity,
    /// vhost worker: it carried frames from the guest (`handle_tx`).
    pub tx: Activity,
}

/// For people and their programs exits have names, in recordings numbers.
fn by_name<S: Serializer>(exits: &[Activity; Exit::ALL.len()], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.collect_map(Exit::ALL.into_iter().zip(exits))
    } else {
        exits.serialize(serializer)
    }
}

impl Census {
    /// What was done since an earlier look.
    #[must_use]
    pub fn since(&self, before: &Census) -> Census {
        self.with(before, Activity::since)
    }

    /// This and what another thread did.
    #[must_use]
    pub fn and(&self, other: &Census) -> Census {
        self.with(other, Activity::and)
    }

    fn with(&self, other: &Census, each: fn(Activity, Activity) -> Activity) -> Census {
        let mut exits = self.exits;
        exits.iter_mut().zip(other.exits).for_each(|(own, other)| *own = each(*own, other));
        let time = |census: &Census| Activity { count: 0, ns: census.observed };
        Census {
            observed: each(time(self), time(other)).ns,
            guest: each(self.guest, other.guest),
            halted: each(self.halted, other.halted),
            woken_polling: each(self.woken_polling, other.woken_polling),
            exits,
            rx: each(self.rx, other.rx),
            tx: each(self.tx, other.tx),
        }
    }

    /// All exits together.
    pub fn all_exits(&self) -> Activity {
        self.exits.iter().fold(Activity::default(), |sum, exit| sum.and(*exit))
    }

    /// The exits of each kind that there were, those that took longest first.
    pub fn exits_by_time(&self) -> Vec<(Exit, Activity)> {
        let there = Exit::ALL.into_iter().zip(self.exits).filter(|(_, exit)| *exit != Activity::default());
        let mut all: Vec<_> = there.collect();
        all.sort_by_key(|(_, exit)| std::cmp::Reverse(exit.ns));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_have_the_numbers_of_their_places() {
        for (place, exit) in Exit::ALL.into_iter().enumerate() {
            assert_eq!(exit as usize, place);
        }
    }

    #[test]
    fn exits_have_names_in_json_and_numbers_in_recordings() {
        let mut census = Census::default();
        census.exits[Exit::Apic as usize] = Activity { count: 2, ns: 30 };
        let json = serde_json::to_value(census).unwrap();
        assert_eq!(json["exits"]["apic"], serde_json::json!({ "count": 2, "ns": 30 }));
        assert_eq!(json["exits"].as_object().unwrap().len(), Exit::ALL.len());
        let bytes = postcard::to_stdvec(&census).unwrap();
        assert_eq!(postcard::from_bytes::<Census>(&bytes).unwrap(), census);
    }

    #[test]
    fn what_was_done_since_is_no_less_than_nothing() {
        let done = |count, ns| Activity { count, ns };
        let before = Census { guest: done(3, 300), rx: done(5, 50), ..Census::default() };
        let mut now = Census { guest: done(4, 290), rx: done(7, 80), ..before };
        now.exits[Exit::Msr as usize] = done(2, 20);
        now.exits[Exit::Port as usize] = done(1, 30);
        let since = now.since(&before);
        assert_eq!((since.guest, since.rx), (done(1, 0), done(2, 30)));
        assert_eq!(since.all_exits(), done(3, 50));
        assert_eq!(since.exits_by_time(), [(Exit::Port, done(1, 30)), (Exit::Msr, done(2, 20))]);
    }
}
