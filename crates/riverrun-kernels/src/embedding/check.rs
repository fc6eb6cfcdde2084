//! Random tables and tokens, the forms run on them, and the rule that accepts a result.
//!
//! `y` is a copy: exact. A sum of `n` numbers passes within one rounding to storage and `d ε Σ |x|`, where `d` is the largest
//! number of additions that a number passes through in any form: `1024 + n / 1024` for `n` above 1024, `n` below.

use super::{Shape, cpu, oracle, row};
use crate::check::{Comparison, Random, rounded, roundings, same_bits, stored, wide, worst};
use crate::{Element, Error};

/// Distributions of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Every row with the same probability.
    Uniform,
    /// Row 3 (or the last) for half of the tokens, the first rows for most others, as in text.
    Skewed,
    /// One row for all.
    One,
    /// As [`Tokens::Skewed`], with some invalid ones: negative, `V`, and beyond 32 bits.
    Faulty,
}

impl Tokens {
    /// All distributions.
    pub const ALL: [Tokens; 4] = [Tokens::Uniform, Tokens::Skewed, Tokens::One, Tokens::Faulty];
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Case {
    /// The sizes.
    pub shape: Shape,
    /// `[V, D]`.
    pub weight: Vec<f64>,
    /// `[N]`.
    pub tokens: Vec<i64>,
    /// `∂L/∂y`, `[N, D]`.
    pub d_y: Vec<f64>,
}

/// The results of forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// `[N, D]`.
    pub y: Vec<f64>,
    /// `[V, D]`.
    pub d_weight: Vec<f64>,
}

impl Outcome {
    /// Whether all numbers have the same bits.
    pub fn same_bits(&self, other: &Self) -> bool {
        same_bits(
            [&self.y[..], &self.d_weight],
            [&other.y[..], &other.d_weight],
        )
    }
}

impl Case {
    /// Random data.
    pub fn random(shape: Shape, tokens: Tokens, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (vocab, rows) = (shape.vocab as i64, shape.vocab as u64);
        let common = (vocab - 1).min(3);
        let tokens = (0..shape.tokens).map(|n| match tokens {
            Tokens::Uniform => random.below(rows) as i64,
            Tokens::One => common,
            Tokens::Faulty if n % 7 == 3 => [-1, vocab, i64::MIN, (1 << 32) + 1][n / 7 % 4],
            Tokens::Skewed | Tokens::Faulty => match random.below(4) {
                0 | 1 => common,
                2 => random.below(rows.min(8)) as i64,
                _ => random.below(rows) as i64,
            },
        });
        let tokens: Vec<i64> = tokens.collect();
        Self {
            shape,
            weight: random.vec(shape.table(), 1.0),
            tokens,
            d_y: random.vec(shape.outputs(), 1.0),
        }
    }

    /// The same with every number rounded to a storage type.
    pub fn rounded<E: Element>(&self) -> Self {
        Self {
            weight: rounded::<E>(&self.weight),
            d_y: rounded::<E>(&self.d_y),
            ..self.clone()
        }
    }

    /// Runs the reference.
    pub fn oracle(&self) -> Outcome {
        Outcome {
            y: oracle::forward(self.shape, &self.weight, &self.tokens),
            d_weight: oracle::backward(self.shape, &self.d_y, &self.tokens),
        }
    }

    /// Runs the CPU kernels, with every output filled with NaN first.
    ///
    /// # Errors
    /// Those of the kernels.
    pub fn cpu<E: Element>(&self) -> Result<Outcome, Error> {
        let nan = E::from_f64(f64::NAN);
        let mut y = vec![nan; self.shape.outputs()];
        cpu::forward(self.shape, &stored::<E>(&self.weight), &self.tokens, &mut y)?;
        let mut d_weight = vec![nan; self.shape.table()];
        cpu::backward(
            self.shape,
            &stored::<E>(&self.d_y),
            &self.tokens,
            &mut d_weight,
        )?;
        Ok(Outcome {
            y: wide(&y),
            d_weight: wide(&d_weight),
        })
    }

    /// Runs the GPU kernels, with every output filled with NaN first.
    ///
    /// Tokens go as 32-bit integers, those beyond as `i32::MIN`.
    ///
    /// # Errors
    /// Those of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: crate::gpu::Dtype,
    ) -> Result<Outcome, Error> {
        use super::gpu::{Backward, Forward, backward, forward};
        use crate::check::transfer::{download, poison, upload};
        use cubecl::ir::{ElemType, IntKind};
        let index = ElemType::Int(IntKind::I32);
        let narrow = |&token: &i64| i32::try_from(token).unwrap_or(i32::MIN);
        let mut tokens: Vec<i32> = self.tokens.iter().map(narrow).collect();
        tokens.resize(tokens.len().max(1), 0);
        let tokens = client.create_from_slice(bytemuck::cast_slice(&tokens));
        let (outputs, table) = (self.shape.outputs(), self.shape.table());
        let y = poison(client, dtype, outputs);
        let args = Forward {
            weight: upload(client, dtype, &self.weight),
            tokens: tokens.clone(),
            index,
            y: y.clone(),
        };
        forward(client, dtype, self.shape, &args)?;
        let d_weight = poison(client, dtype, table);
        let args = Backward {
            d_y: upload(client, dtype, &self.d_y),
            tokens,
            index,
            d_weight: d_weight.clone(),
        };
        backward(client, dtype, self.shape, &args)?;
        Ok(Outcome {
            y: download(client, dtype, y, outputs),
            d_weight: download(client, dtype, d_weight, table),
        })
    }

    /// Compares every tensor of `found` with the reference.
    pub fn compare<E: Element>(&self, found: &Outcome, reference: &Outcome) -> Vec<Comparison> {
        let (storage, arithmetic) = roundings::<E>();
        let dim = self.shape.dim;
        let mut sizes = vec![0.0; self.shape.table()];
        let mut counts = vec![0_usize; self.shape.vocab];
        for (&token, d_y) in self.tokens.iter().zip(self.d_y.chunks(dim)) {
            let Some(row) = row(token, self.shape.vocab) else {
                continue;
            };
            counts[row] += 1;
            for (size, d) in sizes[row * dim..].iter_mut().zip(d_y) {
                *size += d.abs();
            }
        }
        let depth = |n: usize| if n <= 1024 { n } else { 1024 + n / 1024 };
        // NaN passes where both have it.
        let faults = |x: &[f64], other: &[f64]| -> Vec<f64> {
            let pairs = x.iter().zip(other);
            pairs
                .map(|(x, other)| match x.is_nan() && other.is_nan() {
                    true => 0.0,
                    false => *x,
                })
                .collect()
        };
        vec![
            worst(
                "y",
                &faults(&found.y, &reference.y),
                &faults(&reference.y, &found.y),
                |_| 0.0,
            ),
            worst("d_weight", &found.d_weight, &reference.d_weight, |i| {
                let additions = depth(counts[i / dim]) as f64;
                storage(reference.d_weight[i]) + additions * arithmetic * sizes[i]
            }),
        ]
    }
}
