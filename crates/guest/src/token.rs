//! The secret that a host shows over TCP, where its address proves nothing. It is in a file that only its owner can read.
use nix::fcntl::OFlag;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use teiji_model::guest::MAX_TOKEN;

/// The fewest bytes of a token: what can be guessed is no secret.
const SHORTEST: usize = 16;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the token file {path}, so no host could prove over TCP that it may ask")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others can read it.
    #[error(
        "others can read the token file {path} (mode {mode:o}): use `chmod 600`, and a new token if they may have read it"
    )]
    Public {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds no token.
    #[error(
        "the token file {path} has {len} bytes: a token has {SHORTEST} to {MAX_TOKEN}; `openssl rand -hex 32` makes one"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes, without white space at the ends.
        len: usize,
    },
}

/// A token.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// Reads the token of a file, without white space at its ends.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn read(path: &Path) -> Result<Token, Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(unreadable)?;
        let info = file.metadata().map_err(unreadable)?;
        if !info.is_file() {
            return Err(unreadable(io::Error::other("not a regular file")));
        }
        let mode = info.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Error::Public { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        // One more than may be, with room for white space.
        file.take(MAX_TOKEN as u64 + 64).read_to_end(&mut bytes).map_err(unreadable)?;
        let token = bytes.trim_ascii();
        if !(SHORTEST..=MAX_TOKEN).contains(&token.len()) {
            return Err(Error::Length { path: path.to_owned(), len: token.len() });
        }
        Ok(Token(token.to_vec()))
    }

    /// Whether `shown` is the token. How long that takes depends on the length of `shown` alone.
    pub fn is(&self, shown: &[u8]) -> bool {
        let mut different = u8::from(shown.len() != self.0.len());
        for (i, byte) in shown.iter().enumerate() {
            // Each byte is compared with one of the token, also beyond its end.
            different |= std::hint::black_box(byte ^ self.0[i % self.0.len()]);
        }
        std::hint::black_box(different) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    fn file(contents: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, contents).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let (_folder, path) = file(b"  0123456789abcdef\n", 0o600);
        let token = Token::read(&path).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in [
            &b""[..],
            b"0",
            b"0123456789abcde",
            b"0123456789abcdefg",
            b"0123456789abcdef0123456789abcdef",
            b"0123456789abcdeF",
            b"1123456789abcdef",
            b"0123456789abcdef\n",
        ] {
            assert!(!token.is(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn files_that_are_no_secret_are_refused() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let (_folder, path) = file(b"0123456789abcdef", mode);
            assert!(matches!(Token::read(&path), Err(Error::Public { mode: m, .. }) if m == mode));
        }
        for (contents, len) in [(&b"\n"[..], 0), (b"short", 5), (&[b'x'; 300], 300)] {
            let (_folder, path) = file(contents, 0o600);
            assert!(matches!(Token::read(&path), Err(Error::Length { len: l, .. }) if l == len));
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Token::read(folder.path()), Err(Error::Unreadable { .. })));
        assert!(matches!(Token::read(&folder.path().join("none")), Err(Error::Unreadable { .. })));
    }
}
