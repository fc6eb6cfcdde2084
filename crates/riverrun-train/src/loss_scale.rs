//! The factor that keeps f16 gradients within the format's range.

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::{Error, Precision};

/// Where the factor of a run in f16 starts: the gradient of a mean over 10^4 tokens then starts near 1.
const START: f32 = 65536.0;
/// Steps without an overflow after which the factor doubles.
const PATIENCE: f32 = 2000.0;
/// Where it stops doubling: far above any use, and a loss of 10^4 times it is still finite in f32.
const MOST: f32 = (1u64 << 40) as f32;

/// What a loss is multiplied by before the backward pass, and gradients are divided by after it.
///
/// A step whose gradients are not all finite is skipped and halves the factor; 2000 steps in a row without one double it.
/// All of it stays on the device: nothing is read back but by [`read`](Self::read).
///
/// Source: Micikevicius et al., *Mixed Precision Training* (2018), section 3.2.
#[derive(Debug, Clone)]
pub struct LossScale(Option<State>);

/// Three numbers, each `[1]` in f32, without autodiff.
#[derive(Debug, Clone)]
struct State {
    factor: Tensor<1>,
    /// Steps since the last overflow or doubling.
    streak: Tensor<1>,
    skipped: Tensor<1>,
}

/// A [`LossScale`]'s numbers, as a checkpoint keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScaleRecord {
    /// The factor.
    pub factor: f32,
    /// Steps since the last overflow or doubling.
    pub streak: f32,
    /// Steps skipped since the run began.
    pub skipped: u64,
}

impl LossScale {
    /// A factor of 1 that stays: for f32, and for bf16, whose range is that of f32.
    pub fn none() -> Self {
        Self(None)
    }

    /// What a format starts with, on `device`.
    pub fn new(precision: Precision, device: &Device) -> Self {
        match precision {
            Precision::F32 | Precision::Bf16 => Self::none(),
            Precision::F16 => Self::from_record(
                ScaleRecord {
                    factor: START,
                    streak: 0.0,
                    skipped: 0,
                },
                device,
            ),
        }
    }

    /// Goes on from where [`read`](Self::read) was.
    pub fn from_record(record: ScaleRecord, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let number = |x: f32| Tensor::from_floats([x], &device);
        Self(Some(State {
            factor: number(record.factor),
            streak: number(record.streak),
            skipped: number(record.skipped as f32),
        }))
    }

    /// The loss to go back from, of a loss with autodiff.
    pub fn scale(&self, loss: Tensor<1>) -> Tensor<1> {
        match &self.0 {
            Some(state) => loss * Tensor::from_inner(state.factor.clone()),
            None => loss,
        }
    }

    /// What scaled gradients are to be multiplied by so that their norm is at most `clip`, `[1]`, from the sum of their
    /// squares; 0 for a step to skip. Then adapts.
    ///
    /// Without a scale nothing is skipped: a norm that is not finite gives NaN, to be seen in the weights.
    pub(crate) fn unscale(&mut self, squares: Tensor<1>, clip: f64) -> Tensor<1> {
        let Some(state) = self.0.take() else {
            return clipped(squares.sqrt(), clip);
        };
        let norm = squares.sqrt() / state.factor.clone();
        let overflow = norm.clone().is_finite().bool_not();
        let factor = (clipped(norm, clip) / state.factor.clone()).mask_fill(overflow.clone(), 0.0);

        let streak = state
            .streak
            .add_scalar(1.0)
            .mask_fill(overflow.clone(), 0.0);
        let grown = streak.clone().greater_equal_elem(PATIENCE);
        let scale = state.factor;
        let halved = scale.clone().mul_scalar(0.5).clamp_min(1.0);
        let doubled = scale.clone().mul_scalar(2.0).clamp_max(MOST);
        self.0 = Some(State {
            factor: scale
                .mask_where(grown.clone(), doubled)
                .mask_where(overflow.clone(), halved),
            streak: streak.mask_fill(grown, 0.0),
            skipped: state.skipped + overflow.float(),
        });
        factor
    }

    /// The numbers, read from the device; none without a scale.
    ///
    /// # Errors
    /// A device that fails.
    pub fn read(&self) -> Result<Option<ScaleRecord>, Error> {
        let Some(state) = self.0.clone() else {
            return Ok(None);
        };
        let numbers = Tensor::cat(vec![state.factor, state.streak, state.skipped], 0)
            .try_into_data()
            .map_err(Error::device)?
            .iter::<f32>()
            .collect::<Vec<_>>();
        Ok(Some(ScaleRecord {
            factor: numbers[0],
            streak: numbers[1],
            skipped: numbers[2] as u64,
        }))
    }
}

/// `min(1, clip / norm)`, and NaN for a norm that is not finite.
fn clipped(norm: Tensor<1>, clip: f64) -> Tensor<1> {
    let bad = norm.clone().is_finite().bool_not();
    norm.add_scalar(1e-6)
        .recip()
        .mul_scalar(clip)
        .clamp_max(1.0)
        .mask_fill(bad, f64::NAN)
}
