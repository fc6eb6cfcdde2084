//! Draws of symbols from logits, in the memory of a GPU: for steps that are recorded.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Int, Tensor};
use riverrun_kernels::draw::Rule;

use super::support::checks;
use crate::Error;

/// What draws leave in the memory of a GPU.
pub struct Draws {
    /// `[slots, B]`, `f32`: the uniform numbers of the draws.
    pub uniforms: Tensor<2>,
    /// `[B]`: the last draws; 0 where a logit was not finite.
    pub tokens: Tensor<1, Int>,
    /// `[slots, B]`: draw `n` of each row is in slot `n mod slots`; `-1 - i` where logit `i` was the first that was not finite.
    pub log: Tensor<2, Int>,
    /// `[B]`: the number of draws.
    pub counts: Tensor<1, Int>,
    /// `[1]`: counted up by each draw.
    pub position: Tensor<1, Int>,
}

/// Options that a kernel knows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawSpec {
    /// Symbols to draw from.
    symbols: usize,
    rule: Rule,
}

impl Draws {
    /// Draws one of the first `symbols` of each row of logits, `[B, V]`. What is written stays where it is if no other tensor shares
    /// it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a CPU, on which a row is [drawn](riverrun_kernels::draw::cpu) by itself; shapes that do not fit, no
    /// symbols or too many, a temperature below 0.
    pub fn draw(self, logits: Tensor<2>, symbols: usize, rule: Rule) -> Result<Self, Error> {
        let ([batch, vocab], [slots, _]) = (logits.dims(), self.log.dims());
        checks::plain("logits", &logits.device())?;
        if crate::device::is_cpu(&logits.device()) {
            return Err(Error::Unsupported("draws in memory are for GPUs".into()));
        }
        if !(1..=vocab.min(1 << 24)).contains(&symbols) || slots == 0 {
            let reason = format!("a draw of {symbols} of {vocab} symbols into {slots} slots");
            return Err(Error::Unsupported(reason));
        }
        if !(rule.temperature >= 0.0 && rule.temperature.is_finite()) {
            let reason = format!("a temperature of {}", rule.temperature);
            return Err(Error::Unsupported(reason));
        }
        checks::shape("uniforms", &[slots, batch], &self.uniforms.dims())?;
        checks::dtype("uniforms", DType::F32, self.uniforms.dtype())?;
        checks::shape("log", &[slots, batch], &self.log.dims())?;
        checks::shape("tokens", &[batch], &self.tokens.dims())?;
        checks::shape("counts", &[batch], &self.counts.dims())?;
        checks::shape("position", &[1], &self.position.dims())?;
        let (tokens, log, counts, position) = <Dispatch as DrawOps>::draw(
            logits.into_dispatch(),
            self.uniforms.clone().into_dispatch(),
            self.tokens.into_dispatch(),
            self.log.into_dispatch(),
            self.counts.into_dispatch(),
            self.position.into_dispatch(),
            DrawSpec { symbols, rule },
        );
        Ok(Self {
            uniforms: self.uniforms,
            tokens: Tensor::from_dispatch(tokens),
            log: Tensor::from_dispatch(log),
            counts: Tensor::from_dispatch(counts),
            position: Tensor::from_dispatch(position),
        })
    }
}

/// [`Draws::draw`] on a backend. Shapes and the device have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait DrawOps: Backend {
    /// Tokens, log, counts and position.
    #[fusion(meta = |_logits, _uniforms, tokens, log, counts, position, _spec| (tokens.clone(), log.clone(), counts.clone(), position.clone()))]
    fn draw(
        logits: FloatTensor<Self>,
        uniforms: FloatTensor<Self>,
        tokens: IntTensor<Self>,
        log: IntTensor<Self>,
        counts: IntTensor<Self>,
        position: IntTensor<Self>,
        spec: DrawSpec,
    ) -> (
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
    );
}
