//! Products of a few rows with what is around them, on GPUs.
//!
//! A product passes within `32 + K / 32` roundings of the arithmetic of the sum of its terms' sizes: no thread adds more of them in
//! a row. What follows multiplies this by its slope, and adds 16 roundings of its own terms and one to storage.

use riverrun_kernels::few_rows::{Problem, Then};
use riverrun_kernels::recurrence::{Candidate, Gate};

use crate::gelu::oracle::{backward, forward};
use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "few-rows",
    about: "products of a few rows, with the norm before and what follows",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: |target| match target.is_cpu() {
        true => vec![],
        false => FORMS.map(|(name, _)| name).to_vec(),
    },
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: crate::storage::HALVES,
    long: None,
};

const FORMS: [(&str, Then); 5] = [
    ("product", Then::Nothing),
    ("gelu", Then::Gelu),
    ("add", Then::Add),
    (
        "min-gru",
        Then::Step(Gate::MinGru {
            candidate: Candidate::Identity,
        }),
    ),
    (
        "min-lstm",
        Then::Step(Gate::MinLstm {
            candidate: Candidate::G,
            normalized: true,
        }),
    ),
];

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let then = FORMS.into_iter().find(|(name, _)| *name == part.form);
    let (_, then) = then.expect("one of the forms");
    let sizes = [
        // Rows, inputs, width, numbers between the rows of the matrix.
        [1, 384, 384, 0],
        [2, 31, 31, 3],
        [1, 130, 24, 8],
        [3, 64, 65, 0],
        [8, 96, 96, 0],
    ];
    let cases = sizes.into_iter().enumerate().map(|(n, sizes)| {
        let [rows, inputs, mut width, apart] = sizes;
        if matches!(then, Then::Step(_)) {
            width = inputs;
        }
        let problem = Problem {
            rows,
            inputs,
            width,
            stride: width * then.parts() + apart,
            norm: (n % 3 != 1).then_some(1e-5),
            bias: n % 2 == 0,
            then,
        };
        FewRows::random(problem, n as u64)
    });
    part.run_all::<E, _>(part.form, cases, report)
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct FewRows {
    /// The problem.
    pub problem: Problem,
    /// `[rows, inputs]`.
    pub x: Vec<f64>,
    /// `[inputs]`.
    pub gamma: Vec<f64>,
    /// `[inputs, stride]`.
    pub weight: Vec<f64>,
    /// `[parts * width]`.
    pub bias: Vec<f64>,
    /// `[rows, width]`: what is added, or the state.
    pub with: Vec<f64>,
}

/// A product, and the sum of the sizes of its terms.
#[derive(Clone, Copy)]
struct Product {
    value: f64,
    terms: f64,
}

impl FewRows {
    /// Random numbers whose products are of the order of 1.
    pub fn random(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut some = |n: usize, bound: f64| random.vec(n, bound);
        let scale = 2.0 / (problem.inputs as f64).sqrt();
        Self {
            problem,
            x: some(problem.rows * problem.inputs, 2.0),
            gamma: some(problem.inputs, 1.5),
            weight: some(problem.inputs * problem.stride, scale),
            bias: some(problem.products(), 1.0),
            with: some(problem.rows * problem.width, 2.0),
        }
    }

    /// The products of a number of `y`.
    fn products(&self, row: usize, column: usize) -> Vec<Product> {
        let Problem {
            inputs,
            width,
            stride,
            ..
        } = self.problem;
        let x = &self.x[row * inputs..][..inputs];
        let scale = self.problem.norm.map(|epsilon| {
            let square = x.iter().map(|x| x * x).sum::<f64>() / inputs as f64;
            (square + epsilon).powf(-0.5)
        });
        let product = |part: usize| {
            let column = part * width + column;
            let bias = if self.problem.bias {
                self.bias[column]
            } else {
                0.0
            };
            let start = Product {
                value: bias,
                terms: bias.abs(),
            };
            (0..inputs).fold(start, |sum, k| {
                let factor = scale.map_or(1.0, |scale| scale * self.gamma[k]);
                let term = x[k] * factor * self.weight[k * stride + column];
                Product {
                    value: sum.value + term,
                    terms: sum.terms + term.abs(),
                }
            })
        };
        (0..self.problem.then.parts()).map(product).collect()
    }

