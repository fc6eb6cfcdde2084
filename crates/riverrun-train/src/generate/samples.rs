//! The symbols of texts as they are made.

use std::collections::VecDeque;

use riverrun_kernels::draw::cpu::draw;

use super::Sampling;
use super::steps::Steps;
use super::uniforms::Uniforms;
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
    pub(super) uniforms: Uniforms,
    /// Draws that were made on the device.
    pub(super) ahead: VecDeque<Vec<usize>>,
    /// Why there are no more of them.
    pub(super) fault: Option<Error>,
    pub(super) left: usize,
    pub(super) sampling: Sampling,
}

impl Samples<'_> {
    /// Whether steps are [recorded](super::Generator::record_steps) and run again by now.
    pub fn recorded(&self) -> bool {
        self.steps.recorded()
    }

    /// The next token of each sample.
    fn tokens(&mut self) -> Result<Vec<usize>, Error> {
        match (self.ahead.pop_front(), self.fault.take()) {
            (Some(tokens), fault) => {
                self.fault = fault;
                Ok(tokens)
            }
            (None, Some(fault)) => Err(fault),
            (None, None) => self.draw(),
        }
    }

    /// Draws a token for each sample.
    fn draw(&mut self) -> Result<Vec<usize>, Error> {
        let logits = self.steps.logits()?;
        let vocab = self.steps.vocab();
        let uniforms = self.uniforms.take();
        let rows = logits.chunks_exact(vocab).zip(uniforms);
        // A published table has more rows than there are tokens.
        let (known, rule) = (self.symbols.len(), self.sampling.rule());
        rows.map(|(logits, uniform)| {
            draw(&logits[..known], &rule, uniform.into()).map_err(|symbol| Error::Logits {
                symbol,
                value: logits[symbol],
            })
        })
        .collect()
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Result<Vec<&'a [u8]>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let tokens = self.tokens().and_then(|tokens| {
            for (ended, token) in self.ended.iter_mut().zip(&tokens) {
                *ended |= self.ends.contains(token);
            }
            if self.ended.iter().all(|ended| *ended) {
                self.left = 0;
            }
            if self.left > 0 && self.ahead.is_empty() && self.fault.is_none() {
                let next = tokens.iter().map(|&token| token as i32).collect();
                let drawn = self.steps.step(next, &mut self.uniforms)?;
                (self.ahead, self.fault) = (drawn.tokens.into(), drawn.fault);
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
