//! Sums of columns on GPUs, whose partial sums are no larger than the sum of the terms' sizes.

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "column-sums",
    about: "The sums of a matrix's columns, the gradient of a bias",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: |target| match target.is_cpu() {
        true => vec![],
        false => vec!["sums"],
    },
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 0,
    shared: None,
    long: None,
};

/// Rows and columns: vectors of 8 to 1 elements, one strip and several, one run of rows and several.
const SHAPES: [[usize; 2]; 7] = [
    [0, 5],
    [1, 1],
    [3, 6],
    [17, 4],
    [333, 12],
    [1000, 7],
    [129, 1040],
];

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let cases = SHAPES
        .into_iter()
        .enumerate()
        .map(|(n, [rows, columns])| Matrix {
            columns,
            x: Random::new(n as u64).vec(rows * columns, 1.0),
        });
    part.run_all::<E, _>(part.form, cases, report)
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Columns.
    pub columns: usize,
    /// `[rows, columns]`.
    pub x: Vec<f64>,
}

impl Matrix {
    /// The sums of `f` of each number.
    fn sums(&self, f: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.columns];
        for row in self.x.chunks(self.columns) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += f(*x);
            }
        }
        sums
    }
}

impl Case for Matrix {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.x]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        Tensors::new([("sums", self.sums(|x| x))])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let (sizes, rows) = (self.sums(f64::abs), self.x.len() / self.columns);
        truth.map(|_, i, truth| storage(truth) + rows as f64 * arithmetic * sizes[i])
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        Err(Error::Routine {
            routine: "cpu",
            reason: "sums of columns are an operation of the backend on the CPU".into(),
        })
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer;
        use riverrun_kernels::column_sums::column_sums;
        let x = transfer::upload(client, dtype, &self.x);
        let sums = transfer::poison(client, dtype, self.columns);
        let shape = [self.x.len() / self.columns, self.columns];
        column_sums(client, dtype, shape, &x, &sums)?;
        let found = transfer::download(client, dtype, sums, self.columns);
        Ok(Tensors::new([("sums", found)]))
    }
}
