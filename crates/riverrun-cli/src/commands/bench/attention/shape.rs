//! The sizes of an attention as one word.

use std::fmt;
use std::str::FromStr;

use riverrun_kernels::attention::{Problem, Shape};

use crate::args::names::Sizes;

/// The sizes of an attention as one word, `BxH/KxTxD@W`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// The sizes, with as many keys as queries.
    pub shape: Shape,
    /// The window.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// As many key heads as heads, and no window.
    pub const fn new([batch, heads, steps, dim]: [usize; 4]) -> Self {
        Self::grouped([batch, heads, heads, steps, dim], None)
    }

    /// With grouped heads, and perhaps a window.
    pub const fn grouped(
        [batch, heads, key_heads, steps, dim]: [usize; 5],
        window: Option<usize>,
    ) -> Self {
        let shape = Shape {
            batch,
            queries: steps,
            keys: steps,
            heads,
            key_heads,
            dim,
        };
        Self { shape, window }
    }

    /// The problem. With a window it is causal too.
    pub fn problem(self, full: bool) -> Problem {
        Problem {
            causal: !full || self.window.is_some(),
            window: self.window,
            ..Problem::new(self.shape)
        }
    }
}

impl fmt::Display for AttentionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = self.shape;
        write!(f, "{}x{}", shape.batch, shape.heads)?;
        if shape.key_heads != shape.heads {
            write!(f, "/{}", shape.key_heads)?;
        }
        write!(f, "x{}x{}", shape.queries, shape.dim)?;
        self.window.map_or(Ok(()), |window| write!(f, "@{window}"))
    }
}

impl FromStr for AttentionShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected BxHxTxD, BxH/KxTxD or BxHxTxD@W".to_string();
        let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n > 0);
        let (sizes, window) = match text.split_once('@') {
            Some((sizes, window)) => (sizes, Some(number(window).ok_or_else(wrong)?)),
            None => (text, None),
        };
        let (sizes, key_heads) = match sizes.split_once('/') {
            Some((front, back)) => {
                let (key_heads, back) = back.split_once('x').ok_or_else(wrong)?;
                let key_heads = number(key_heads).ok_or_else(wrong)?;
                (format!("{front}x{back}"), Some(key_heads))
            }
            None => (sizes.to_string(), None),
        };
        let Sizes([batch, heads, steps, dim]) = sizes.parse()?;
        let key_heads = key_heads.unwrap_or(heads);
        let this = Self::grouped([batch, heads, key_heads, steps, dim], window);
        let checked = this.problem(false).check(false);
        checked.map(|()| this).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_a_word_and_back() {
        for word in [
            "2x8x512x64",
            "4x10/1x8192x256",
            "4x10/2x8192x256@2048",
            "1x1x1x1@1",
        ] {
            let shape: AttentionShape = word.parse().unwrap();
            assert_eq!(shape.to_string(), word);
        }
        for wrong in [
            "",
            "2x8x512",
            "2x8/3x512x64",
            "2x8x512x64@0",
            "2x8/x512x64",
            "2x8x512x300",
            "2x8x512x64@",
        ] {
            assert!(wrong.parse::<AttentionShape>().is_err(), "{wrong}");
        }
    }
}
