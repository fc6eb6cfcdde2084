//! AdamW with gradients in each storage type, the clipping of gradients, and sums of vectors added to tensors.
//!
//! After some steps each number is within `64 ε` times the size of its terms, with `ε` of the arithmetic: a step rounds about
//! 16 times, and starts from numbers that earlier steps have rounded. The terms of a parameter are itself and `η (1 + 1/√(1 -
//! β₂))`, which no update exceeds; those of a moment, the largest gradient and its square. A rounded parameter has one more
//! rounding, to storage.

pub mod oracle;

use riverrun_kernels::adamw::clip::{PATIENCE, Scale, clip};
use riverrun_kernels::adamw::{Step, cpu};
use riverrun_kernels::flat::DIRECTIONS;
use riverrun_kernels::{CpuElement, Element, Error};

use crate::flat::Flat;
use crate::{
    Case, Comparison, Failure, Operation, Part, Random, Report, Storage, Tensors, by_storage,
    largest, roundings, wide, worst,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "optimizer",
    about: "AdamW and the clipping of gradients",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: |_| vec!["adamw"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 0,
    shared: None,
    long: Some("parameters of more than 40 000 numbers"),
};

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    // The second has more tensors than go into one launch.
    let many: Vec<usize> = (0..40).map(|n| 1 + 13 * n).collect();
    let mut sets = vec![vec![0, 1, 3, 64, 100, 4096, 5001, 40_000, 7], many];
    if !part.target.software {
        // Sums of squares with more parts than a plane has threads, and fewer than two have.
        sets.push(vec![7, 168_640]);
    }
    if part.long {
        sets.push(vec![1 << 22, 1 << 20, 4096, 12_345]);
    }
    let numbered = || sets.iter().enumerate();
    let steps = numbered().map(|(n, sizes)| Steps::random(sizes, 17 + n as u64));
    part.run_all::<E, _>("adamw", steps, report)?;
    // In 16 bits there are copies only.
    let most = match part.storage {
        Storage::F32 => DIRECTIONS,
        _ => 1,
    };
    let vectors = numbered().flat_map(|(n, sizes)| {
        (1..=most).map(move |count| Flat::random(sizes, count, 23 + n as u64))
    });
    part.run_all::<E, _>("flat", vectors, report)?;
    if part.storage != Storage::F32 {
        return Ok(());
    }
    #[cfg(feature = "gpu")]
    if let Some((client, _)) = part.gpu() {
        let mut row = crate::Row::default();
        for scaled in [false, true] {
            let case = ClipCase::new(scaled);
            let (found, again) = (case.gpu(client), case.gpu(client));
            // Compared as text: a factor may be NaN.
            let same = format!("{found:?}") == format!("{again:?}");
            row.case(&case.compare(&found, &case.oracle()), same);
        }
        report.row(part.device(), "clip", "f32", "gpu", row)?;
    }
    Ok(())
}

/// Tensors of several sizes and the gradients of some steps, in `f64`.
#[derive(Debug, Clone)]
pub struct Steps {
    /// The first step.
    pub step: Step,
    /// Parameters of each tensor.
    pub parameters: Vec<Vec<f64>>,
    /// For each step, the gradients of each tensor.
    pub gradients: Vec<Vec<Vec<f64>>>,
    /// The factor of each step's gradients.
    pub factors: Vec<f64>,
}

/// From this step on, updated parameters are written in the type of the gradients too.
const ROUNDED_FROM: usize = 1;

/// Every other tensor decays.
fn decays(tensor: usize) -> bool {
    tensor.is_multiple_of(2)
}

impl Steps {
    /// Three steps over tensors of these sizes; the second step's gradients overflowed, so it is skipped.
    pub fn random(sizes: &[usize], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut tensors =
            |bound: f64| -> Vec<Vec<f64>> { sizes.iter().map(|&n| random.vec(n, bound)).collect() };
        let parameters = tensors(2.0);
        let mut gradients: Vec<_> = (0..3).map(|_| tensors(1.0)).collect();
        for tensor in &mut gradients[1] {
            tensor
                .iter_mut()
                .step_by(3)
                .for_each(|g| *g = f64::INFINITY);
        }
        Self {
            step: Step {
                lr: 0.01,
                beta_1: 0.9,
                beta_2: 0.99,
                epsilon: 1e-8,
                weight_decay: 0.1,
                time: 1,
            },
            parameters,
            gradients,
            factors: vec![0.75, 0.0, 1.0],
        }
    }

    fn at(&self, n: usize) -> Step {
        Step {
            time: self.step.time + n as u32,
            ..self.step
        }
    }

    fn zeros<T: Clone + Default>(&self) -> Vec<Vec<T>> {
        self.parameters
            .iter()
            .map(|p| vec![T::default(); p.len()])
            .collect()
    }

