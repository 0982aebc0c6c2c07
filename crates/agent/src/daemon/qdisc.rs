//! The qdisc, as long as this agent has it: got at the start, replaced by this build's once no link has a former one, given
//! back at the end.
//!
//! ```text
//!  start ──► kept ──(no link has the former one any more)──► kept: this build's ──► end
//!    ├──► damaged: pins are missing, and links may have it, or nowhere to pin it ──(tries again every time)──► kept
//!    ├──► refused by the kernel ──(tries again, more and more seldom)──► kept
//!    └──► none: the kernel has no BPF qdiscs
//! ```
//! Whatever is wrong with the pins, the policy is kept: an agent that did not start because of them would neither keep it nor
//! say in `teiji status` what is wrong.

use super::heartbeat::HeartbeatThread;
use super::pin_watch::PinWatch;
use super::{Error, backoff};
use std::path::Path;
use std::time::{Duration, Instant};
use teiji_bpf::qdisc_edf::{HEARTBEAT_TIMEOUT, PinnedQdisc, Programs, QdiscOwner};
use teiji_model::text;

pub(super) struct Qdisc<'a> {
    pins: &'a Path,
    watch: PinWatch<'a>,
    kept: Option<(QdiscOwner, HeartbeatThread)>,
    /// Why it is not kept, if that may change.
    damage: Option<Damage>,
    acquire: Acquire,
}

type Acquire = fn(&Path) -> Result<QdiscOwner, teiji_bpf::Error>;

/// Why the qdisc is not kept.
struct Damage {
    why: String,
    /// Before it is tried again; `None`: each time.
    pause: Option<Duration>,
    tried: Instant,
}

