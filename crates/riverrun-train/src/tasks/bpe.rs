//! Byte-pair encoding, by Hugging Face's tokenizers.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

use super::longest::{self, Longest};
use crate::Error;

/// Bytes of a piece of a text that is encoded by itself, at least.
const PIECE: usize = 1 << 20;

/// Byte-pair encoding: in each word of a text, pairs of neighbours are joined in a fixed order.
///
/// Source: Sennrich et al., *Neural Machine Translation of Rare Words with Subword Units* (2016), section 3.2; on bytes: Radford
/// et al., *Language Models are Unsupervised Multitask Learners* (2019), section 2.2.
#[derive(Debug, Clone)]
pub struct Bpe {
    /// The bytes of each token.
    symbols: Vec<Vec<u8>>,
    way: Way,
}

/// How a text is divided.
#[derive(Debug, Clone)]
enum Way {
    Pairs(Box<Tokenizer>),
    Longest(Longest),
}

impl Bpe {
    /// Reads a `tokenizer.json` of Hugging Face whose tokens are bytes, as those of GPT-2, Llama 3 and Qwen are; or a vocabulary in
    /// the form of GPT-2's `vocab.json`, also named `encoder.json`: an object with a number for each token, in whose name every
    /// byte is a printable character, where tokens are numbered in the order in which pairs are joined, and words are GPT-2's; or
    /// RWKV's `rwkv_vocab_v20230424.txt`, whose tokens are no pairs: the longest that fits comes next.
    ///
    /// # Errors
    /// A file that cannot be read or is none of these.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = fs::read(path).map_err(|error| Error::read(path, error))?;
        Self::parse(&text).map_err(|reason| Error::damaged(path, reason))
    }

    fn parse(json: &[u8]) -> Result<Self, String> {
        if json.starts_with(b"1 ")
            && let Ok(file) = std::str::from_utf8(json)
        {
            let symbols = longest::symbols(file)?;
            let way = Way::Longest(Longest::new(&symbols));
            return Ok(Self { symbols, way });
        }
        let value: Value =
            serde_json::from_slice(json).map_err(|error| format!("not a vocabulary: {error}"))?;
        if value.get("model").is_none_or(Value::is_number) {
            let named: HashMap<String, usize> = serde_json::from_value(value)
                .map_err(|error| format!("not a vocabulary of numbered tokens: {error}"))?;
            let symbols = symbols(&named)?;
            let way = Way::Pairs(Box::new(of_vocabulary(named, &symbols)?));
            return Ok(Self { symbols, way });
        }
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|error| format!("not a tokenizer of this version: {error}"))?;
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err("the tokens are not made of bytes, as those of GPT-2 are".into());
        }
        tokenizer.with_padding(None);
        let untruncated = tokenizer.with_truncation(None);
        untruncated.map_err(|error| error.to_string())?;
        let named = tokenizer.get_vocab(true).into_iter();
        let named: HashMap<String, usize> = named
            .map(|(name, number)| (name, number as usize))
            .collect();
        let symbols = symbols(&named)?;
        let way = Way::Pairs(Box::new(tokenizer));
        Ok(Self { symbols, way })
    }

    /// The bytes of each token.
    pub fn symbols(&self) -> &[Vec<u8>] {
        &self.symbols
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let tokenizer = match &self.way {
            Way::Pairs(tokenizer) => tokenizer,
            Way::Longest(longest) => return longest.encode(text.as_bytes()),
        };
        let encoded = tokenizer.encode_batch_fast(pieces(text), false);
        let encoded = encoded.expect("every byte has a token");
        let tokens = encoded.iter().flat_map(|piece| piece.get_ids());
        tokens.copied().collect()
    }
}

/// A text in pieces whose tokens are those of the whole: each ends with a line end between two characters that are no space, which no
/// word reaches over.
fn pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while rest.len() > PIECE {
        let cut = rest[rest.ceil_char_boundary(PIECE)..]
            .match_indices('\n')
            .map(|(at, _)| rest.ceil_char_boundary(PIECE) + at)
            .find(|&at| {
                let before = rest[..at].chars().next_back();
                let after = rest[at + 1..].chars().next();
                !before.is_none_or(char::is_whitespace) && !after.is_none_or(char::is_whitespace)
            });
        let Some(cut) = cut else { break };
        let (piece, after) = rest.split_at(cut + 1);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

/// The bytes of each token, by its number.
fn symbols(named: &HashMap<String, usize>) -> Result<Vec<Vec<u8>>, String> {
    let bytes = bytes_by_character();
    let mut symbols = vec![None; named.len()];
    for (name, &number) in named {
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
    let known = |byte: u8| symbols.iter().any(|symbol| symbol[..] == [byte]);
    match (0..=255u8).find(|&byte| !known(byte)) {
        Some(byte) => Err(format!("no token for the byte {byte:#04x}")),
        None => Ok(symbols),
    }
}

/// The tokenizer of a vocabulary whose tokens are numbered in the order in which pairs are joined.
fn of_vocabulary(named: HashMap<String, usize>, symbols: &[Vec<u8>]) -> Result<Tokenizer, String> {
    let numbers = symbols.iter().map(Vec::as_slice).zip(0..);
    let numbers: HashMap<&[u8], usize> = numbers.collect();
    let mut names = vec![String::new(); symbols.len()];
    for (name, &number) in &named {
        names[number].clone_from(name);
    }
    let pair = |symbol: &[u8], number: usize| {
        let [left, right] = parts(symbol, number, &numbers)?;
        Some((names[left].clone(), names[right].clone()))
    };
    let pairs = symbols.iter().zip(0..);
    let merges = pairs.filter_map(|(symbol, number)| pair(symbol, number));
    let vocabulary = named
        .into_iter()
        .map(|(name, number)| (name, number as u32));
    let model = BPE::builder()
        .vocab_and_merges(
            vocabulary.collect::<tokenizers::models::bpe::Vocab>(),
            merges.collect(),
        )
        .build()
        .map_err(|error| error.to_string())?;
    let words = ByteLevel::default().add_prefix_space(false);
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(None::<NormalizerWrapper>)
        .with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(words)))
        .with_post_processor(None::<PostProcessorWrapper>)
        .with_decoder(Some(DecoderWrapper::ByteLevel(words)));
    Ok(tokenizer)
}