    /// For each number of `y`: itself, the state, and the errors of both that pass before they are rounded to storage.
    fn each(&self, arithmetic: f64) -> Vec<[f64; 4]> {
        let Problem { rows, width, .. } = self.problem;
        let slack = arithmetic * (32.0 + self.problem.inputs as f64 / 32.0);
        let number = |i: usize| {
            let products = self.products(i / width, i % width);
            let Product { value, terms } = products[0];
            let near = slack * terms;
            match self.problem.then {
                Then::Nothing => [value, 0.0, near, 0.0],
                Then::Gelu => {
                    let slope = backward(&[value], &[1.0])[0].abs();
                    let own = 16.0 * arithmetic * (1.0 + value.abs());
                    [
                        forward(&[value])[0],
                        0.0,
                        slope * near + near * near + own,
                        0.0,
                    ]
                }
                Then::Add => {
                    let sum = self.with[i] + value;
                    [sum, 0.0, near + arithmetic * sum.abs(), 0.0]
                }
                Then::Step(gate) => {
                    let inputs: Vec<f64> = products.iter().map(|p| p.value).collect();
                    let step = gate.reference(&inputs);
                    let before = self.with[i];
                    let h = step.a * before + step.b;
                    let slopes = step.da.iter().zip(&step.db);
                    let moved: f64 = slopes
                        .zip(&products)
                        .map(|((a, b), p)| {
                            let near = slack * p.terms;
                            ((a * before).abs() + b.abs()) * near + near * near
                        })
                        .sum();
                    let own = 16.0 * arithmetic * ((step.a * before).abs() + step.b.abs() + 0.1);
                    let sum = self.x[i] + h;
                    let near = moved + own;
                    [sum, h, near + arithmetic * sum.abs(), near]
                }
            }
        };
        (0..rows * width).map(number).collect()
    }

    fn tensors(&self, y: Vec<f64>, state: Vec<f64>) -> Tensors {
        let state = matches!(self.problem.then, Then::Step(_)).then_some(("state", state));
        Tensors::new([("y", y)].into_iter().chain(state))
    }
}

impl Case for FewRows {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![
            &mut self.x,
            &mut self.gamma,
            &mut self.weight,
            &mut self.bias,
            &mut self.with,
        ]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let (y, state) = self.each(0.0).iter().map(|n| (n[0], n[1])).unzip();
        self.tensors(y, state)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let all = self.each(arithmetic);
        truth.map(|name, i, truth| match name {
            // The state is rounded before it is added.
            "y" => storage(truth) + storage(all[i][1]) + all[i][2],
            _ => storage(truth) + all[i][3],
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        Err(Error::Routine {
            routine: "cpu",
            reason: "the kernel of few rows is for GPUs".into(),
        })
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use riverrun_kernels::few_rows::gpu::{Buffers, run};

        use crate::transfer;
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let out = self.problem.rows * self.problem.width;
        let beside = matches!(self.problem.then, Then::Add | Then::Step(_));
        let buffers = Buffers {
            x: upload(&self.x),
            gamma: self.problem.norm.map(|_| upload(&self.gamma)),
            weight: upload(&self.weight),
            bias: self.problem.bias.then(|| upload(&self.bias)),
            with: beside.then(|| upload(&self.with)),
            y: transfer::poison(client, dtype, out),
        };
        run(client, &self.problem, dtype, &buffers)?;
        let download = |handle| transfer::download(client, dtype, handle, out);
        let state = buffers.with.map(download).unwrap_or_default();
        Ok(self.tensors(download(buffers.y), state))
    }
}
