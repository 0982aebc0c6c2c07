//! Threads and processes that are not mistaken for later ones of the same id.
//!
//! A thread is known by its id and the tick at which it started. The kernel gives an id again only after it has
//! gone through all others, so that the instant between looking at the start time and the system call that
//! follows is not enough for an id to change its owner.

use crate::root::Root;
use teiji_model::setting::{SettingError, Task};

/// The thread or process that has this id now; `None` if there is none, or only one that has ended and has not
/// been waited for. `/proc/<id>/stat` is there for threads too, though `/proc` does not list them (proc(5)).
pub fn task(root: &Root, id: u32) -> Option<Task> {
    let stat = Stat::read(root, id)?;
    let ended = stat.field(3).is_none_or(|state| matches!(state, "Z" | "X" | "x"));
    (!ended).then(|| Some(Task { id, started: stat.number(22)? })).flatten()
}

/// Ok if the thread is still the one that was meant.
pub(crate) fn alive(root: &Root, wanted: Task) -> Result<(), SettingError> {
    match task(root, wanted.id) {
        Some(found) if found == wanted => Ok(()),
        _ => Err(gone(wanted)),
    }
}

/// The error for a thread that is not there any more.
pub(crate) fn gone(task: Task) -> SettingError {
    SettingError::Gone(format!("thread {}", task.id))
}

/// `/proc/<id>/stat`.
pub(crate) struct Stat(String);

impl Stat {
    pub(crate) fn read(root: &Root, id: u32) -> Option<Self> {
        root.text(&format!("proc/{id}/stat")).map(Stat)
    }

    /// A field by its number in proc_pid_stat(5), from 3. The name, field 2, may contain anything: fields are
    /// counted from the last `)`, which closes it.
    pub(crate) fn field(&self, number: usize) -> Option<&str> {
        self.0.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)
    }

    /// A field that is a number.
    pub(crate) fn number<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.field(number)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_fields() {
        let stat = Stat("5 (a) S 1 2) R 9 8".to_owned());
        assert_eq!((stat.field(3), stat.number(4)), (Some("R"), Some(9)));
        assert_eq!(stat.number::<u64>(22), None);
    }
}
