//! The symbols of a text and their numbers.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::Error;

/// With more distinct characters than this, symbols are bytes instead.
const MOST_CHARS: usize = 1024;

/// The distinct symbols of a text in ascending order; a symbol's place is its token.
///
/// Symbols are characters where the text is UTF-8 with at most 1024 distinct ones, else bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vocabulary {
    /// Characters, in one string.
    Chars(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Vocabulary {
    /// The vocabulary of a text.
    pub fn of(text: &[u8]) -> Self {
        if let Ok(text) = std::str::from_utf8(text) {
            let mut distinct = BTreeSet::new();
            let mut seen = [false; 128];
            let few = text.chars().all(|c| {
                // Nearly every character of nearly every text is ASCII: keep those off the tree.
                let known = c.is_ascii() && std::mem::replace(&mut seen[c as usize & 127], true);
                known || !distinct.insert(c) || distinct.len() <= MOST_CHARS
            });
            if few {
                return Self::Chars(distinct.into_iter().collect());
            }
        }
        let mut seen = [false; 256];
        text.iter().for_each(|&byte| seen[byte as usize] = true);
        Self::Bytes((0..=255).filter(|&byte| seen[byte as usize]).collect())
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        match self {
            Self::Chars(chars) => chars.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of a symbol: `character` or `byte`.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Chars(_) => "character",
            Self::Bytes(_) => "byte",
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// A symbol that is not in the vocabulary; bytes that are not UTF-8 where symbols are characters.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u16>, Error> {
        match self {
            Self::Chars(chars) => {
                let text = std::str::from_utf8(text).map_err(|_| {
                    Error::Unsupported("the text is not UTF-8, as the model's was".into())
                })?;
                let numbers: HashMap<char, u16> = chars.chars().zip(0..).collect();
                let mut ascii = [None; 128];
                for (&char, &number) in &numbers {
                    if char.is_ascii() {
                        ascii[char as usize] = Some(number);
                    }
                }
                text.chars()
                    .map(|char| {
                        let number = match ascii.get(char as usize) {
                            Some(&number) => number,
                            None => numbers.get(&char).copied(),
                        };
                        number.ok_or_else(|| self.unknown(format!("{char:?}")))
                    })
                    .collect()
            }
            Self::Bytes(bytes) => {
                let mut numbers = [None; 256];
                for (&byte, number) in bytes.iter().zip(0..) {
                    numbers[byte as usize] = Some(number);
                }
                text.iter()
                    .map(|&byte| {
                        numbers[byte as usize]
                            .ok_or_else(|| self.unknown(format!("byte {byte:#04x}")))
                    })
                    .collect()
            }
        }
    }

    /// The symbols, each as the bytes that it is written with.
    pub fn symbols(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Chars(chars) => chars.chars().map(|c| c.to_string().into_bytes()).collect(),
            Self::Bytes(bytes) => bytes.iter().map(|&byte| vec![byte]).collect(),
        }
    }

    fn unknown(&self, symbol: String) -> Error {
        Error::UnknownSymbol {
            symbol,
            known: self.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_in_order_there_and_back() {
        let text = "déjà vu, b";
        let vocabulary = Vocabulary::of(text.as_bytes());
        assert_eq!(vocabulary, Vocabulary::Chars(" ,bdjuvàé".into()));
        let symbols = vocabulary.symbols();
        let back: Vec<u8> = vocabulary
            .encode(text.as_bytes())
            .unwrap()
            .into_iter()
            .flat_map(|token| symbols[token as usize].clone())
            .collect();
        assert_eq!(back, text.as_bytes());
    }

    #[test]
    fn bytes_where_the_text_is_not_utf8_or_too_rich() {
        assert_eq!(
            Vocabulary::of(&[3, 255, 3, 0]),
            Vocabulary::Bytes(vec![0, 3, 255])
        );
        let rich: String = (0x4e00..0x4e00 + 1025)
            .map(|c| char::from_u32(c).unwrap())
            .collect();
        assert!(matches!(
            Vocabulary::of(rich.as_bytes()),
            Vocabulary::Bytes(_)
        ));
        let fits: String = rich.chars().take(1024).collect();
        assert_eq!(Vocabulary::of(fits.as_bytes()).len(), 1024);
    }

    #[test]
    fn an_unknown_symbol_is_named() {
        let error = Vocabulary::of(b"abc").encode(b"abz").unwrap_err();
        assert_eq!(
            error.to_string(),
            "'z' is not among the 3 symbols this model was trained on"
        );
    }
}
