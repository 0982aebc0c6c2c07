//! What is being tried, and what the kernel's answer to it means in the operator's words.

use nix::errno::Errno;
use teiji_model::setting::{Setting, SettingError, Value};
use teiji_model::text::printable;

/// `CAP_SYS_NICE` of `linux/capability.h`.
pub(super) const CAP_SYS_NICE: u8 = 23;

/// Reading or changing a setting. Its errors begin with what could not be done.
pub(super) struct Attempt<'a> {
    setting: &'a Setting,
    value: Option<&'a Value>,
}

impl<'a> Attempt<'a> {
    pub(super) fn reading(setting: &'a Setting) -> Self {
        Attempt { setting, value: None }
    }

    pub(super) fn writing(setting: &'a Setting, value: &'a Value) -> Self {
        Attempt { setting, value: Some(value) }
    }

    /// What cannot be done, and why. Names of groups are others' text.
    fn says(&self, why: &str) -> String {
        let setting = printable(&self.setting.to_string());
        match self.value {
            None => format!("cannot read {setting}: {why}"),
            Some(value) => format!("cannot set {setting} to {}: {why}", printable(&value.to_string())),
        }
    }

    /// This host does not have it.
    pub(super) fn unsupported(&self, why: &str) -> SettingError {
        SettingError::Unsupported(self.says(why))
    }

    /// The kernel was not even asked.
    pub(super) fn impossible(&self, why: &str) -> SettingError {
        SettingError::Refused(self.says(why))
    }

    /// The kernel refused it; `cure` is what to do.
    pub(super) fn refused(&self, errno: Errno, why: &str, cure: &str) -> SettingError {
        SettingError::Refused(self.says(&format!("{why} ({errno:?}); {cure}")))
    }

    /// A privilege is missing.
    pub(super) fn not_permitted(&self, errno: Errno, needs: &str) -> SettingError {
        SettingError::NotPermitted(self.says(&format!("that needs {needs} ({errno:?}); run teiji as root")))
    }

    /// A file holds what teiji does not understand.
    pub(super) fn unexpected(&self, text: &str) -> SettingError {
        let start: String = text.trim().chars().take(60).collect();
        self.unsupported(&format!(
            "this kernel answers `{}`, which teiji does not understand",
            printable(&start)
        ))
    }

    /// What an error number means where the setting has no meaning of its own for it; `gone` is what is not
    /// there if it is not there.
    pub(super) fn failed(&self, errno: Errno, gone: &str) -> SettingError {
        match errno {
            Errno::ESRCH | Errno::ENOENT | Errno::ENODEV => SettingError::Gone(printable(gone)),
            Errno::EACCES => self.not_permitted(errno, "root, or CAP_DAC_OVERRIDE"),
            Errno::EPERM => self.not_permitted(errno, "root with CAP_SYS_ADMIN"),
            Errno::EROFS => SettingError::NotPermitted(self.says(
                "its file system is mounted read-only, as in a container (EROFS); run teiji on the host itself",
            )),
            Errno::EINVAL | Errno::ERANGE | Errno::EOVERFLOW => {
                self.refused(errno, "the kernel does not accept that value", "ask for one within its range")
            }
            Errno::EINTR | Errno::ENOBUFS => self.refused(
                errno,
                "the kernel's list of devices and qdiscs changed, or was cut off, each time that it was read",
                "try again when no devices come and go",
            ),
            other => SettingError::Refused(self.says(&format!("{} ({other:?})", other.desc().to_lowercase()))),
        }
    }
}
