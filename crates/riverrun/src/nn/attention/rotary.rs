//! Rotary positions.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

/// Rotary positions: of the first `dims` channels of a head, channels `i` and `i + dims / 2` are turned by the angle
/// `position · base^(-2i / dims)`, so that a product of query and key depends on their distance alone.
///
/// Source: Su et al., *RoFormer: Enhanced Transformer with Rotary Position Embedding* (2021), section 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rotary {
    /// The wavelengths reach from `2π` to about `2π base` steps.
    pub base: f64,
    /// Channels that are turned, an even number; the others are left as they are.
    pub dims: usize,
}

impl Rotary {
    /// With a base of 10 000.
    pub fn new(dims: usize) -> Self {
        Self {
            base: 10_000.0,
            dims,
        }
    }

    /// With another base.
    pub fn with_base(mut self, base: f64) -> Self {
        self.base = base;
        self
    }

    /// `x`, `[B, T, H, D]`, turned by its positions, of which `first` is that of step 0.
    pub(super) fn turn(&self, x: Tensor<4>, first: usize) -> Tensor<4> {
        let [_, steps, _, dim] = x.dims();
        let half = self.dims / 2;
        if half == 0 || x.dims().contains(&0) {
            return x;
        }
        let angle = |n: usize| {
            let (step, i) = (n / half, n % half);
            let rate = self.base.powf(-(2.0 * i as f64) / self.dims as f64);
            (first + step) as f64 * rate
        };
        let table = |f: fn(f64) -> f64| -> Tensor<4> {
            let numbers: Vec<f32> = (0..steps * half).map(|n| f(angle(n)) as f32).collect();
            let numbers = TensorData::new(numbers, [1, steps, 1, half]);
            Tensor::from_data(numbers, (&x.device(), x.dtype()))
        };
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let (a, b) = (
            x.clone().narrow(3, 0, half),
            x.clone().narrow(3, half, half),
        );
        let mut parts = vec![
            a.clone() * cos.clone() - b.clone() * sin.clone(),
            b * cos + a * sin,
        ];
        if dim > 2 * half {
            parts.push(x.narrow(3, 2 * half, dim - 2 * half));
        }
        Tensor::cat(parts, 3)
    }
}
