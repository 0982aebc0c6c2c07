//! What the kernel's answers mean, in the operator's words: only the reason, as the caller knows what was tried.

use nix::errno::Errno;
use teiji_model::resource::ResourceError;

/// This host does not have it.
pub(super) fn unsupported(why: impl Into<String>) -> ResourceError {
    ResourceError::Unsupported(why.into())
}

/// It can be read, but nobody may change it.
pub(super) fn fixed(why: &str) -> ResourceError {
    ResourceError::Unsupported(format!("it cannot be changed: {why}"))
}

/// The kernel was not even asked.
pub(super) fn impossible(why: impl Into<String>) -> ResourceError {
    ResourceError::Refused(why.into())
}

/// A value that no resource of the kind can have, or a resource of another kind.
pub(super) fn no_such_value() -> ResourceError {
    impossible("that is not a value that it can have")
}

/// The kernel refused it; `fix` is what to do.
pub(super) fn refused(errno: Errno, why: &str, fix: &str) -> ResourceError {
    ResourceError::Refused(format!("{why} ({errno:?}); {fix}"))
}

/// A privilege is missing.
pub(super) fn not_permitted(errno: Errno, needs: &str) -> ResourceError {
    ResourceError::NotPermitted(format!("that needs {needs} ({errno:?}); run teiji as root"))
}

/// A file has content that teiji does not understand.
pub(super) fn unexpected(text: &str) -> ResourceError {
    let start: String = text.trim().chars().take(60).collect();
    unsupported(format!("this kernel answers `{start}`, which teiji does not understand"))
}

/// What an error number means if the resource has no special meaning for it; `gone` names the thing that may be gone.
pub(super) fn failed(errno: Errno, gone: &str) -> ResourceError {
    match errno {
        Errno::ESRCH | Errno::ENOENT | Errno::ENODEV => ResourceError::Gone(gone.to_owned()),
        Errno::EACCES => not_permitted(errno, "root, or CAP_DAC_OVERRIDE"),
        Errno::EPERM => not_permitted(errno, "root with CAP_SYS_ADMIN"),
        Errno::EROFS => ResourceError::NotPermitted(
            "its file system is mounted read-only, as in a container (EROFS); run teiji on the host itself"
                .into(),
        ),
        Errno::EINVAL | Errno::ERANGE | Errno::EOVERFLOW => {
            refused(errno, "the kernel does not accept that value", "ask for one within its range")
        }
        Errno::EINTR | Errno::ENOBUFS => refused(
            errno,
            "the kernel's list of devices and qdiscs changed, or was cut off, each time that it was read",
            "try again when no devices come and go",
        ),
        other => ResourceError::Refused(format!("{} ({other:?})", other.desc().to_lowercase())),
    }
}
