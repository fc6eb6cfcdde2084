//! The embedding, rows gathered from a table, and the gradient of the table.
//!
//! `y` is a copy: exact. A sum of `n` numbers passes within one rounding to storage and `d ε Σ |x|`, where `d` is the largest
//! number of additions that a number passes through in any form: `1024 + n / 1024` for `n` above 1024, `n` below.

pub mod oracle;

use riverrun_kernels::embedding::{Shape, cpu};
use riverrun_kernels::gemm::Order;
use riverrun_kernels::{CpuElement, Element, Error};

use crate::{
    Case, Failure, Operation, Part, Random, Report, Storage, Tensors, by_storage, roundings,
    stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "embedding",
    about: "The embedding and the gradient of its table",
    storages: &Storage::ALL,
    forms: |_| vec!["embedding"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: Some("embeddings of more than 70 000 tokens or 50257 rows"),
};

/// `[N, V, D]`: none of each, one, borders of blocks and pieces, long segments.
const SHAPES: [[usize; 3]; 15] = [
    [0, 5, 3],
    [1, 1, 1],
    [31, 65, 8],
    [32, 2, 5],
    [33, 300, 16],
    [257, 65, 12],
    [1000, 1000, 4],
    [1025, 255, 3],
    [5000, 7, 24],
    [16_384, 65, 64],
    [2000, 50_257, 8],
    [70_000, 65, 2],
    [65_536, 65, 512],
    [16_384, 50_257, 768],
    [65_536, 200_000, 33],
];

/// Every distribution of tokens.
fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let shapes = &SHAPES[..if part.long { 15 } else { 12 }];
    let cases = shapes
        .iter()
        .enumerate()
        .flat_map(|(n, &[tokens, vocab, dim])| {
            let shape = Shape::new(tokens, vocab, dim);
            Tokens::ALL.map(|kind| Embedding::random(shape, kind, 17 + n as u64))
        });
    part.run_all::<E, _>(part.form, cases, report)
}

/// The row of a token; `None` if there is none.
fn row(token: i64, vocab: usize) -> Option<usize> {
    usize::try_from(token).ok().filter(|&row| row < vocab)
}

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
pub struct Embedding {
    /// The sizes.
    pub shape: Shape,
    /// `[V, D]`.
    pub weight: Vec<f64>,
    /// `[N]`.
    pub tokens: Vec<i64>,
    /// `∂L/∂y`, `[N, D]`.
    pub d_y: Vec<f64>,
}

impl Embedding {
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
}

impl Case for Embedding {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.weight, &mut self.d_y]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let y = oracle::forward(self.shape, &self.weight, &self.tokens);
        let d_weight = oracle::backward(self.shape, &self.d_y, &self.tokens);
        Tensors::new([("y", y), ("d_weight", d_weight)])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
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
        truth.map(|name, i, x| match name {
            "d_weight" => storage(x) + depth(counts[i / dim]) as f64 * arithmetic * sizes[i],
            _ => 0.0,
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let nan = E::from_f64(f64::NAN);
        let mut y = vec![nan; self.shape.outputs()];
        let weight = stored::<E>(&self.weight);
        cpu::forward(self.shape, (&weight, Order::Rows), &self.tokens, &mut y)?;
        let mut d_weight = vec![nan; self.shape.table()];
        let d_y = stored::<E>(&self.d_y);
        cpu::backward(self.shape, &d_y, &self.tokens, &mut d_weight)?;
        Ok(Tensors::new([
            ("y", wide(&y)),
            ("d_weight", wide(&d_weight)),
        ]))
    }

    /// Tokens go as 32-bit integers, those beyond as `i32::MIN`.
    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer::{download, poison, upload};
        use cubecl::ir::{ElemType, IntKind};
        use riverrun_kernels::embedding::gpu::{Backward, Forward, backward, forward};
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
        Ok(Tensors::new([
            ("y", download(client, dtype, y, outputs)),
            ("d_weight", download(client, dtype, d_weight, table)),
        ]))
    }
}