    /// The results, one tensor after another: parameters, moments, parameters in the type of the gradients, and `Σ g²` of the last
    /// step's gradients.
    fn tensors(all: [Vec<Vec<f64>>; 4], squares: f64) -> Tensors {
        let [p, m, v, rounded] = all.map(|tensors| tensors.concat());
        let squares = ("squares", vec![squares]);
        Tensors::new([("p", p), ("m", m), ("v", v), ("rounded", rounded), squares])
    }

    fn update<E: Element<Acc = f32>>(&self) -> Result<Tensors, Error> {
        let narrow = |x: &Vec<f64>| x.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let mut p: Vec<Vec<f32>> = self.parameters.iter().map(narrow).collect();
        let (mut m, mut v) = (self.zeros::<f32>(), self.zeros::<f32>());
        let mut rounded = self.zeros::<E>();
        let mut squares = 0.0;
        for (n, gradients) in self.gradients.iter().enumerate() {
            squares = 0.0;
            for (i, g) in gradients.iter().enumerate() {
                let g: Vec<E> = g.iter().map(|&g| E::from_f64(g)).collect();
                squares += cpu::square_sum(&g);
                let (numbers, factor) = (self.at(n).numbers(), self.factors[n] as f32);
                cpu::update(
                    &numbers,
                    decays(i),
                    factor,
                    &mut p[i],
                    &g,
                    &mut m[i],
                    &mut v[i],
                    (n >= ROUNDED_FROM).then_some(&mut rounded[i]),
                )?;
            }
        }
        let widen = |x: &[Vec<f32>]| x.iter().map(|x| wide(x)).collect();
        let rounded = rounded.iter().map(|x| wide(x)).collect();
        let all = [widen(&p), widen(&m), widen(&v), rounded];
        Ok(Self::tensors(all, squares))
    }
}

