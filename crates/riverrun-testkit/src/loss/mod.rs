//! The cross-entropy, and the gradient of its logits.
//!
//! A result passes within one rounding to storage and `slack` roundings of the arithmetic, `ε` each: 32 for the operations on
//! an element, and `V / 32` for sums, because no form adds more numbers in a row. The error of an exponential is that of its
//! exponent, a difference of numbers as large as the logits: so `lse` may be off by `ε (slack + 2 (|lse| + max |x|))`, a
//! probability by that part of itself, and the loss by the same.

pub mod oracle;

use riverrun_kernels::cross_entropy::cpu;
use riverrun_kernels::{CpuElement, Element, Error, Real as _};

use crate::{
    Case, Failure, Operation, Part, Random, Report, Storage, Tensors, by_storage, largest,
    roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "loss",
    about: "The cross-entropy",
    storages: &Storage::ALL,
    forms: |_| vec!["cross-entropy"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: Some("more than 100 rows of logits"),
};

/// Rows and their logits.
const SHAPES: [[usize; 2]; 15] = [
    [0, 5],
    [1, 1],
    [3, 1],
    [9, 2],
    [5, 31],
    [64, 65],
    [100, 256],
    [8, 257],
    [8, 1003],
    [7, 5000],
    [3, 5003],
    [2, 50_257],
    [2000, 65],
    [64, 50_257],
    [1, 262_144],
];

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let shapes = &SHAPES[..if part.long { 15 } else { 12 }];
    let random = |(n, &shape): (usize, &_)| Loss::random(shape, 17 + n as u64);
    part.run_all::<E, _>(part.form, shapes.iter().enumerate().map(random), report)
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Rows and logits of each.
    pub shape: [usize; 2],
    /// `[rows, V]`.
    pub x: Vec<f64>,
    /// `[rows]`.
    pub targets: Vec<i64>,
    /// `∂L/∂loss`.
    pub d_loss: f64,
}

impl Loss {
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

    /// The mean over the rows that count; `[rows]`; `[rows, V]`.
    fn tensors(loss: f64, lse: Vec<f64>, d_x: Vec<f64>) -> Tensors {
        Tensors::new([("loss", vec![loss]), ("lse", lse), ("d_x", d_x)])
    }

    /// Runs the GPU kernels with tunings of the forward and the backward pass.
    ///
    /// # Errors
    /// The errors of the kernels.
    #[cfg(feature = "gpu")]
    pub fn tuned(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
        tunings: [Option<riverrun_kernels::cross_entropy::gpu::Tuning>; 2],
    ) -> Result<Tensors, Error> {
        use cubecl::ir::{ElemType, IntKind};
        use riverrun_kernels::cross_entropy::gpu::{Backward, Forward, backward, forward};
        use riverrun_kernels::gpu::Dtype;

        use crate::transfer::{download, poison, upload};
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
        Ok(Self::tensors(
            download(client, Dtype::F32, loss, 1)[0],
            download(client, Dtype::F32, lse, rows),
            download(client, dtype, d_x, rows * vocab),
        ))
    }
}

impl Case for Loss {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.x]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let vocab = self.shape[1];
        let oracle::Loss { loss, lse, .. } = oracle::forward(&self.x, vocab, &self.targets);
        let d_x = oracle::backward(&self.x, vocab, &self.targets, self.d_loss);
        Self::tensors(loss, lse, d_x)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let vocab = self.shape[1];
        let (storage, arithmetic) = roundings::<E>();
        let slack = 32.0 + vocab as f64 / 32.0;
        let lse = truth.get("lse");
        // For each row: the allowed errors of lse, and of a probability relative to itself.
        let rows: Vec<f64> = lse
            .iter()
            .zip(self.x.chunks(vocab))
            .map(|(lse, x)| {
                let size = lse.abs() + largest(x.iter().map(|x| x.abs()));
                arithmetic * (slack + 2.0 * size)
            })
            .collect();
        let counted = self.targets.iter().filter(|&&t| t >= 0).count();
        let scale = self.d_loss.abs() / counted as f64;
        let most = largest(rows.iter().copied());
        truth.map(|name, i, x| match name {
            "loss" => most + arithmetic * x.abs() * slack,
            "lse" => rows[i],
            _ => {
                let row = i / vocab;
                let (v, target) = ((i % vocab) as i64, self.targets[row]);
                if target < 0 {
                    return 0.0;
                }
                let p = (self.x[i] - lse[row]).exp();
                let hit = if v == target { arithmetic } else { 0.0 };
                storage(x) + scale * (p * rows[row] + 4.0 * hit) + 4.0 * arithmetic * x.abs()
            }
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let [rows, vocab] = self.shape;
        let x = stored::<E>(&self.x);
        let mut lse = vec![E::Acc::from_f64(f64::NAN); rows];
        let cpu::Loss { loss, weight } = cpu::forward(&x, vocab, &self.targets, &mut lse)?;
        let scale = E::Acc::from_f64(self.d_loss * weight.to_f64());
        let mut d_x = vec![E::from_f64(f64::NAN); x.len()];
        cpu::backward(&x, vocab, &self.targets, &lse, scale, &mut d_x)?;
        let lse = lse.iter().map(|x| x.to_f64()).collect();
        Ok(Self::tensors(loss.to_f64(), lse, wide(&d_x)))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        self.tuned(client, dtype, [None; 2])
    }
}
