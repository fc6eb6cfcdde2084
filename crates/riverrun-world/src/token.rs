//! The secret that the processes of a world share, hashes, and random bytes.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::io::Read;

/// 32 bytes: hashes, proofs, and numbers used once.
pub(crate) type Bytes32 = [u8; 32];

/// Random bytes of the operating system.
pub(crate) fn random() -> std::io::Result<Bytes32> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A hash of something that all ranks must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(crate) Bytes32);

impl Fingerprint {
    /// The SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl From<Bytes32> for Fingerprint {
    fn from(hash: Bytes32) -> Self {
        Self(hash)
    }
}

impl From<u128> for Fingerprint {
    fn from(hash: u128) -> Self {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&hash.to_le_bytes());
        Self(bytes)
    }
}

/// The shared secret of a world. It never travels: each side proves to know it, by HMAC-SHA256 over random numbers of both.
///
/// The default is the empty token, with which any process that knows the run's name may join.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(Vec<u8>);

/// Shows whether there is a secret, not the secret.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() {
            "Token(none)"
        } else {
            "Token(…)"
        })
    }
}

impl Token {
    /// The variable that has it.
    pub const VARIABLE: &str = "RIVERRUN_WORLD_TOKEN";

    /// A token of any length; take 32 random bytes or more.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    /// The value of `RIVERRUN_WORLD_TOKEN`, or the empty token.
    pub fn from_environment() -> Self {
        Self(
            std::env::var_os(Self::VARIABLE)
                .map(std::ffi::OsString::into_encoded_bytes)
                .unwrap_or_default(),
        )
    }

    fn mac(&self, role: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // Lengths first: no two lists of parts are the same bytes.
        for part in [role.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// The proof that the sender of `parts` in this role knows the token.
    pub(crate) fn prove(&self, role: &str, parts: &[&[u8]]) -> Bytes32 {
        self.mac(role, parts).finalize().into_bytes().into()
    }

    /// Whether a proof is right; it takes as long for any wrong one.
    pub(crate) fn accepts(&self, proof: &[u8], role: &str, parts: &[&[u8]]) -> bool {
        self.mac(role, parts).verify_slice(proof).is_ok()
    }
}

/// 32 random bytes as text, for a variable.
pub(crate) fn random_text() -> std::io::Result<String> {
    Ok(random()?.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs() {
        let (token, other) = (Token::new("secret"), Token::new("secreu"));
        let proof = token.prove("a", &[b"12", b"3"]);
        assert!(token.accepts(&proof, "a", &[b"12", b"3"]));
        assert!(!token.accepts(&proof, "a", &[b"1", b"23"]));
        assert!(!token.accepts(&proof, "b", &[b"12", b"3"]));
        assert!(!token.accepts(&proof[..31], "a", &[b"12", b"3"]));
        assert!(!other.accepts(&proof, "a", &[b"12", b"3"]));
        assert!(!Token::default().accepts(&proof, "a", &[b"12", b"3"]));
        assert!(!format!("{token:?}").contains("secret"));
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random().unwrap(), random().unwrap());
        assert_eq!(random_text().unwrap().len(), 64);
    }
}
