//! The errors of an operation, and the messages of one that succeeds.

use serde::Serialize;
use std::fmt;
use std::io;
use std::path::PathBuf;
use teiji_model::resource::{Resource, ResourceError, Value};
use teiji_model::text::printable;

/// Why an operation failed, and the state of the host after that.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another teiji has the lock.
    #[error(
        "another teiji{} is changing settings, so nothing was done: try again when it has finished (`teiji apply` and \
         `teiji rollback` can wait: `--wait 10s`). To stop it, send it SIGTERM, unless it is the agent: it then undoes its changes.",
        pid(.0)
    )]
    Busy(Option<u32>),
    /// An apply waits for its confirmation.
    #[error(
        "an apply (pid {pid}) waits for its confirmation for {} s more, so this one did nothing: `teiji confirm` keeps its \
         changes, `teiji rollback` undoes them", left.as_secs_f64().ceil()
    )]
    Awaiting {
        /// The process that applied.
        pid: u32,
        /// How much time is left.
        left: std::time::Duration,
    },
    /// The plan was made for another policy than the one in force.
    #[error(
        "the policy that this was planned for is not in force any more, so nothing was changed: somebody has applied another \
         one or rolled back; plan again"
    )]
    OtherPolicy,
    /// The changes of an apply that waited for its confirmation were undone by another process.
    #[error("the changes have been undone by another teiji: a rollback, or because nobody confirmed in time")]
    UndoneByAnother,
    /// An apply that waits for its confirmation cannot read whether it was confirmed.
    #[error(
        "all steps are done, but whether they were confirmed cannot be read ({}): without a confirmation in time they are undone; \
         see `teiji status`; `teiji confirm` keeps them, `teiji rollback` undoes them", cause(.0)
    )]
    FateUnknown(Box<Error>),
    /// The state directory cannot be used.
    #[error("cannot {what} {path}, so nothing was changed: fix that and run the command again")]
    State {
        /// What was to be done with it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file of the state directory is not as teiji wrote it.
    #[error(
        "{path} is damaged at line {line} ({why}), so its settings cannot be restored and nothing is changed: its \
         lines name each setting with its former value (`present`, `original`); restore them by hand and move \
         the file away"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A file of the state directory is of another version of teiji.
    #[error(
        "{path} was written by another version of teiji (format {found}; this one reads {oldest} to {known}), so nothing \
         is changed: run `rollback` with that version first"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The oldest that this one reads.
        oldest: u32,
        /// This one's.
        known: u32,
    },
    /// A setting is not what it was when the plan was made.
    #[error(
        "{what} was changed meanwhile from {} to {}, so nothing was changed: plan again",
        shown(.planned), shown(.found)
    )]
    Changed {
        /// The setting and whose it is.
        what: String,
        /// What the plan says.
        planned: Value,
        /// What it is.
        found: Value,
    },
    /// A setting cannot be read, so it could not be restored later.
    #[error("{what} cannot be read ({}), so nothing was changed: plan again", shown(.why))]
    Unreadable {
        /// The setting and whose it is.
        what: String,
        /// Why.
        why: ResourceError,
    },
    /// The plan was not carried out, and the host is as it was before.
    #[error("{why}; what was done has been undone{}", listed(.messages))]
    Undone {
        /// Why.
        why: Box<Failure>,
        /// What was not undone because someone else has changed it.
        messages: Vec<Message>,
    },
    /// The plan was not carried out, and the host is not as it was before.
    #[error("{why}; {}", unrestored(.failed, .path, .messages))]
    NotUndone {
        /// Why.
        why: Box<Failure>,
        /// What could not be restored.
        failed: Vec<Failed>,
        /// What else there is to tell.
        messages: Vec<Message>,
        /// The journal that records them.
        path: PathBuf,
    },
    /// Settings could not be restored.
    #[error("{}", unrestored(.failed, .path, .messages))]
    Unrestored {
        /// Which and why.
        failed: Vec<Failed>,
        /// What else there is to tell.
        messages: Vec<Message>,
        /// The journal that records them.
        path: PathBuf,
    },
    /// Everything is done, but the state directory could not be updated completely.
    #[error(
        "all settings are as asked for, but {path} could not be updated: free space or repair the disk; the next \
         command that changes settings completes it"
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// `confirm` without a transaction.
    #[error("there is nothing to confirm: no `apply --confirm-within` is under way")]
    NothingToConfirm,
    /// `confirm` of a transaction that does not wait for it.
    #[error(
        "teiji (pid {0}) does not wait for a confirmation (yet): confirm once it says that all is applied"
    )]
    NotAwaiting(u32),
    /// `confirm` after its time, or of an apply that had failed or ended.
    #[error("too late to confirm: the changes have been undone{}", listed(.0))]
    TooLate(Vec<Message>),
}

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The kernel refused a step.
    #[error("cannot change {what} to {}: {}", shown(.wanted), shown(.why))]
    Step {
        /// The setting and whose it is.
        what: String,
        /// What it should have been.
        wanted: Value,
        /// Why not.
        why: ResourceError,
    },
    /// The kernel accepted a value and stored another one.
    #[error("{what} should be {}, but the kernel made it {}", shown(.wanted), shown(.got))]
    Mismatch {
        /// The setting and whose it is.
        what: String,
        /// What was written.
        wanted: Value,
        /// What was read back.
        got: Value,
    },
    /// The journal cannot be written, so nothing more may be done.
    #[error(
        "cannot write {path} ({source}), and no step may begin before it is recorded: free space or repair the disk"
    )]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nobody confirmed in time.
    #[error("nobody confirmed within {0:?}")]
    NotConfirmed(std::time::Duration),
    /// The operator or the system requested the end.
    #[error("it was interrupted")]
    Stopped,
}

