//! The tokens of RWKV: the longest one that a text begins with, again and again.

use std::collections::HashMap;

/// The numbers of tokens by their bytes.
#[derive(Debug, Clone)]
pub(super) struct Longest {
    numbers: HashMap<Vec<u8>, u32>,
    /// The bytes of the longest token that begins with each byte.
    most: [usize; 256],
}

impl Longest {
    /// The tokens by their numbers; one without bytes is in no text.
    pub fn new(symbols: &[Vec<u8>]) -> Self {
        let (mut numbers, mut most) = (HashMap::new(), [0; 256]);
        for (symbol, number) in symbols.iter().zip(0..) {
            if let Some(&first) = symbol.first() {
                let most = &mut most[usize::from(first)];
                *most = symbol.len().max(*most);
                numbers.insert(symbol.clone(), number);
            }
        }
        Self { numbers, most }
    }

    /// The tokens of a text.
    ///
    /// # Panics
    /// For a byte that is no token.
    pub fn encode(&self, text: &[u8]) -> Vec<u32> {
        let (mut tokens, mut rest) = (Vec::new(), text);
        while let Some(&first) = rest.first() {
            let most = self.most[usize::from(first)].min(rest.len());
            let known = |&length: &usize| self.numbers.contains_key(&rest[..length]);
            let length = (1..=most).rev().find(known).expect("every byte is a token");
            tokens.push(self.numbers[&rest[..length]]);
            rest = &rest[length..];
        }
        tokens
    }
}

/// The bytes of each token, of a file with a line for each: its number, its text or bytes as Python writes them, and how many
/// bytes these are. The number 0 is in no line.
pub(super) fn symbols(file: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut symbols = vec![Vec::new()];
    for (line, text) in file.lines().enumerate() {
        let refused = |reason: &str| format!("line {}: {reason}", line + 1);
        let parts = text.split_once(' ').and_then(|(number, rest)| {
            let (literal, length) = rest.rsplit_once(' ')?;
            Some((
                number.parse::<usize>().ok()?,
                literal,
                length.parse::<usize>().ok()?,
            ))
        });
        let (number, literal, length) =
            parts.ok_or_else(|| refused("expected a number, a text and its length"))?;
        if number != symbols.len() {
            return Err(refused(&format!("expected the number {}", symbols.len())));
        }
        let bytes = literal_bytes(literal).ok_or_else(|| refused("not a text of Python"))?;
        if bytes.len() != length {
            return Err(refused(&format!(
                "expected {length} bytes, found {}",
                bytes.len()
            )));
        }
        symbols.push(bytes);
    }
    let bytes = |byte: u8| symbols.iter().any(|symbol| symbol[..] == [byte]);
    match (0..=255u8).find(|&byte| !bytes(byte)) {
        Some(byte) => Err(format!("no token for the byte {byte:#04x}")),
        None => Ok(symbols),
    }
}

/// The bytes of `'…'`, `"…"` or `b'…'`.
fn literal_bytes(literal: &str) -> Option<Vec<u8>> {
    let (raw, quoted) = match literal.strip_prefix('b') {
        Some(rest) => (true, rest),
        None => (false, literal),
    };
    let quote = quoted
        .chars()
        .next()
        .filter(|quote| ['\'', '"'].contains(quote))?;
    let inner = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    let (mut bytes, mut rest) = (Vec::new(), inner.chars());
    let mut push = |character: char| match raw {
        true => u8::try_from(u32::from(character))
            .map(|byte| bytes.push(byte))
            .ok(),
        false => {
            bytes.extend(character.encode_utf8(&mut [0; 4]).bytes());
            Some(())
        }
    };
    while let Some(character) = rest.next() {
        if character != '\\' {
            push(character)?;
            continue;
        }
        let kind = rest.next()?;
        let mut code = |digits: usize| {
            let digits: String = rest.by_ref().take(digits).collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
        };
        let escaped = match kind {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'x' => code(2)?,
            'u' => code(4)?,
            'U' => code(8)?,
            other @ ('\\' | '\'' | '"') => other,
            _ => return None,
        };
        push(escaped)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes, and a few tokens as Python writes them.
    fn file() -> String {
        let bytes = (0..=255u8).map(|byte| format!("{} b'\\x{byte:02x}' 1", u32::from(byte) + 1));
        let more = [
            "'\\n\\n' 2",
            "' the' 4",
            "\"don't\" 5",
            "'é' 2",
            "b'\\xe2\\x80' 2",
            "'\\u200b' 3",
        ];
        let more = more
            .iter()
            .zip(257..)
            .map(|(text, number)| format!("{number} {text}"));
        bytes.chain(more).map(|line| line + "\n").collect()
    }

    #[test]
    fn the_longest_token_is_taken() {
        let symbols = symbols(&file()).unwrap();
        assert_eq!((symbols.len(), symbols[0].len()), (263, 0));
        let longest = Longest::new(&symbols);
        let text = "don't é\n\n\n the\u{200b} thé".as_bytes();
        let tokens = longest.encode(text);
        assert_eq!(tokens[..3], [259, 33, 260]);
        assert_eq!(tokens[3..7], [257, 11, 258, 262]);
        let back: Vec<u8> = tokens
            .iter()
            .flat_map(|&t| symbols[t as usize].clone())
            .collect();
        assert_eq!(back, text);
    }

    #[test]
    fn a_damaged_file_is_refused_by_its_line() {
        let refused = |file: &str, expected: &str| {
            let reason = symbols(file).unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        };
        refused("1 'a'", "line 1: expected a number");
        refused("2 'a' 1", "line 1: expected the number 1");
        refused("1 'a' 2", "expected 2 bytes, found 1");
        refused("1 a 1", "not a text of Python");
        refused("1 'a' 1", "no token for the byte 0x00");
        refused(&file().replace("' the'", "' the"), "line 258");
    }
}
