//! The block-diagonal recurrence, forward and every gradient.
//!
//! As for the elementwise recurrence, 16 roundings a step, which no step amplifies, and the products of a row of a block in
//! each, relative to the largest number of a tensor.

pub mod oracle;

pub use riverrun_kernels::block_diagonal::*;

use crate::recurrence::check::Options;
use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, largest, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "block-diagonal",
    about: "The block-diagonal recurrence",
    storages: &Storage::ALL,
    forms: |_| vec!["block-diagonal"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: None,
};

/// `[B, T, N, P]` of the kernels: every size that a GPU has, no sequences, more lanes than a cube has threads.
fn shapes() -> impl Iterator<Item = [usize; 4]> {
    const LENGTHS: [usize; 8] = [0, 1, 2, 7, 33, 65, 100, 257];
    let sizes = (1..=8).flat_map(|size| [2 * size, 2 * size + 5].map(|n| (n, size)));
    let shapes = sizes.map(|(n, size)| [1 + n % 3, LENGTHS[n % 8], 1 + n % 5, size]);
    shapes.chain([[0, 5, 2, 3], [3, 20, 50, 4]])
}

/// The kernels, on the CPU with blocks that a GPU does not have; on tensors, blocks of every size that has a kernel, and one
/// that has none.
fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    #[cfg(feature = "ops")]
    if matches!(part.storage, Storage::F32 | Storage::F64) {
        let sizes = [1, 2, 3, 4, 8, 9].into_iter().enumerate();
        let cases = sizes.map(|(n, size)| {
            let options = Options {
                h0: n % 3 != 1,
                reset: n % 4 < 2,
                reverse: n % 2 == 1,
                d_h_last: true,
            };
            let mut case = Blocks::random([2, [1, 9, 40][n % 3], 3, size], options, 10 * n as u64);
            case.of_zeros = false;
            case
        });
        part.run_ops::<E, _>(part.form, cases, report)?;
    }
    let cpu = part.target.is_cpu();
    let large = [[1, 65, 2, 16], [2, 12, 3, 17], [1, 300, 1, 40]];
    let shapes = shapes()
        .chain(large.into_iter().filter(|_| cpu))
        .enumerate();
    let cases = shapes.flat_map(|(n, shape)| {
        let options = if cpu { 0..16 } else { 5 * n..5 * n + 1 };
        options.map(move |options| Blocks::random(shape, Options::nth(options), 3))
    });
    part.run_all::<E, _>(part.form, cases, report)
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Blocks {
    /// Sizes and direction.
    pub problem: Problem,
    /// `[B, T, N, P, P]`.
    pub a: Vec<f64>,
    /// `[B, T, N·P]`.
    pub b: Vec<f64>,
    /// `[B, N·P]`.
    pub h0: Option<Vec<f64>>,
    /// `[B, T]`.
    pub reset: Option<Vec<bool>>,
    /// `[B, T, N·P]`.
    pub d_h: Vec<f64>,
    /// `[B, N·P]`.
    pub d_h_last: Option<Vec<f64>>,
    /// Whether there is a gradient of an `h_0` that is not given.
    pub of_zeros: bool,
}

impl Blocks {
    /// Random data with `Σ_j |A_ij| ≤ 1`, so that no step amplifies.
    pub fn random([batch, steps, blocks, size]: [usize; 4], options: Options, seed: u64) -> Self {
        let shape = Shape {
            batch,
            steps,
            blocks,
            size,
        };
        let mut random = Random::new(seed);
        let a = random.vec(shape.matrices(), 1.0 / size as f64);
        let b = random.vec(shape.elements(), 1.0);
        let mark = |_| random.bits().is_multiple_of(8);
        let reset = options.reset.then(|| (0..shape.rows()).map(mark).collect());
        Self {
            problem: Problem {
                shape,
                reverse: options.reverse,
            },
            a,
            b,
            h0: options.h0.then(|| random.vec(shape.state(), 1.0)),
            reset,
            d_h: random.vec(shape.elements(), 1.0),
            d_h_last: options.d_h_last.then(|| random.vec(shape.state(), 1.0)),
            of_zeros: true,
        }
    }

    fn tensors(&self, [h, d_a, d_b, d_h0]: [Vec<f64>; 4]) -> Tensors {
        let all = [("h", h), ("d_a", d_a), ("d_b", d_b), ("d_h0", d_h0)];
        let count = if self.h0.is_some() || self.of_zeros {
            4
        } else {
            3
        };
        Tensors::new(all.into_iter().take(count))
    }
}

