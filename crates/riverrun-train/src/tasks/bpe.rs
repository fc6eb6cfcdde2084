//! Byte-pair encoding with GPT-2's words.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use regex::Regex;

use crate::Error;

/// The words of a text, in each of which pairs are joined: contractions, letters, digits, other symbols, spaces. Where GPT-2's
/// own pattern has `\s+(?!\S)|\s+`, `\s+` is shortened afterwards.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// Byte-pair encoding: in each word of a text, the pair of neighbours whose union has the lowest token is joined until no union
/// of neighbours is a token.
///
/// Source: Sennrich et al., *Neural Machine Translation of Rare Words with Subword Units* (2016), section 3.2; on bytes: Radford
/// et al., *Language Models are Unsupervised Multitask Learners* (2019), section 2.2.
#[derive(Debug, Clone)]
pub struct Bpe {
    /// The bytes of each token.
    symbols: Vec<Vec<u8>>,
    tokens: HashMap<Vec<u8>, u16>,
    words: Regex,
}

impl Bpe {
    /// Reads a vocabulary in the form of GPT-2's `vocab.json`, also named `encoder.json`: an object with a number for each
    /// token, in whose name every byte is a printable character. Tokens are numbered in the order in which pairs are joined.
    ///
    /// # Errors
    /// A file that cannot be read or is no such vocabulary.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = fs::read(path).map_err(|error| Error::read(path, error))?;
        Self::parse(&text).map_err(|reason| Error::damaged(path, reason))
    }

    fn parse(json: &[u8]) -> Result<Self, String> {
        let named: HashMap<String, usize> = serde_json::from_slice(json)
            .map_err(|error| format!("not a vocabulary of numbered tokens: {error}"))?;
        if named.len() > 1 << 16 {
            return Err(format!("{} tokens, more than 65536", named.len()));
        }
        let bytes = bytes_by_character();
        let mut symbols = vec![None; named.len()];
        for (name, number) in named {
            let symbol = name.chars().map(|c| bytes.get(&c).copied());
            // A token of another kind, such as the end of a text, stands for its name.
            let symbol: Option<Vec<u8>> = symbol.collect();
            let symbol = symbol.unwrap_or_else(|| name.clone().into_bytes());
            match symbols.get_mut(number) {
                Some(place) if place.is_none() => *place = Some(symbol),
                _ => {
                    return Err(format!(
                        "token {name:?} has the number {number}, which is taken or too large"
                    ));
                }
            }
        }
        let symbols: Vec<Vec<u8>> = symbols.into_iter().flatten().collect();
        let numbered = symbols.iter().cloned().zip(0..=u16::MAX);
        let tokens: HashMap<Vec<u8>, u16> = numbered.collect();
        match (0..=255u8).find(|&byte| !tokens.contains_key(&[byte][..])) {
            Some(byte) => Err(format!("no token for the byte {byte:#04x}")),
            None => Ok(Self {
                symbols,
                tokens,
                words: Regex::new(WORDS).expect("the pattern is right"),
            }),
        }
    }

    /// The bytes of each token.
    pub fn symbols(&self) -> &[Vec<u8>] {
        &self.symbols
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u16> {
        let mut known: HashMap<&str, Vec<u16>> = HashMap::new();
        let (mut tokens, mut at) = (Vec::with_capacity(text.len() / 3), 0);
        while let Some(word) = self.words.find_at(text, at) {
            let mut word = word.as_str();
            // The last of several spaces before a word belongs to the word, or stands alone.
            let mut spaces = word.chars().rev();
            if let (Some(last), Some(_)) = (spaces.next(), spaces.next())
                && word.chars().all(char::is_whitespace)
                && at + word.len() < text.len()
            {
                word = &word[..word.len() - last.len_utf8()];
            }
            at += word.len();
            let joined = known.entry(word).or_insert_with(|| self.joined(word));
            tokens.extend_from_slice(joined);
        }
        tokens
    }

    /// The tokens of a word.
    fn joined(&self, word: &str) -> Vec<u16> {
        let bytes = word.as_bytes();
        // Where each part starts, and the end.
        let mut starts: Vec<usize> = (0..=bytes.len()).collect();
        let token = |starts: &[usize], part: usize, parts: usize| {
            let end = *starts.get(part + parts)?;
            self.tokens.get(&bytes[starts[part]..end]).copied()
        };
        loop {
            let pairs = (0..starts.len()).filter_map(|part| Some((token(&starts, part, 2)?, part)));
            match pairs.min() {
                Some((_, part)) => starts.remove(part + 1),
                None => break,
            };
        }
        let parts = 0..starts.len() - 1;
        parts
            .map(|part| token(&starts, part, 1).expect("every part is a token"))
            .collect()
    }
}

/// The byte that each character of a token's name stands for: printable ones for themselves, the others for those from U+0100
/// on in their order.
fn bytes_by_character() -> HashMap<char, u8> {
    let mut others = '\u{100}'..;
    let character = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().expect("there are 68 others"),
    };
    (0..=255).map(character).zip(0..=255).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../../tests/golden/bpe.json")).unwrap()
    }

    fn bpe() -> Bpe {
        Bpe::parse(golden()["vocabulary"].to_string().as_bytes()).unwrap()
    }

    #[test]
    fn tokens_are_those_of_tokenizers() {
        let bpe = bpe();
        for case in golden()["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u16> = serde_json::from_value(case["tokens"].clone()).unwrap();
            let found = bpe.encode(text);
            assert_eq!(found, expected, "{text:?}");
            let back = found
                .iter()
                .flat_map(|&token| bpe.symbols()[usize::from(token)].clone());
            assert_eq!(back.collect::<Vec<u8>>(), text.as_bytes());
        }
    }

    #[test]
    fn a_wrong_vocabulary_is_refused() {
        let refused = |json: &str, message: &str| {
            let reason = Bpe::parse(json.as_bytes()).unwrap_err();
            assert!(reason.contains(message), "{reason}");
        };
        refused("[1]", "not a vocabulary");
        refused(r#"{"a": 0}"#, "no token for the byte 0x00");
        refused(r#"{"a": 0, "b": 0}"#, "has the number 0");
        refused(r#"{"a": 7}"#, "has the number 7");
    }
}
