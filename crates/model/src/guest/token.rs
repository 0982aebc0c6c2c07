//! The token that a host and a guest share where the address proves nothing: over TCP. Each proves to the other that it
//! knows it; the token itself is never sent.
//!
//! A proof is HMAC-SHA-256, with the token as its key, of the side that proves, the guest's nonce and the host's: so none
//! can be used again on another connection, nor as that of the other side. The host proves first: a guest tells a stranger
//! nothing that it could guess tokens with. What follows on the connection is neither encrypted nor protected.

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::io::{self, Read};

/// Bytes of a [`Nonce`].
pub const NONCE: usize = 32;
/// Bytes of a proof.
pub const PROOF: usize = 32;

/// Random bytes of one side, for one connection.
pub type Nonce = [u8; NONCE];

/// Over TCP, the first frame of all: the guest asks for a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The guest's.
    pub nonce: Nonce,
}

/// The host proves that it may ask, and asks for a proof of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The host's.
    pub nonce: Nonce,
    /// [`Token::proof`] of [`Side::Host`].
    pub proof: [u8; PROOF],
}

/// The guest proves that it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// [`Token::proof`] of [`Side::Guest`].
    pub proof: [u8; PROOF],
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host.
    Host,
    /// The guest.
    Guest,
}

/// The nonces of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonces {
    /// The guest's.
    pub guest: Nonce,
    /// The host's.
    pub host: Nonce,
}

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("it cannot be read")]
    Unreadable(#[from] io::Error),
    /// Others can read it, or do more with it.
    #[error("others can read it (mode {mode:o}): use `chmod 600`, and a new token if they may have read it")]
    Public {
        /// Its permissions.
        mode: u32,
    },
    /// It is too short or too long.
    #[error(
        "it has {len} bytes: a token has {} to {}; `openssl rand -hex 32` makes one",
        Token::SHORTEST,
        Token::LONGEST
    )]
    Length {
        /// Bytes, without white space at the ends.
        len: usize,
    },
}

/// A token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

/// Does not show it.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// The fewest bytes: what can be guessed is no secret, and whoever a proof is shown to can try guesses.
    pub const SHORTEST: usize = 16;
    /// The most bytes.
    pub const LONGEST: usize = 256;

    /// Reads one from a file with these permissions. White space at the ends does not belong to it.
    ///
    /// # Errors
    /// Any of [`TokenError`].
    pub fn read(file: impl Read, permissions: u32) -> Result<Token, TokenError> {
        let mode = permissions & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Public { mode });
        }
        let mut bytes = Vec::new();
        // One more than may be, with room for white space.
        file.take(Token::LONGEST as u64 + 64).read_to_end(&mut bytes)?;
        let token = bytes.trim_ascii();
        if !(Token::SHORTEST..=Token::LONGEST).contains(&token.len()) {
            return Err(TokenError::Length { len: token.len() });
        }
        Ok(Token(token.to_vec()))
    }

    /// That this side knows the token.
    pub fn proof(&self, side: Side, nonces: &Nonces) -> [u8; PROOF] {
        self.mac(side, nonces).finalize().into_bytes().into()
    }

    /// Whether this is the proof of that side. How long that takes does not depend on where it differs.
    pub fn is_proof(&self, shown: &[u8; PROOF], side: Side, nonces: &Nonces) -> bool {
        self.mac(side, nonces).verify_slice(shown).is_ok()
    }

    fn mac(&self, side: Side, nonces: &Nonces) -> Hmac<Sha256> {
        let who: &[u8] = match side {
            Side::Host => b"teiji-host\0",
            Side::Guest => b"teiji-guest\0",
        };
        #[allow(clippy::expect_used, reason = "a key of HMAC may have any length (RFC 2104, section 2)")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length");
        for part in [who, &nonces.guest, &nonces.host] {
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8]) -> Token {
        Token::read(bytes, 0o100600).unwrap()
    }

    const NONCES: Nonces = Nonces { guest: [1; NONCE], host: [2; NONCE] };

    #[test]
    fn a_proof_is_of_one_token_one_side_and_one_connection() {
        let own = token(b"  0123456789abcdef\n");
        assert_eq!(own, token(b"0123456789abcdef"));
        let proof = own.proof(Side::Host, &NONCES);
        assert!(own.is_proof(&proof, Side::Host, &NONCES));
        assert!(!own.is_proof(&proof, Side::Guest, &NONCES));
        for other in [
            Nonces { guest: [3; NONCE], ..NONCES },
            Nonces { host: [3; NONCE], ..NONCES },
            Nonces { guest: NONCES.host, host: NONCES.guest },
        ] {
            assert!(!own.is_proof(&proof, Side::Host, &other), "{other:?}");
        }
        for other in [&b"0123456789abcdeF"[..], b"0123456789abcdefg", b"0123456789abcdef0123456789abcdef"] {
            assert!(!token(other).is_proof(&proof, Side::Host, &NONCES));
        }
        for bit in 0..8 * PROOF {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!own.is_proof(&wrong, Side::Host, &NONCES), "{bit}");
        }
    }

    /// Computed with Python's `hmac`.
    #[test]
    fn a_proof_is_what_others_compute() {
        let hex = |side| {
            let proof = token(b"0123456789abcdef").proof(side, &NONCES);
            proof.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hex(Side::Host), "a37154a348fe6d07edd01947f8c6aad90c3fb3da4d3ac48ec7e4d5ccd26b54ac");
        assert_eq!(hex(Side::Guest), "53dcfe05d7e775ddf78d88faa6e5adcbc9382698ac0b264767064086feab02e9");
    }

    #[test]
    fn files_that_are_no_secret_are_refused() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let refused = Token::read(&b"0123456789abcdef"[..], 0o100000 | mode);
            assert!(matches!(refused, Err(TokenError::Public { mode: m }) if m == mode));
        }
        for (contents, len) in [(&b"\n"[..], 0), (b"short", 5), (&[b'x'; 300], 300)] {
            assert!(matches!(Token::read(contents, 0o400), Err(TokenError::Length { len: l }) if l == len));
        }
        // No more is read than a token may have.
        let endless = io::repeat(b'x');
        assert!(matches!(Token::read(endless, 0o600), Err(TokenError::Length { len: 320 })));
    }
}
