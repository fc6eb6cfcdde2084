//! Reading the text of a run.

use std::fs;
use std::io::{self, Read};

use crate::Error;

/// The joined bytes of a run's text, and their fingerprint.
#[derive(Debug, Clone)]
pub struct Corpus {
    bytes: Vec<u8>,
    label: String,
}

impl Corpus {
    /// Reads files in order, `-` being standard input. A file that does not end its last line has it
    /// ended, so that two files never share a line.
    ///
    /// # Errors
    /// A file that cannot be read; a text without a byte.
    pub fn read(sources: &[String]) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        for source in sources {
            if bytes.last().is_some_and(|&last| last != b'\n') {
                bytes.push(b'\n');
            }
            if source == "-" {
                io::stdin()
                    .read_to_end(&mut bytes)
                    .map_err(|error| Error::read("standard input", error))?;
            } else {
                bytes.extend(fs::read(source).map_err(|error| Error::read(source, error))?);
            }
        }
        Self::from_bytes(bytes, sources.join(", "))
    }

    /// Wraps a text that is already in memory; `label` names it in messages.
    ///
    /// # Errors
    /// A text without a byte.
    pub fn from_bytes(bytes: Vec<u8>, label: impl Into<String>) -> Result<Self, Error> {
        let label = label.into().replace(char::is_control, "?");
        if bytes.is_empty() {
            return Err(Error::EmptyText(label));
        }
        Ok(Self { bytes, label })
    }

    /// The text.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The source of the text, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// A number that changes with the text (64-bit FNV-1a), so that a run is never resumed on another.
    pub fn fingerprint(&self) -> String {
        let hash = self
            .bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        format!("{hash:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_fnv_1a() {
        let corpus = Corpus::from_bytes(b"foobar".to_vec(), "test").unwrap();
        assert_eq!(corpus.fingerprint(), "85944171f73967e8");
    }

    #[test]
    fn an_empty_text_is_refused() {
        assert!(matches!(
            Corpus::from_bytes(vec![], "x"),
            Err(Error::EmptyText(_))
        ));
    }
}