impl Case for Blocks {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let mut all = vec![&mut self.a, &mut self.b, &mut self.d_h];
        all.extend(self.h0.iter_mut().chain(&mut self.d_h_last));
        all
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let (h0, reset) = (self.h0.as_deref(), self.reset.as_deref());
        let (problem, d_h_last) = (&self.problem, self.d_h_last.as_deref());
        let h = oracle::forward(problem, &self.a, &self.b, h0, reset);
        let d = oracle::backward(problem, &self.a, &self.b, h0, reset, &self.d_h, d_h_last);
        let (h, d) = h.and_then(|h| Ok((h, d?))).expect("a problem that fits");
        self.tensors([h, d.a, d.b, d.h0])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let Shape { steps, size, .. } = self.problem.shape;
        let floor = E::EPSILON / 2.0 * (((16 + size) * steps.max(1)) as f64).sqrt();
        let scaled = |(name, x): (&'static str, &[f64])| {
            let scale = largest(x.iter().map(|x| x.abs()));
            (name, vec![floor * scale; x.len()])
        };
        Tensors::new(truth.iter().map(scaled))
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let shape = self.problem.shape;
        let [a, b, d_h] = [&self.a, &self.b, &self.d_h].map(|x| stored::<E>(x));
        let [h0, d_h_last] = [&self.h0, &self.d_h_last].map(|x| x.as_deref().map(stored::<E>));
        let (h0, reset) = (h0.as_deref(), self.reset.as_deref());
        let lengths = [
            shape.elements(),
            shape.matrices(),
            shape.elements(),
            shape.state(),
        ];
        let mut found = lengths.map(|n| vec![E::from_f64(f64::NAN); n]);
        let [h, d_a, d_b, d_h0] = &mut found;
        cpu::forward(&self.problem, &a, &b, h0, reset, h)?;
        cpu::backward(
            &self.problem,
            &a,
            h0,
            reset,
            h,
            &d_h,
            d_h_last.as_deref(),
            d_a,
            d_b,
            d_h0,
        )?;
        Ok(self.tensors(found.map(|x| wide(&x))))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer;
        let shape = self.problem.shape;
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let lengths = [
            shape.elements(),
            shape.matrices(),
            shape.elements(),
            shape.state(),
        ];
        let found = lengths.map(|n| (transfer::poison(client, dtype, n), n));
        let [h, d_a, d_b, d_h0] = found.clone().map(|(handle, _)| handle);
        let reset = self
            .reset
            .as_ref()
            .map(|reset| upload(&crate::marks(reset)));
        let a = upload(&self.a);
        let h0 = self.h0.as_deref().map(upload);
        let args = gpu::Forward {
            a: a.clone(),
            b: upload(&self.b),
            h0: h0.clone(),
            reset: reset.clone(),
            h: h.clone(),
        };
        gpu::forward(client, &self.problem, dtype, &args)?;
        let args = gpu::Backward {
            a,
            h0,
            reset,
            h,
            d_h: upload(&self.d_h),
            d_h_last: self.d_h_last.as_deref().map(upload),
            d_a,
            d_b,
            d_h0,
        };
        gpu::backward(client, &self.problem, dtype, &args)?;
        let download = |(handle, n)| transfer::download(client, dtype, handle, n);
        Ok(self.tensors(found.map(download)))
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        use riverrun::Sequence;
        use riverrun::ops::{ScanOptions, block_diagonal_scan};

        use crate::op::{download, gradient};
        let Shape {
            batch,
            steps,
            blocks,
            size,
        } = self.problem.shape;
        let dim = blocks * size;
        let a = on.leaf(&self.a, [batch, steps, blocks, size, size]);
        let b = on.leaf(&self.b, [batch, steps, dim]);
        let h0 = self.h0.as_ref().map(|h0| on.leaf(h0, [batch, dim]));
        let mut sequence = Sequence::from(h0.clone());
        let reset = self.reset.as_ref();
        sequence.reset = reset.map(|marks| on.mask(marks, [batch, steps]));
        let options = ScanOptions::new().with_reverse(self.problem.reverse);
        let (h, last) = block_diagonal_scan(a.clone(), b.clone(), sequence, options)?;
        let mut loss = (h.clone() * on.tensor(&self.d_h, [batch, steps, dim])).sum();
        if let Some(d) = &self.d_h_last {
            loss = loss + (last * on.tensor(d, [batch, dim])).sum();
        }
        let gradients = loss.backward();
        let d_h0 = h0.map_or_else(Vec::new, |h0| gradient(&h0, &gradients));
        let [d_a, d_b] = [gradient(&a, &gradients), gradient(&b, &gradients)];
        Ok(self.tensors([download(h), d_a, d_b, d_h0]))
    }
}
