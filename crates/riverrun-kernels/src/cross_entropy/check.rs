//! Random problems, the forms run on them, and the rule that accepts a result.
//!
//! A result passes within one rounding to storage and `slack` roundings of the arithmetic, `ε` each: 32 for the operations on
//! an element, and `V / 32` for sums, because no form adds more numbers in a row. The error of an exponential is that of its
//! exponent, a difference of numbers as large as the logits: so `lse` may be off by `ε (slack + 2 (|lse| + max |x|))`, a
//! probability by that part of itself, and the loss by the same.

use super::{cpu, oracle};
use crate::check::{
    Comparison, Random, largest, rounded, roundings, same_bits, stored, wide, worst,
};
use crate::simd::real::Real as _;
use crate::{Element, Error};

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Case {
    /// Rows and logits of each.
    pub shape: [usize; 2],
    /// `[rows, V]`.
    pub x: Vec<f64>,
    /// `[rows]`.
    pub targets: Vec<i64>,
    /// `∂L/∂loss`.
    pub d_loss: f64,
}

/// The results of forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The mean over the rows that count.
    pub loss: f64,
    /// `[rows]`.
    pub lse: Vec<f64>,
    /// `[rows, V]`.
    pub d_x: Vec<f64>,
}

impl Outcome {
    /// Whether all numbers have the same bits.
    pub fn same_bits(&self, other: &Self) -> bool {
        self.loss.to_bits() == other.loss.to_bits()
            && same_bits([&self.lse[..], &self.d_x], [&other.lse[..], &other.d_x])
    }
}

impl Case {
    /// Random logits, a few of them far above the others, and targets, some of which leave their rows out.
    pub fn random(shape: [usize; 2], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let [rows, vocab] = shape;
        let x = (0..rows * vocab)
            .map(|i| match i % 101 {
                7 => 6.0 * random.within(4.0),
                _ => random.within(4.0),
            })
            .collect();
        let targets = (0..rows)
            .map(|n| match n % 5 {
                3 => -100,
                _ => (random.bits() % vocab as u64) as i64,
            })
            .collect();
        Self {
            shape,
            x,
            targets,
            d_loss: 1.0 + random.within(0.5),
        }
    }

    /// The same with every logit rounded to a storage type.
    pub fn rounded<E: Element>(&self) -> Self {
        Self {
            x: rounded::<E>(&self.x),
            ..self.clone()
        }
    }

    /// Runs the reference.
    pub fn oracle(&self) -> Outcome {
        let vocab = self.shape[1];
        let oracle::Loss { loss, lse, .. } = oracle::forward(&self.x, vocab, &self.targets);
        Outcome {
            loss,
            lse,
            d_x: oracle::backward(&self.x, vocab, &self.targets, self.d_loss),
        }
    }

    /// Runs the CPU kernels, with every output filled with NaN first.
    ///
    /// # Errors
    /// Those of the kernels.
    pub fn cpu<E: super::cpu::Kernels<E>>(&self) -> Result<Outcome, Error> {
        let [rows, vocab] = self.shape;
        let x = stored::<E>(&self.x);
        let mut lse = vec![E::Acc::from_f64(f64::NAN); rows];
        let cpu::Loss { loss, weight } = cpu::forward(&x, vocab, &self.targets, &mut lse)?;
        let scale = E::Acc::from_f64(self.d_loss * weight.to_f64());
        let mut d_x = vec![E::from_f64(f64::NAN); x.len()];
        cpu::backward(&x, vocab, &self.targets, &lse, scale, &mut d_x)?;
        Ok(Outcome {
            loss: loss.to_f64(),
            lse: lse.iter().map(|x| x.to_f64()).collect(),
            d_x: wide(&d_x),
        })
    }

    /// Runs the GPU kernels, with every output filled with NaN first.
    ///
    /// # Errors
    /// Those of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: crate::gpu::Dtype,
        tunings: [Option<super::gpu::Tuning>; 2],
    ) -> Result<Outcome, Error> {
        use super::gpu::{Backward, Forward, backward, forward};
        use crate::check::transfer::{download, poison, upload};
        use crate::gpu::Dtype;
        use cubecl::ir::{ElemType, IntKind};
        let [rows, vocab] = self.shape;
        let x = upload(client, dtype, &self.x);
        let mut targets: Vec<i32> = self.targets.iter().map(|&t| t as i32).collect();
        targets.resize(rows.max(1), 0);
        let targets = client.create_from_slice(bytemuck::cast_slice(&targets));
        let index = ElemType::Int(IntKind::I32);
        let empty = |n: usize| poison(client, Dtype::F32, n);
        let (loss, lse, weight) = (empty(1), empty(rows), empty(1));
        let args = Forward {
            x: x.clone(),
            targets: targets.clone(),
            index,
            loss: loss.clone(),
            lse: lse.clone(),
            weight: weight.clone(),
        };
        forward(client, dtype, self.shape, &args, tunings[0])?;
        let d_x = poison(client, dtype, rows * vocab);
        let args = Backward {
            x,
            targets,
            index,
            lse: lse.clone(),
            weight,
            d_loss: upload(client, Dtype::F32, &[self.d_loss]),
            d_x: d_x.clone(),
        };
        backward(client, dtype, self.shape, &args, tunings[1])?;
        Ok(Outcome {
            loss: download(client, Dtype::F32, loss, 1)[0],
            lse: download(client, Dtype::F32, lse, rows),
            d_x: download(client, dtype, d_x, rows * vocab),
        })
    }

    /// Compares every tensor of `found`.
    pub fn compare<E: Element>(&self, found: &Outcome, reference: &Outcome) -> Vec<Comparison> {
        let vocab = self.shape[1];
        let (storage, arithmetic) = roundings::<E>();
        let slack = 32.0 + vocab as f64 / 32.0;
        // For each row: the allowed errors of lse, and of a probability relative to itself.
        let rows: Vec<f64> = reference
            .lse
            .iter()
            .zip(self.x.chunks(vocab))
            .map(|(lse, x)| {
                let size = lse.abs() + largest(x.iter().map(|x| x.abs()));
                arithmetic * (slack + 2.0 * size)
            })
            .collect();
        let counted = self.targets.iter().filter(|&&t| t >= 0).count();
        let scale = self.d_loss.abs() / counted as f64;
        let mean = largest(rows.iter().copied()) + arithmetic * reference.loss.abs() * slack;
        let losses = if counted == 0 {
            // The mean over no rows.
            let nothing = |x: f64| if x.is_nan() { 0.0 } else { f64::NAN };
            worst("loss", &[nothing(found.loss)], &[0.0], |_| 0.0)
        } else {
            worst("loss", &[found.loss], &[reference.loss], |_| mean)
        };
        vec![
            losses,
            worst("lse", &found.lse, &reference.lse, |n| rows[n]),
            worst("d_x", &found.d_x, &reference.d_x, |i| {
                let row = i / vocab;
                let (v, target) = ((i % vocab) as i64, self.targets[row]);
                if target < 0 {
                    return 0.0;
                }
                let p = (self.x[i] - reference.lse[row]).exp();
                let hit = if v == target { arithmetic } else { 0.0 };
                storage(reference.d_x[i])
                    + scale * (p * rows[row] + 4.0 * hit)
                    + 4.0 * arithmetic * reference.d_x[i].abs()
            }),
        ]
    }
}