/// A setting that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The setting and whose it is; printable.
    pub what: String,
    /// Why not.
    pub why: ResourceError,
}

/// Something that happened during an operation and is no error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// A transaction or held settings of another boot were discarded.
    OtherBoot,
    /// An apply whose process had ended in the middle was undone.
    Undone {
        /// Whose it was.
        pid: u32,
    },
    /// An apply that waited for its confirmation was undone by this rollback.
    UndoneBeforeConfirmation {
        /// The process that applied.
        pid: u32,
    },
    /// An apply that nobody had confirmed in time was undone.
    NotConfirmed {
        /// The process that applied.
        pid: u32,
    },
    /// A rollback whose process had ended was completed.
    RolledBack {
        /// Whose it was.
        pid: u32,
    },
    /// A commit whose process had ended was completed.
    Committed {
        /// Whose it was.
        pid: u32,
    },
    /// A setting is gone with its task, and need not be restored.
    Gone {
        /// The setting and whose it is; printable.
        what: String,
    },
    /// A setting is switched off, and stays held until it can be restored.
    Offline {
        /// The setting and whose it is; printable.
        what: String,
        /// Why it could not be restored.
        why: String,
    },
    /// A setting was changed by someone else, and was left alone.
    Foreign {
        /// The setting and whose it is; printable.
        what: String,
        /// The value that teiji set.
        ours: Value,
        /// What it is.
        found: Value,
    },
    /// An operation could not be reversed, and was left in a consistent state.
    Stopped {
        /// The setting and whose it is.
        what: String,
        /// Why not.
        why: String,
    },
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::OtherBoot => f.write_str(
                "the host has booted since teiji changed it, which reset every setting: the record of settings is removed",
            ),
            Message::Undone { pid } => {
                write!(f, "teiji (pid {pid}) was interrupted: its changes were undone")
            }
            Message::UndoneBeforeConfirmation { pid } => {
                write!(f, "the apply (pid {pid}) that waited for its confirmation was undone")
            }
            Message::NotConfirmed { pid } => {
                write!(f, "nobody confirmed the apply (pid {pid}) in time: its changes were undone")
            }
            Message::RolledBack { pid } => {
                write!(f, "a rollback (pid {pid}) was interrupted: it has been completed")
            }
            Message::Committed { pid } => {
                write!(f, "teiji (pid {pid}) was interrupted after its last step: its changes stay")
            }
            Message::Gone { what } => write!(f, "{what} is gone, so there is nothing to restore"),
            Message::Offline { what, why } => f.write_str(&printable(&format!(
                "{what} could not be restored ({why}): it stays held, and a later rollback restores it"
            ))),
            Message::Stopped { what, why } => f.write_str(&printable(&format!(
                "{what} could not be undone ({why}), and was left in a consistent state"
            ))),
            Message::Foreign { what, ours, found } => f.write_str(&printable(&format!(
                "{what} was changed by someone else from {ours} to {found}, and was left alone"
            ))),
        }
    }
}

/// A setting and whose it is, to print.
pub(super) fn what(setting: &Resource, whose: &str) -> String {
    printable(&format!("{setting} ({whose})"))
}

/// Values contain paths of control groups, which are untrusted text.
fn shown(value: &impl fmt::Display) -> String {
    printable(&value.to_string())
}

/// What failed, without what follows from it for an operation that has done nothing yet.
fn cause(error: &Error) -> String {
    match error {
        Error::State { what, path, source } => format!("cannot {what} {}: {source}", path.display()),
        Error::Damaged { path, line, why } => format!("{} is damaged at line {line}: {why}", path.display()),
        Error::Version { path, .. } => format!("{} was written by another version of teiji", path.display()),
        error => error.to_string(),
    }
}

fn pid(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

fn listed(messages: &[Message]) -> String {
    messages.iter().map(|n| format!("; {n}")).collect()
}

fn unrestored(failed: &[Failed], path: &std::path::Path, messages: &[Message]) -> String {
    let failed: Vec<String> = failed.iter().map(|f| printable(&format!("{}: {}", f.what, f.why))).collect();
    format!(
        "not all settings could be restored: {}; {} records them: fix the cause and run the command again, or move \
         that file away to leave the settings as they are{}",
        failed.join("; "),
        path.display(),
        listed(messages)
    )
}
