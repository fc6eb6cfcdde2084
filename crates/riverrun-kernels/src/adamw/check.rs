//! Random problems, the forms run on them, and the rule that accepts a result.
//!
//! After some steps each number is within `64 ε` times the size of its terms, with `ε` of the arithmetic: a step rounds about
//! 16 times, and starts from numbers that earlier steps have rounded. The terms of a parameter are itself and `η (1 + 1/√(1 -
//! β₂))`, which no update exceeds; those of a moment, the largest gradient and its square. A rounded parameter has one more
//! rounding, to storage.

use super::clip::{PATIENCE, Scale, clip};
use super::{Step, cpu, oracle};
use crate::check::{Comparison, Random, largest, roundings, same_bits, wide, worst};
use crate::{Element, Error};

/// Tensors of several sizes and the gradients of some steps, in `f64`.
#[derive(Debug, Clone)]
pub struct Case {
    /// The first step.
    pub step: Step,
    /// Parameters of each tensor.
    pub parameters: Vec<Vec<f64>>,
    /// For each step, the gradients of each tensor.
    pub gradients: Vec<Vec<Vec<f64>>>,
    /// The factor of each step's gradients.
    pub factors: Vec<f64>,
}

/// The results of the steps, one list a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Parameters.
    pub p: Vec<Vec<f64>>,
    /// First moments.
    pub m: Vec<Vec<f64>>,
    /// Second moments.
    pub v: Vec<Vec<f64>>,
    /// Parameters in the type of the gradients.
    pub rounded: Vec<Vec<f64>>,
    /// `Σ g²` of the last step's gradients.
    pub squares: f64,
}

impl Outcome {
    /// Whether all numbers have the same bits.
    pub fn same_bits(&self, other: &Self) -> bool {
        fn tensors(of: &Outcome) -> impl Iterator<Item = &[f64]> {
            let lists = [&of.p, &of.m, &of.v, &of.rounded];
            lists.into_iter().flatten().map(Vec::as_slice)
        }
        self.squares.to_bits() == other.squares.to_bits()
            && same_bits(tensors(self), tensors(other))
    }
}

/// From this step on, updated parameters are written in the type of the gradients too.
const ROUNDED_FROM: usize = 1;

/// Every other tensor decays.
fn decays(tensor: usize) -> bool {
    tensor.is_multiple_of(2)
}

impl Case {
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

    /// The same with the gradients rounded to a storage type, and the parameters to `f32`.
    pub fn rounded<E: Element>(&self) -> Self {
        let mut case = self.clone();
        for g in case.gradients.iter_mut().flatten().flatten() {
            *g = E::from_f64(*g).to_f64();
        }
        for p in case.parameters.iter_mut().flatten() {
            *p = f64::from(*p as f32);
        }
        case
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

    /// Runs the reference.
    pub fn oracle(&self) -> Outcome {
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
        Outcome {
            p,
            m,
            v,
            rounded,
            squares,
        }
    }

    /// Runs the CPU kernels.
    ///
    /// # Errors
    /// Those of the kernels.
    pub fn cpu<E: Element<Acc = f32>>(&self) -> Result<Outcome, Error> {
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
        let widen = |x: Vec<Vec<f32>>| -> Vec<Vec<f64>> {
            let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect();
            x.into_iter().map(wide).collect()
        };
        let rounded = rounded.iter();
        Ok(Outcome {
            p: widen(p),
            m: widen(m),
            v: widen(v),
            rounded: rounded.map(|x| wide(x)).collect(),
            squares,
        })
    }

    /// Runs the GPU kernels.
    ///
    /// # Errors
    /// Those of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: crate::gpu::Dtype,
    ) -> Result<Outcome, Error> {
        use super::gpu::{Buffers, square_sum, update};
        use crate::check::transfer::{download, poison, upload};
        use crate::gpu::Dtype;
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
        Ok(Outcome {
            p: down(p, Dtype::F32),
            m: down(m, Dtype::F32),
            v: down(v, Dtype::F32),
            rounded: down(rounded, dtype),
            squares: download(client, Dtype::F32, total, 1)[0],
        })
    }

    /// Compares every tensor of `found`, of gradients in `E`.
    pub fn compare<E: Element>(&self, found: &Outcome, reference: &Outcome) -> Vec<Comparison> {
        let flat = |x: &[Vec<f64>]| -> Vec<f64> { x.iter().flatten().copied().collect() };
        let all = self.gradients.iter().flatten().flatten();
        let g = largest(all.filter(|g| g.is_finite()).map(|g| g.abs()));
        let reach = self.step.lr * (1.0 + 1.0 / (1.0 - self.step.beta_2).sqrt());
        let slack = 64.0 * f64::from(f32::EPSILON);
        let one = |name: &str, found: &[Vec<f64>], reference: &[Vec<f64>], size: f64| {
            let reference = flat(reference);
            worst(name, &flat(found), &reference, |i| {
                slack * (reference[i].abs() + size)
            })
        };
        let (rounding, _) = roundings::<E>();
        let rounded = |i: usize, reference: &[f64]| {
            slack * (reference[i].abs() + reach) + rounding(reference[i])
        };
        let parameters = flat(&reference.rounded);
        vec![
            worst("rounded", &flat(&found.rounded), &parameters, |i| {
                rounded(i, &parameters)
            }),
            one("p", &found.p, &reference.p, reach),
            one("m", &found.m, &reference.m, g),
            one("v", &found.v, &reference.v, g * g),
            worst("squares", &[found.squares], &[reference.squares], |_| {
                slack * reference.squares
            }),
        ]
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
        use super::clip::SCALE_NUMBERS;
        use crate::check::transfer::{download, poison, upload};
        use crate::gpu::Dtype;
        let mut scale = self.scale;
        let mut place = scale.map(|scale| upload(client, Dtype::F32, &scale.numbers()));
        let step = |&squares: &f64| {
            let sum = upload(client, Dtype::F32, &[squares]);
            let factor = poison(client, Dtype::F32, 1);
            super::gpu::clip(client, &sum, Self::BOUND as f32, place.as_ref(), &factor)
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
