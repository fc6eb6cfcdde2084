//! The symbols of a text and their numbers.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Bpe, Corpus};
use crate::Error;

/// With more distinct characters than this, symbols are bytes instead.
const MOST_CHARS: usize = 1024;

/// The kinds of symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolKind {
    /// The distinct characters of the text.
    Chars,
    /// The 256 bytes.
    Bytes,
    /// Byte-pair encoding by a vocabulary in a file.
    Bpe,
}

impl SymbolKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chars => "chars",
            Self::Bytes => "bytes",
            Self::Bpe => "bpe",
        }
    }
}

impl FromStr for SymbolKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let kinds = [Self::Chars, Self::Bytes, Self::Bpe];
        let kind = kinds.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| Error::value("tokens", name, "must be chars, bytes or bpe"))
    }
}

/// The symbols of a text; a symbol's place is its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vocabulary {
    /// Characters, in one string.
    Chars(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// The tokens of a file, see [`Bpe::read`].
    Bpe {
        /// The file.
        file: String,
        /// Its [fingerprint](Corpus::fingerprint).
        fingerprint: String,
        /// The number of tokens.
        tokens: usize,
    },
}

impl Vocabulary {
    /// The distinct characters of a text that is UTF-8 with at most 1024 of them, else its distinct bytes, in ascending order.
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

    /// The distinct characters of a text, in ascending order.
    ///
    /// # Errors
    /// A text that is not UTF-8, or has more than 65 536 of them.
    pub fn chars(text: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(text)
            .map_err(|_| Error::value("tokens", "chars", "the text is not UTF-8"))?;
        let distinct: BTreeSet<char> = text.chars().collect();
        if distinct.len() > 1 << 16 {
            let reason = format!("the text has {} distinct ones", distinct.len());
            return Err(Error::value("tokens", "chars", reason));
        }
        Ok(Self::Chars(distinct.into_iter().collect()))
    }

    /// All 256 bytes.
    pub fn bytes() -> Self {
        Self::Bytes((0..=255).collect())
    }

    /// Byte-pair encoding by the vocabulary in a file.
    ///
    /// # Errors
    /// The errors of [`Bpe::read`].
    pub fn bpe(file: impl AsRef<Path>) -> Result<Self, Error> {
        let file = file.as_ref().display().to_string();
        let tokens = Bpe::read(&file)?.symbols().len();
        let fingerprint = Corpus::read(std::slice::from_ref(&file))?.fingerprint();
        Ok(Self::Bpe {
            file,
            fingerprint,
            tokens,
        })
    }

