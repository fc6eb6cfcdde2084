//! Products of a few rows with what is around them, on GPUs.
//!
//! A product passes within `32 + K / 16` roundings of the arithmetic of the sum of its terms' sizes: no thread adds more of them in
//! a row. What follows multiplies this by its slope, and adds 16 roundings of its own terms and one to storage.

use riverrun_kernels::few_rows::{Matrix, Problem, Then};
use riverrun_kernels::recurrence::{Candidate, Gate};

use crate::activation::Nonlinearity::Gelu;
use crate::activation::oracle::{backward, forward};
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

const FORMS: [(&str, Then); 7] = [
    ("product", Then::Nothing),
    ("beside", Then::Nothing),
    ("gated", Then::Gated),
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
    let mut sizes = vec![
        // Rows, inputs, width, numbers between the rows of the matrix.
        [1, 384, 384, 0],
        [2, 31, 31, 3],
        [1, 130, 24, 8],
        [3, 64, 65, 0],
        [8, 96, 96, 0],
        [8, 5, 32, 0],
    ];
    // Several columns for a group of threads; then several rounds, which take long on a simulated GPU.
    if matches!(part.form, "product" | "beside" | "gated") {
        sizes.push([2, 72, 6208, 0]);
    }
    if part.form == "gated" && part.storage == Storage::F32 {
        sizes.push([1, 1040, 3104, 8]);
    }
    let cases = sizes.into_iter().enumerate().map(|(n, sizes)| {
        let [rows, inputs, mut width, apart] = sizes;
        if matches!(then, Then::Step(_)) {
            width = inputs;
        }
        let matrix = |columns: usize| Matrix {
            columns,
            stride: columns + apart,
        };
        let matrices = match part.form {
            "beside" if n % 2 == 0 => vec![matrix(width), matrix(2 * width), matrix(32)],
            "beside" => vec![matrix(width), matrix(3)],
            "gated" => vec![matrix(width); 2],
            _ => vec![matrix(width * then.parts())],
        };
        let problem = Problem {
            rows,
            inputs,
            bias: n % 2 == 0 && matrices.len() == 1,
            matrices,
            norm: (n % 3 != 1).then_some(1e-5),
            then,
        };
        FewRows::random(problem, n as u64)
    });
    part.run_all::<E, _>(part.form, cases, report)
}