/// The two tokens that a token is joined from: those that are left of its bytes when all pairs with lower numbers are joined. `None`
/// for a byte, and for a token that no pairs make.
fn parts(symbol: &[u8], number: usize, numbers: &HashMap<&[u8], usize>) -> Option<[usize; 2]> {
    // Where each part starts, and the end.
    let mut starts: Vec<usize> = (0..=symbol.len()).collect();
    let token = |starts: &[usize], part: usize, parts: usize| {
        let end = *starts.get(part + parts)?;
        numbers.get(&symbol[starts[part]..end]).copied()
    };
    loop {
        let joined = |part| Some((token(&starts, part, 2)?, part));
        let pairs = (0..starts.len()).filter_map(joined);
        match pairs.filter(|&(token, _)| token < number).min() {
            Some((_, part)) => starts.remove(part + 1),
            None => break,
        };
    }
    match starts[..] {
        [_, _, _] => Some([token(&starts, 0, 1)?, token(&starts, 1, 1)?]),
        _ => None,
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

    fn tokenizer(bpe: &Bpe) -> &Tokenizer {
        match &bpe.way {
            Way::Pairs(tokenizer) => tokenizer,
            Way::Longest(_) => panic!("expected pairs"),
        }
    }

    fn bpe() -> Bpe {
        Bpe::parse(golden()["vocabulary"].to_string().as_bytes()).unwrap()
    }

    #[test]
    fn tokens_are_those_of_tokenizers() {
        let bpe = bpe();
        for case in golden()["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
            let found = bpe.encode(text);
            assert_eq!(found, expected, "{text:?}");
            let back = found
                .iter()
                .flat_map(|&token| bpe.symbols()[token as usize].clone());
            assert_eq!(back.collect::<Vec<u8>>(), text.as_bytes());
        }
    }

    #[test]
    fn a_tokenizer_file_gives_the_same_tokens() {
        let bpe = bpe();
        let file = tokenizer(&bpe).to_string(false).unwrap();
        let read = Bpe::parse(file.as_bytes()).unwrap();
        assert_eq!(read.symbols(), bpe.symbols());
        for case in golden()["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(read.encode(text), bpe.encode(text), "{text:?}");
        }
        let characters = file.replace(
            "\"decoder\":{\"type\":\"ByteLevel\"",
            "\"decoder\":{\"type\":\"Fuse\"",
        );
        assert_ne!(characters, file);
        let error = Bpe::parse(characters.as_bytes()).unwrap_err();
        assert!(error.contains("not made of bytes"), "{error}");
    }

    #[test]
    fn a_long_text_is_encoded_in_pieces() {
        let bpe = bpe();
        let lines = "We'll hear further,\n  déjà vu\n\ntogether! \nAnd then\n";
        let text = lines.repeat(2 * PIECE / lines.len());
        let found = pieces(&text);
        assert!(found.len() > 1 && found.concat() == text);
        let whole = tokenizer(&bpe).encode_fast(text.as_str(), false).unwrap();
        let whole = whole.get_ids().to_vec();
        assert_eq!(bpe.encode(&text), whole);
    }

    #[test]
    fn a_wrong_vocabulary_is_refused() {
        let refused = |json: &str, message: &str| {
            let reason = Bpe::parse(json.as_bytes()).unwrap_err();
            assert!(reason.contains(message), "{reason}");
        };
        refused("{", "not a vocabulary");
        refused("[1]", "not a vocabulary");
        refused(r#"{"model": {}}"#, "not a tokenizer");
        refused(r#"{"a": 0}"#, "no token for the byte 0x00");
        refused(r#"{"a": 0, "b": 0}"#, "has the number 0");
        refused(r#"{"a": 7}"#, "has the number 7");
    }
}
