//! The file with the [`Token`] that a host has to know over TCP, where its address proves nothing. Only its owner can read it.
use nix::fcntl::OFlag;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use teiji_model::guest::{Token, TokenError};

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the token file {path}, so no host could prove over TCP that it may ask")]
pub struct Error {
    path: PathBuf,
    #[source]
    source: TokenError,
}

/// Reads the token of a file.
///
/// # Errors
/// If it cannot be read, others can read it, or it has no token.
pub fn read(path: &Path) -> Result<Token, Error> {
    open(path).map_err(|source| Error { path: path.to_owned(), source })
}

fn open(path: &Path) -> Result<Token, TokenError> {
    // A pipe that nobody writes to would not be opened otherwise.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let info = file.metadata()?;
    if !info.is_file() {
        return Err(io::Error::other("not a regular file").into());
    }
    Token::read(file, info.mode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_files_of_one_user_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "0123456789abcdef").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(&path).unwrap(), Token::read(&b"0123456789abcdef"[..], 0o600).unwrap());
        set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read(&path).unwrap_err().source, TokenError::Public { mode: 0o640 }));
        for none in [folder.path(), &folder.path().join("none")] {
            assert!(matches!(read(none).unwrap_err().source, TokenError::Unreadable(_)));
        }
    }
}