    /// The tokens of a published model: those of `tokenizer.json`, `vocab.json` or RWKV's `rwkv_vocab_*.txt` in its folder.
    ///
    /// # Errors
    /// None of these files; the errors of [`Bpe::read`].
    pub fn of_model(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let entries = fs::read_dir(folder).map_err(|error| Error::read(folder, error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let rank = |name: &String| match name.as_str() {
            "tokenizer.json" => Some(0),
            "vocab.json" => Some(1),
            name if name.starts_with("rwkv_vocab_") && name.ends_with(".txt") => Some(2),
            _ => None,
        };
        let known = names.filter_map(|name| Some((rank(&name)?, name)));
        match known.min() {
            Some((_, name)) => Self::bpe(folder.join(name)),
            None => Err(Error::Unsupported(format!(
                "{}: expected a tokenizer.json, vocab.json or rwkv_vocab_*.txt",
                folder.display()
            ))),
        }
    }

    /// Reads byte pairs from another file of the same content from now on.
    ///
    /// # Errors
    /// Symbols that are not byte pairs; a file that cannot be read, or has another content.
    pub fn relocate(&mut self, to: impl AsRef<Path>) -> Result<(), Error> {
        let to = to.as_ref().display().to_string();
        let Self::Bpe {
            file, fingerprint, ..
        } = self
        else {
            let reason = "the symbols of the run are in no file";
            return Err(Error::value("vocabulary", to, reason));
        };
        pairs(&to, fingerprint)?;
        *file = to;
        Ok(())
    }

    /// The kind of the symbols.
    pub fn kind(&self) -> SymbolKind {
        match self {
            Self::Chars(_) => SymbolKind::Chars,
            Self::Bytes(_) => SymbolKind::Bytes,
            Self::Bpe { .. } => SymbolKind::Bpe,
        }
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        match self {
            Self::Chars(chars) => chars.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Bpe { tokens, .. } => *tokens,
        }
    }

    /// Whether there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of a symbol: `character`, `byte` or `token`.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Chars(_) => "character",
            Self::Bytes(_) => "byte",
            Self::Bpe { .. } => "token",
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// A symbol that is not in the vocabulary; bytes that are not UTF-8 where symbols are not bytes; a vocabulary file that cannot
    /// be read or has changed.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>, Error> {
        match self {
            Self::Chars(chars) => {
                let text = utf8(text)?;
                let numbers: HashMap<char, u32> = chars.chars().zip(0..).collect();
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
            Self::Bpe {
                file, fingerprint, ..
            } => Ok(pairs(file, fingerprint)?.encode(utf8(text)?)),
        }
    }

    /// The symbols, each as the bytes that it is written with.
    ///
    /// # Errors
    /// A vocabulary file that cannot be read or has changed.
    pub fn symbols(&self) -> Result<Vec<Vec<u8>>, Error> {
        Ok(match self {
            Self::Chars(chars) => chars.chars().map(|c| c.to_string().into_bytes()).collect(),
            Self::Bytes(bytes) => bytes.iter().map(|&byte| vec![byte]).collect(),
            Self::Bpe {
                file, fingerprint, ..
            } => pairs(file, fingerprint)?.symbols().to_vec(),
        })
    }

    fn unknown(&self, symbol: String) -> Error {
        Error::UnknownSymbol {
            symbol,
            known: self.len(),
        }
    }
}

fn utf8(text: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(text)
        .map_err(|_| Error::Unsupported("the text is not UTF-8, as the model's was".into()))
}

/// The vocabulary of a run, from the file that it began with.
fn pairs(file: &str, fingerprint: &str) -> Result<Bpe, Error> {
    let found = Corpus::read(&[file.to_string()])?.fingerprint();
    if found != fingerprint {
        return Err(Error::Unsupported(format!(
            "{file} is no longer the vocabulary that the run began with"
        )));
    }
    Bpe::read(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_in_order_there_and_back() {
        let text = "déjà vu, b";
        let vocabulary = Vocabulary::of(text.as_bytes());
        assert_eq!(vocabulary, Vocabulary::Chars(" ,bdjuvàé".into()));
        let symbols = vocabulary.symbols().unwrap();
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
    fn characters_and_bytes_as_asked_for() {
        let rich: String = (0x4e00..0x4e00 + 1025)
            .map(|c| char::from_u32(c).unwrap())
            .collect();
        assert_eq!(Vocabulary::chars(rich.as_bytes()).unwrap().len(), 1025);
        assert!(Vocabulary::chars(&[255]).is_err());
        let bytes = Vocabulary::bytes();
        assert_eq!(bytes.encode("é".as_bytes()).unwrap(), [0xc3, 0xa9]);
        for kind in [SymbolKind::Chars, SymbolKind::Bytes, SymbolKind::Bpe] {
            assert_eq!(kind.name().parse::<SymbolKind>().unwrap(), kind);
        }
        assert!("words".parse::<SymbolKind>().is_err());
    }

    #[test]
    fn a_file_of_pairs_is_read_and_recognised_again() {
        let golden = include_str!("../../tests/golden/bpe.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let file = std::env::temp_dir().join(format!("riverrun-bpe-{}.json", std::process::id()));
        std::fs::write(&file, golden["vocabulary"].to_string()).unwrap();
        let vocabulary = Vocabulary::bpe(&file).unwrap();
        assert_eq!((vocabulary.len(), vocabulary.unit()), (400, "token"));
        let text = "We'll hear further, déjà vu\n\n  together".as_bytes();
        let tokens = vocabulary.encode(text).unwrap();
        assert!(tokens.len() < text.len());
        let symbols = vocabulary.symbols().unwrap();
        let back = tokens.iter().map(|&token| &symbols[token as usize][..]);
        assert_eq!(back.collect::<Vec<_>>().concat(), text);
        assert!(vocabulary.encode(&[0xff]).is_err());
        let copy = file.with_extension("copy");
        std::fs::copy(&file, &copy).unwrap();
        let mut moved = vocabulary.clone();
        moved.relocate(&copy).unwrap();
        assert_eq!(moved.encode(text).unwrap(), tokens);
        std::fs::write(&file, format!(" {}", golden["vocabulary"])).unwrap();
        let error = vocabulary.symbols().unwrap_err().to_string();
        assert!(error.contains("no longer the vocabulary"), "{error}");
        assert!(moved.relocate(&file).is_err());
        assert!(Vocabulary::bytes().relocate(&copy).is_err());
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_file(&copy).unwrap();
    }

    #[test]
    fn the_tokens_of_a_model_are_in_its_folder() {
        let golden = include_str!("../../tests/golden/bpe.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let folder = std::env::temp_dir().join(format!("riverrun-model-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let error = Vocabulary::of_model(&folder).unwrap_err().to_string();
        assert!(error.contains("expected a tokenizer.json"), "{error}");
        // The first of several counts.
        fs::write(folder.join("vocab.json"), golden["vocabulary"].to_string()).unwrap();
        fs::write(folder.join("rwkv_vocab_v1.txt"), "nothing").unwrap();
        assert_eq!(Vocabulary::of_model(&folder).unwrap().len(), 400);
        fs::remove_dir_all(&folder).unwrap();
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
