//! AdamW (Loshchilov & Hutter 2019, algorithm 2) over many tensors at once, and the sum of the squares of their gradients.
//!
//! With the gradient `g` times a factor that clips it, `s`: `m ← β₁ m + (1 - β₁) s g`, `v ← β₂ v + (1 - β₂) (s g)²`, `p ← (1 -
//! η λ) p - η (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)`. A factor of 0 marks gradients that overflowed: the step is skipped and
//! nothing changes. Parameters and moments are `f32`; gradients may be in any storage type.

pub mod clip;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// The length of [`Step::numbers`] and [`sgd`].
pub const NUMBERS: usize = 9;

/// The numbers of a step, apart from the tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// `η`.
    pub lr: f64,
    /// `β₁`.
    pub beta_1: f64,
    /// `β₂`.
    pub beta_2: f64,
    /// `ε`.
    pub epsilon: f64,
    /// `λ`, for the tensors that decay.
    pub weight_decay: f64,
    /// `t`, from 1.
    pub time: u32,
}

impl Step {
    /// `1 / (1 - β₁ᵗ)` and `1 / (1 - β₂ᵗ)`.
    pub fn corrections(&self) -> (f64, f64) {
        let correction = |beta: f64| 1.0 / (1.0 - beta.powf(f64::from(self.time)));
        (correction(self.beta_1), correction(self.beta_2))
    }

    /// The numbers that the kernels read, in their arithmetic: `η`, `β₁`, `1 - β₁`, `β₂`, `1 - β₂`, `ε`, `1 / (1 - β₁ᵗ)`, `1 /
    /// (1 - β₂ᵗ)`, `1 - η λ`.
    pub fn numbers(&self) -> [f32; NUMBERS] {
        let (first, second) = self.corrections();
        [
            self.lr,
            self.beta_1,
            1.0 - self.beta_1,
            self.beta_2,
            1.0 - self.beta_2,
            self.epsilon,
            first,
            second,
            self.keep(true),
        ]
        .map(|x| x as f32)
    }

    /// The factor of a parameter, with or without decay.
    pub fn keep(&self, decays: bool) -> f64 {
        if decays {
            1.0 - self.lr * self.weight_decay
        } else {
            1.0
        }
    }
}

/// The numbers with which the kernels take a step of gradient descent with momentum and decoupled weight decay: `m ← μ m + s g`,
/// `p ← (1 - η λ) p - η m`. The second moment stays 0.
///
/// Source: Loshchilov & Hutter 2019, algorithm 1, with the momentum of PyTorch, to which the learning rate is no factor.
pub fn sgd(lr: f64, momentum: f64, weight_decay: f64) -> [f32; NUMBERS] {
    let keep = 1.0 - lr * weight_decay;
    [lr, momentum, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, keep].map(|x| x as f32)
}
