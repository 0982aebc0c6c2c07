//! The qdisc, as long as this agent has it: got at the start, replaced by this build's once no link has a former one, given
//! back at the end.
//!
//! ```text
//!  start ──► kept ──(no link has the former one any more)──► kept: this build's ──► end
//!    ├──► damaged: pins are missing, and links may have it ──(tries again every time)──► kept
//!    └──► none: the kernel has no BPF qdiscs
//! ```
//! Whatever is wrong with the pins, the policy is kept: an agent that did not start because of them would neither keep it nor
//! say in `teiji status` what is wrong.

use super::Error;
use super::heartbeat::HeartbeatThread;
use super::pin_watch::PinWatch;
use std::path::Path;
use teiji_bpf::qdisc_edf::{HEARTBEAT_TIMEOUT, Programs, QdiscOwner};
use teiji_model::text;

pub(super) struct Qdisc<'a> {
    pins: &'a Path,
    watch: PinWatch<'a>,
    kept: Option<(QdiscOwner, HeartbeatThread)>,
    /// What is wrong with the pins, if that is why it is not kept.
    damage: Option<String>,
}

impl<'a> Qdisc<'a> {
    /// # Errors
    /// If another agent keeps the pins, or the kernel does not accept the qdisc although it has BPF qdiscs.
    pub(super) fn acquire(pins: &'a Path) -> Result<Qdisc<'a>, Error> {
        let mut qdisc = Qdisc { pins, watch: PinWatch::new(pins), kept: None, damage: None };
        qdisc.try_acquire()?;
        Ok(qdisc)
    }

    fn try_acquire(&mut self) -> Result<(), Error> {
        let former = self.damage.take();
        match QdiscOwner::acquire(self.pins) {
            Ok(owner) => {
                let heartbeat = HeartbeatThread::start(owner.heartbeat())?;
                warn_of_other(&owner);
                if former.is_some() {
                    tracing::info!("the pins are as they should be again: the agent keeps deadlines");
                }
                self.kept = Some((owner, heartbeat));
            }
            Err(why @ (teiji_bpf::Error::Missing { .. } | teiji_bpf::Error::NoBtf)) => {
                tracing::info!("{why}; the agent keeps the policy only, and channels by HFSC need no agent");
            }
            Err(why @ (teiji_bpf::Error::Damaged { .. } | teiji_bpf::Error::Kernel { .. })) => {
                let why = why.to_string();
                if former.as_ref() != Some(&why) {
                    tracing::error!("{why}; meanwhile it keeps the rest of the policy");
                }
                self.damage = Some(why);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The owner, if it is kept.
    pub(super) fn owner(&self) -> Option<&QdiscOwner> {
        self.kept.as_ref().map(|(owner, _)| owner)
    }

    /// Whether the heartbeat is sent, if there is anything to send it for.
    pub(super) fn lives(&self) -> bool {
        self.kept.as_ref().is_none_or(|(_, heartbeat)| heartbeat.runs())
    }

    /// Looks at the pins, and takes the qdisc of this build once no link has the former one.
    ///
    /// # Errors
    /// If others have the pins now; those of [`Qdisc::acquire`].
    pub(super) fn check(&mut self) -> Result<(), Error> {
        if self.damage.is_some() {
            return self.try_acquire();
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