/// The outputs of matrices, first to last.
const OUTPUTS: [&str; 3] = ["y", "y2", "y3"];

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct FewRows {
    /// The problem.
    pub problem: Problem,
    /// `[rows, inputs]`.
    pub x: Vec<f64>,
    /// `[inputs]`.
    pub gamma: Vec<f64>,
    /// `[inputs, stride]` of each matrix.
    pub weights: Vec<Vec<f64>>,
    /// `[columns]` of the first.
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
        let (inputs, widths) = (problem.inputs, problem.widths());
        let scale = 2.0 / (inputs as f64).sqrt();
        let strides = problem.matrices.iter().map(|matrix| matrix.stride);
        Self {
            x: some(problem.rows * inputs, 2.0),
            gamma: some(inputs, 1.5),
            weights: strides.map(|stride| some(inputs * stride, scale)).collect(),
            bias: some(problem.matrices[0].columns, 1.0),
            with: some(problem.rows * widths[0], 2.0),
            problem,
        }
    }

    /// The products of a number of an output.
    fn products(&self, output: usize, row: usize, column: usize) -> Vec<Product> {
        let (inputs, width) = (self.problem.inputs, self.problem.widths()[output]);
        let x = &self.x[row * inputs..][..inputs];
        let scale = self.problem.norm.map(|epsilon| {
            let square = x.iter().map(|x| x * x).sum::<f64>() / inputs as f64;
            (square + epsilon).powf(-0.5)
        });
        let product = |(matrix, part): (usize, usize)| {
            let column = part * width + column;
            let (weight, stride) = (&self.weights[matrix], self.problem.matrices[matrix].stride);
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
                let term = x[k] * factor * weight[k * stride + column];
                Product {
                    value: sum.value + term,
                    terms: sum.terms + term.abs(),
                }
            })
        };
        match self.problem.then {
            Then::Gated => [(0, 0), (1, 0)].map(product).to_vec(),
            then => (0..then.parts())
                .map(|part| product((output, part)))
                .collect(),
        }
    }

    /// For each number of an output: itself, the state, and the errors of both that pass before they are rounded to storage.
    fn each(&self, output: usize, arithmetic: f64) -> Vec<[f64; 4]> {
        let (rows, width) = (self.problem.rows, self.problem.widths()[output]);
        let slack = arithmetic * (32.0 + self.problem.inputs as f64 / 16.0);
        let number = |i: usize| {
            let products = self.products(output, i / width, i % width);
            let Product { value, terms } = products[0];
            let near = slack * terms;
            match self.problem.then {
                Then::Nothing => [value, 0.0, near, 0.0],
                Then::Gelu => {
                    let slope = backward(Gelu, &[value], &[1.0])[0].abs();
                    let own = 16.0 * arithmetic * (1.0 + value.abs());
                    [
                        forward(Gelu, &[value])[0],
                        0.0,
                        slope * near + near * near + own,
                        0.0,
                    ]
                }
                Then::Gated => {
                    let gate = 1.0 / (1.0 + (-value).exp());
                    let (silu, up) = (value * gate, products[1]);
                    let slope = gate * (1.0 + value * (1.0 - gate));
                    let silu_near =
                        slope.abs() * near + near * near + 8.0 * arithmetic * silu.abs();
                    let up_near = slack * up.terms;
                    let y = silu * up.value;
                    let moved = silu_near * up.value.abs() + (silu.abs() + silu_near) * up_near;
                    [y, 0.0, moved + 2.0 * arithmetic * y.abs(), 0.0]
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

    fn tensors(&self, y: Vec<Vec<f64>>, state: Vec<f64>) -> Tensors {
        let state = matches!(self.problem.then, Then::Step(_)).then_some(("state", state));
        Tensors::new(OUTPUTS.into_iter().zip(y).chain(state))
    }
}

impl Case for FewRows {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let others = [&mut self.x, &mut self.gamma, &mut self.bias, &mut self.with];
        self.weights.iter_mut().chain(others).collect()
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let outputs = 0..self.problem.widths().len();
        let all: Vec<_> = outputs.map(|output| self.each(output, 0.0)).collect();
        let numbers = |all: &Vec<[f64; 4]>, n: usize| all.iter().map(|each| each[n]).collect();
        let y = all.iter().map(|all| numbers(all, 0)).collect();
        self.tensors(y, numbers(&all[0], 1))
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let outputs = 0..self.problem.widths().len();
        let all: Vec<_> = outputs
            .map(|output| self.each(output, arithmetic))
            .collect();
        truth.map(|name, i, truth| {
            let slack = match OUTPUTS.iter().position(|&output| output == name) {
                // The state is rounded before it is added.
                Some(output) => storage(all[output][i][1]) + all[output][i][2],
                None => all[0][i][3],
            };
            storage(truth) + slack
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
        let outs = self.problem.widths().into_iter();
        let outs: Vec<usize> = outs.map(|width| self.problem.rows * width).collect();
        let beside = matches!(self.problem.then, Then::Add | Then::Step(_));
        let buffers = Buffers {
            x: upload(&self.x),
            gamma: self.problem.norm.map(|_| upload(&self.gamma)),
            weights: self.weights.iter().map(|weight| upload(weight)).collect(),
            bias: self.problem.bias.then(|| upload(&self.bias)),
            with: beside.then(|| upload(&self.with)),
            y: outs
                .iter()
                .map(|&out| transfer::poison(client, dtype, out))
                .collect(),
        };
        run(client, &self.problem, dtype, &buffers)?;
        let download = |(handle, &out)| transfer::download(client, dtype, handle, out);
        let state = buffers.with.map(|state| download((state, &outs[0])));
        let y = buffers.y.into_iter().zip(&outs).map(download).collect();
        Ok(self.tensors(y, state.unwrap_or_default()))
    }
}