impl<'a> Qdisc<'a> {
    /// # Errors
    /// If another agent keeps the pins.
    pub(super) fn acquire(pins: &'a Path) -> Result<Qdisc<'a>, Error> {
        Qdisc::acquire_by(pins, QdiscOwner::acquire)
    }

    fn acquire_by(pins: &'a Path, acquire: Acquire) -> Result<Qdisc<'a>, Error> {
        let mut qdisc = Qdisc { pins, watch: PinWatch::new(pins), kept: None, damage: None, acquire };
        qdisc.try_acquire(Instant::now())?;
        Ok(qdisc)
    }

    fn try_acquire(&mut self, now: Instant) -> Result<(), Error> {
        let former = self.damage.take();
        match (self.acquire)(self.pins) {
            Ok(owner) => {
                let heartbeat = HeartbeatThread::start(owner.heartbeat())?;
                warn_of_other(&owner);
                if former.is_some() {
                    tracing::info!("the qdisc can be kept again: the agent keeps deadlines");
                }
                self.kept = Some((owner, heartbeat));
            }
            Err(why @ (teiji_bpf::Error::Missing { .. } | teiji_bpf::Error::NoBtf)) => {
                tracing::info!("{why}; the agent keeps the policy only, and channels by HFSC need no agent");
            }
            Err(
                error @ (teiji_bpf::Error::Damaged { .. }
                | teiji_bpf::Error::Kernel { .. }
                | teiji_bpf::Error::NoBpfFileSystem(_)),
            ) => {
                // Links may wait for the heartbeat of pins that are there. Without any, the kernel verifies the programs each time.
                let none_there = || matches!(PinnedQdisc::open(self.pins), Ok(PinnedQdisc::Absent));
                let seldom = matches!(error, teiji_bpf::Error::Kernel { .. }) && none_there();
                let before = former.as_ref().and_then(|former| former.pause);
                let why = error.to_string();
                if former.is_none_or(|former| former.why != why) {
                    tracing::error!("{why}; meanwhile the agent keeps the rest of the policy");
                }
                let pause = seldom.then(|| backoff::longer(before));
                self.damage = Some(Damage { why, pause, tried: now });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The owner, if it is kept.
    pub(super) fn owner(&self) -> Option<&QdiscOwner> {
        self.kept.as_ref().map(|(owner, _)| owner)
    }

    /// Why it is not kept, although the kernel has BPF qdiscs.
    pub(super) fn problem(&self) -> Option<&str> {
        self.damage.as_ref().map(|damage| damage.why.as_str())
    }

    /// Whether the heartbeat is sent, if there is anything to send it for.
    pub(super) fn lives(&self) -> bool {
        self.kept.as_ref().is_none_or(|(_, heartbeat)| heartbeat.runs())
    }

    /// Looks at the pins, and takes the qdisc of this build once no link has the former one.
    ///
    /// # Errors
    /// If others have the pins now; those of [`Qdisc::acquire`].
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Error> {
        if let Some(damage) = &self.damage {
            let waits = damage.pause.is_some_and(|pause| now < damage.tried + pause);
            return if waits { Ok(()) } else { self.try_acquire(now) };
        }
        let Some(former) = self.kept.take() else { return Ok(()) };
        let mut now = renew(former, self.pins)?;
        self.watch.check(&mut now.0)?;
        self.kept = Some(now);
        Ok(())
    }

    /// Unregisters it, if no link has it.
    ///
    /// # Errors
    /// If the kernel refuses that.
    pub(super) fn end(self) -> Result<(), Error> {
        let Some((owner, heartbeat)) = self.kept else { return Ok(()) };
        let (links, have) = links_have(owner.link_count());
        // A link may get the qdisc before the pins are removed: `unpin` checks again, under the writers' lock.
        match owner.unpin() {
            Ok(()) => tracing::info!("no link has channels; the qdisc is unregistered"),
            Err(teiji_bpf::Error::Refused { .. }) => tracing::warn!(
                "{links} still {have} channels; {} s from now their packets leave in the order of arrival: start the agent \
                 again, or remove the channels by `teiji rollback`",
                HEARTBEAT_TIMEOUT.as_secs()
            ),
            Err(error) => return Err(error.into()),
        }
        drop(heartbeat);
        Ok(())
    }
}

/// Takes the qdisc of this build of teiji once no link has the former one.
fn renew(
    (owner, heartbeat): (QdiscOwner, HeartbeatThread),
    pins: &Path,
) -> Result<(QdiscOwner, HeartbeatThread), Error> {
    if *owner.programs() == Programs::Own || owner.link_count() > 0 {
        return Ok((owner, heartbeat));
    }
    // The lock on the former qdisc is released first; its heartbeat continues until the new one starts.
    drop(owner);
    let owner = QdiscOwner::acquire(pins)?;
    let renewed = HeartbeatThread::start(owner.heartbeat())?;
    drop(heartbeat);
    tracing::info!("no link has the qdisc of another build of teiji any more; the agent keeps its own");
    Ok((owner, renewed))
}

/// `1 link`, `has`; `2 links`, `have`.
pub(super) fn links_have(count: u64) -> (String, &'static str) {
    (text::count(count, "link"), if count == 1 { "has" } else { "have" })
}

fn warn_of_other(owner: &QdiscOwner) {
    let (links, have) = links_have(owner.link_count());
    match owner.programs() {
        Programs::Own => {}
        Programs::Compatible => tracing::info!(
            "{links} {have} the qdisc of another build of teiji, with the same maps: the agent keeps the channels going and can \
             change them; this build's programs take over after `teiji rollback` and `teiji apply`"
        ),
        Programs::Incompatible => tracing::warn!(
            "{links} {have} channels of a release of teiji with other maps: the agent keeps them going as they are; \
             `teiji rollback --force` and `teiji apply` replace them"
        ),
        Programs::Damaged(why) => tracing::error!(
            "{links} {have} channels, and some of what teiji had pinned for them is gone or is not teiji's ({why}): the agent \
             keeps them going as they are; `teiji rollback --force` and `teiji apply` replace them"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A kernel that refuses the qdisc is asked less and less often: each time it verifies the programs, in the thread that tells
    /// systemd that the agent is alive.
    #[test]
    fn a_kernel_that_refuses_the_qdisc_is_asked_more_and_more_seldom() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let refuse = |_: &Path| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Err(teiji_bpf::Error::Kernel { doing: "load the deadline qdisc".into(), reason: "no".into() })
        };
        let begun = Instant::now();
        let mut qdisc = Qdisc::acquire_by(Path::new("/nowhere"), refuse).unwrap();
        for second in 1..600 {
            qdisc.check(begun + Duration::from_secs(second)).unwrap();
        }
        // At 0, 1, 3, 7, 15, 31, 63 s, and then each minute.
        let asked = ASKED.load(Ordering::SeqCst);
        assert!((14..=17).contains(&asked), "{asked}");
        assert!(qdisc.lives() && qdisc.owner().is_none());
    }

    #[test]
    fn damaged_pins_are_looked_at_each_time() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let refuse = |folder: &Path| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Err(teiji_bpf::Error::Damaged { folder: folder.to_owned(), why: "no".into() })
        };
        let mut qdisc = Qdisc::acquire_by(Path::new("/nowhere"), refuse).unwrap();
        for _ in 0..20 {
            qdisc.check(Instant::now()).unwrap();
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 21);
    }

    /// The policy is kept all the same.
    #[test]
    fn without_a_bpf_file_system_the_agent_goes_on() {
        let none = |folder: &Path| Err(teiji_bpf::Error::NoBpfFileSystem(folder.to_owned()));
        let qdisc = Qdisc::acquire_by(Path::new("/nowhere"), none).unwrap();
        assert!(qdisc.lives() && qdisc.owner().is_none());
        assert!(qdisc.problem().is_some_and(|why| why.contains("mount -t bpf")));
    }
}