impl Case for Steps {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        self.gradients.iter_mut().flatten().collect()
    }

    /// The parameters and their moments are `f32`, whatever the gradients are.
    fn rounded<E: Element>(mut self) -> Self {
        for p in &mut self.parameters {
            *p = crate::rounded::<f32>(p);
        }
        for g in self.numbers() {
            *g = crate::rounded::<E>(g);
        }
        self
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let (mut p, mut m, mut v) = (self.parameters.clone(), self.zeros(), self.zeros());
        for (n, gradients) in self.gradients.iter().enumerate() {
            for (i, g) in gradients.iter().enumerate() {
                let factor = self.factors[n];
                let step = self.at(n);
                oracle::update(&step, decays(i), factor, &mut p[i], g, &mut m[i], &mut v[i]);
            }
        }
        let squares = self.gradients[2]
            .iter()
            .map(|g| oracle::square_sum(g))
            .sum();
        let rounded = p.clone();
        Self::tensors([p, m, v, rounded], squares)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let all = self.gradients.iter().flatten().flatten();
        let g = largest(all.filter(|g| g.is_finite()).map(|g| g.abs()));
        let reach = self.step.lr * (1.0 + 1.0 / (1.0 - self.step.beta_2).sqrt());
        let slack = 64.0 * f64::from(f32::EPSILON);
        let (rounding, _) = roundings::<E>();
        truth.map(|name, _, x| match name {
            "p" => slack * (x.abs() + reach),
            "m" => slack * (x.abs() + g),
            "v" => slack * (x.abs() + g * g),
            "rounded" => slack * (x.abs() + reach) + rounding(x),
            _ => slack * x,
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        match E::NAME {
            "f16" => self.update::<half::f16>(),
            "bf16" => self.update::<half::bf16>(),
            _ => self.update::<f32>(),
        }
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer::{download, poison, upload};
        use riverrun_kernels::adamw::gpu::{Buffers, square_sum, update};
        use riverrun_kernels::gpu::Dtype;
        let up = |tensors: &[Vec<f64>], dtype| -> Vec<_> {
            tensors.iter().map(|x| upload(client, dtype, x)).collect()
        };
        let p = up(&self.parameters, Dtype::F32);
        let (m, v) = (up(&self.zeros(), Dtype::F32), up(&self.zeros(), Dtype::F32));
        let place = |p: &Vec<f64>| poison(client, dtype, p.len());
        let rounded: Vec<_> = self.parameters.iter().map(place).collect();
        let total = poison(client, Dtype::F32, 1);
        for (n, gradients) in self.gradients.iter().enumerate() {
            let g = up(gradients, dtype);
            let tensors: Vec<Buffers> = (0..p.len())
                .map(|i| Buffers {
                    len: self.parameters[i].len(),
                    p: p[i].clone(),
                    g: g[i].clone(),
                    m: m[i].clone(),
                    v: v[i].clone(),
                    rounded: (n >= ROUNDED_FROM).then(|| rounded[i].clone()),
                    decays: decays(i),
                })
                .collect();
            let factor = upload(client, Dtype::F32, &[self.factors[n]]);
            let numbers = self.at(n).numbers().map(f64::from);
            let numbers = upload(client, Dtype::F32, &numbers);
            update(client, dtype, &numbers, &factor, &tensors)?;
            // In two calls; the second continues from the first.
            let sizes: Vec<_> = tensors.iter().map(|t| (t.len, t.g.clone())).collect();
            let (head, tail) = sizes.split_at(sizes.len() / 2);
            let before = poison(client, Dtype::F32, 1);
            square_sum(client, dtype, head, None, &before)?;
            square_sum(client, dtype, tail, Some(&before), &total)?;
        }
        let down = |handles: Vec<_>, dtype| -> Vec<Vec<f64>> {
            let sizes = self.parameters.iter().map(Vec::len);
            let pairs = handles.into_iter().zip(sizes);
            pairs
                .map(|(handle, n)| download(client, dtype, handle, n))
                .collect()
        };
        let all = [
            down(p, Dtype::F32),
            down(m, Dtype::F32),
            down(v, Dtype::F32),
            down(rounded, dtype),
        ];
        Ok(Self::tensors(
            all,
            download(client, Dtype::F32, total, 1)[0],
        ))
    }
}

/// Sums of squares of some steps, with or without a loss scale: cases for [`clip`].
#[derive(Debug, Clone)]
pub struct ClipCase {
    squares: Vec<f64>,
    scale: Option<Scale>,
}

/// For each step the factor, and the scale after it.
pub type Clips = Vec<(f64, Option<Scale>)>;

impl ClipCase {
    const BOUND: f64 = 1.5;

    /// Norms below and above the bound, two that are not finite, and a scale that doubles in the last step.
    pub fn new(scaled: bool) -> Self {
        Self {
            squares: vec![1e-3, 9e8, f64::INFINITY, 2e20, f64::NAN, 0.0, 1e9],
            scale: scaled.then_some(Scale {
                factor: 4096.0,
                streak: PATIENCE - 3.0,
                skipped: 5.0,
            }),
        }
    }

    /// In `f64`. After the last overflow the streak is set so that two good steps complete it.
    pub fn oracle(&self) -> Clips {
        let mut scale = self.scale;
        let step = |&squares: &f64| {
            let factor = clip(squares, Self::BOUND, scale.as_mut());
            let after = scale;
            self.ripen(squares, &mut scale);
            (factor, after)
        };
        self.squares.iter().map(step).collect()
    }

    fn ripen(&self, squares: f64, scale: &mut Option<Scale>) {
        if let (true, Some(scale)) = (squares.is_nan(), scale) {
            scale.streak = PATIENCE - 2.0;
        }
    }

    /// Runs the GPU kernel.
    #[cfg(feature = "gpu")]
    pub fn gpu(&self, client: &cubecl::client::Client) -> Clips {
        use crate::transfer::{download, poison, upload};
        use riverrun_kernels::adamw::clip::SCALE_NUMBERS;
        use riverrun_kernels::gpu::Dtype;
        let mut scale = self.scale;
        let mut place = scale.map(|scale| upload(client, Dtype::F32, &scale.numbers()));
        let step = |&squares: &f64| {
            let sum = upload(client, Dtype::F32, &[squares]);
            let factor = poison(client, Dtype::F32, 1);
            riverrun_kernels::adamw::gpu::clip(
                client,
                &sum,
                Self::BOUND as f32,
                place.as_ref(),
                &factor,
            )
            .expect("buffers of the right sizes");
            let factor = download(client, Dtype::F32, factor, 1)[0];
            let after = place.clone().map(|place| {
                let numbers = download(client, Dtype::F32, place, SCALE_NUMBERS);
                Scale::new([numbers[0], numbers[1], numbers[2]])
            });
            scale = after;
            self.ripen(squares, &mut scale);
            place = scale.map(|scale| upload(client, Dtype::F32, &scale.numbers()));
            (factor, after)
        };
        self.squares.iter().map(step).collect()
    }

    /// Compares: factors within 8 roundings, of which there are 5, the scale exactly.
    pub fn compare(&self, found: &Clips, reference: &Clips) -> Vec<Comparison> {
        // Where the oracle has NaN, only NaN passes.
        let seen = |clips: &Clips| -> Vec<f64> {
            let number = |x: f64| if x.is_nan() { -1.0 } else { x };
            clips.iter().map(|(factor, _)| number(*factor)).collect()
        };
        let scales = |clips: &Clips| -> Vec<f64> {
            let numbers = clips.iter().filter_map(|(_, scale)| scale.as_ref());
            numbers.flat_map(|scale| scale.numbers()).collect()
        };
        let factors = seen(reference);
        vec![
            worst("factor", &seen(found), &factors, |i| {
                8.0 * f64::from(f32::EPSILON) * factors[i].abs()
            }),
            worst("scale", &scales(found), &scales(reference), |_| 0.0),
        ]
    }
}
