//! The factor that keeps f16 gradients within the format's range.

use burn::tensor::{Device, Tensor};
use riverrun::training::{LossScaleNumbers, clip_factor};
use serde::{Deserialize, Serialize};

use crate::{Error, Precision};

/// Where the factor of a run in f16 starts: the gradient of a mean over 10^4 tokens then starts near 1.
const START: f32 = 65536.0;

/// The factor a loss is multiplied by before the backward pass; gradients are divided by it afterwards.
///
/// A step whose gradients are not all finite is skipped and halves the factor; 2000 steps in a row without one double it.
/// All of it stays on the device, in one place: nothing is read back but by [`read`](Self::read).
///
/// Source: Micikevicius et al., *Mixed Precision Training* (2018), section 3.2.
#[derive(Debug, Clone)]
pub struct LossScale(
    /// The [numbers](LossScaleNumbers), `[3]` in f32, without autodiff.
    Option<Tensor<1>>,
);

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

    /// The initial scale for a format, on `device`.
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

    /// Restores the numbers that [`read`](Self::read) returned.
    pub fn from_record(record: ScaleRecord, device: &Device) -> Self {
        let numbers = LossScaleNumbers {
            factor: f64::from(record.factor),
            streak: f64::from(record.streak),
            skipped: record.skipped as f64,
        };
        let numbers = numbers.numbers().map(|x| x as f32);
        let device = device.clone().without_autodiff();
        Self(Some(Tensor::from_floats(numbers, &device)))
    }

    /// The loss to go back from, of a loss with autodiff.
    pub fn scale(&self, loss: Tensor<1>) -> Tensor<1> {
        match &self.0 {
            Some(numbers) => loss * Tensor::from_inner(numbers.clone().narrow(0, 0, 1)),
            None => loss,
        }
    }

    /// Sums of squares of scaled gradients, with the scale divided out.
    pub(crate) fn unscaled(&self, squares: Tensor<1>) -> Tensor<1> {
        match &self.0 {
            Some(numbers) => {
                let factor = numbers.clone().narrow(0, 0, 1);
                squares / (factor.clone() * factor)
            }
            None => squares,
        }
    }

    /// What scaled gradients are to be multiplied by so that their norm is at most `bound`, `[1]`, from the sum of their
    /// squares; 0 for a step to skip. Then adapts.
    ///
    /// Without a scale nothing is skipped: a norm that is not finite gives NaN, to be seen in the weights.
    pub(crate) fn unscale(&mut self, squares: Tensor<1>, bound: f64) -> Tensor<1> {
        let (factor, numbers) =
            clip_factor(squares, bound, self.0.take()).unwrap_or_else(riverrun::Error::raise);
        self.0 = numbers;
        factor
    }

    /// The numbers, read from the device; none without a scale.
    ///
    /// # Errors
    /// A device that fails.
    pub fn read(&self) -> Result<Option<ScaleRecord>, Error> {
        let Some(numbers) = self.0.clone() else {
            return Ok(None);
        };
        let numbers: Vec<f32> = riverrun::device::read(numbers)?.iter().collect();
        Ok(Some(ScaleRecord {
            factor: numbers[0],
            streak: numbers[1],
            skipped: numbers[2] as u64,
        }))
    }
}
