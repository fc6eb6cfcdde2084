//! The symbols of texts as they are made.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::Sampling;
use super::draw::draw;
use super::steps::Steps;
use crate::Error;

/// The symbols of one sample as they are made; see [`Generator::stream`](super::Generator::stream).
pub struct Stream<'a>(pub(super) Samples<'a>);

impl<'a> Iterator for Stream<'a> {
    type Item = Result<&'a [u8], Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let symbols = self.0.next()?;
        Some(symbols.map(|symbols| symbols[0]))
    }
}

/// The symbols of several samples as they are made; see [`Generator::samples`](super::Generator::samples).
pub struct Samples<'a> {
    pub(super) symbols: &'a [Vec<u8>],
    /// Tokens after which a text ends.
    pub(super) ends: &'a [usize],
    /// Whether each sample has had one of them.
    pub(super) ended: Vec<bool>,
    pub(super) steps: Steps<'a>,
    /// One for each sample.
    pub(super) rngs: Vec<ChaCha8Rng>,
    pub(super) left: usize,
    pub(super) sampling: Sampling,
}

impl Samples<'_> {
    /// Whether steps are [recorded](super::Generator::record_steps) and run again by now.
    pub fn recorded(&self) -> bool {
        self.steps.recorded()
    }

    /// Draws a token for each sample.
    fn draw(&mut self) -> Result<Vec<usize>, Error> {
        let logits = self.steps.logits()?;
        let vocab = self.steps.vocab();
        let rows = logits.chunks_exact(vocab).zip(&mut self.rngs);
        // A published table has more rows than there are tokens.
        let known = self.symbols.len();
        rows.map(|(logits, rng)| draw(&logits[..known], &self.sampling, rng.random()))
            .collect()
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Result<Vec<&'a [u8]>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let tokens = self.draw().and_then(|tokens| {
            for (ended, token) in self.ended.iter_mut().zip(&tokens) {
                *ended |= self.ends.contains(token);
            }
            if self.ended.iter().all(|ended| *ended) {
                self.left = 0;
            }
            if self.left > 0 {
                let next = tokens.iter().map(|&token| token as i32);
                self.steps.step(next.collect())?;
            }
            Ok(tokens)
        });
        if tokens.is_err() {
            self.left = 0;
        }
        let tokens = match tokens {
            // Nothing is left to give.
            Ok(_) if self.ended.iter().all(|ended| *ended) => return None,
            tokens => tokens,
        };
        let symbol = |(&token, &ended): (&usize, &bool)| match ended {
            true => &[][..],
            false => &self.symbols[token][..],
        };
        Some(tokens.map(|tokens| tokens.iter().zip(&self.ended).map(symbol).collect()))
    }
}
