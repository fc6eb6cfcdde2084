//! Problems with their data, and running them.

use riverrun_kernels::CpuElement;
use riverrun_testkit::block_diagonal::{Problem, Shape, cpu, oracle};
use riverrun_testkit::check::{Random, stored, wide};
use riverrun_testkit::recurrence::check::Options;

/// A problem and its data, in `f64`.
#[derive(Clone)]
pub struct Case {
    pub problem: Problem,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    pub h0: Option<Vec<f64>>,
    pub reset: Option<Vec<bool>>,
    pub d_h: Vec<f64>,
    pub d_h_last: Option<Vec<f64>>,
}

/// `h` and every gradient.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub h: Vec<f64>,
    pub d_a: Vec<f64>,
    pub d_b: Vec<f64>,
    pub d_h0: Vec<f64>,
}

impl Outcome {
    pub fn tensors(&self) -> [(&'static str, &[f64]); 4] {
        [
            ("h", &self.h),
            ("d_A", &self.d_a),
            ("d_b", &self.d_b),
            ("d_h0", &self.d_h0),
        ]
    }
}

impl Case {
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
        let reset = options
            .reset
            .then(|| (0..batch * steps).map(mark).collect());
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
        }
    }

    pub fn rounded<E: CpuElement>(mut self) -> Self {
        let round = |x: &mut Vec<f64>| x.iter_mut().for_each(|x| *x = E::from_f64(*x).to_f64());
        let tensors = [&mut self.a, &mut self.b, &mut self.d_h];
        tensors.into_iter().for_each(round);
        self.h0.iter_mut().for_each(round);
        self.d_h_last.iter_mut().for_each(round);
        self
    }

    pub fn oracle(&self) -> Outcome {
        let (h0, reset) = (self.h0.as_deref(), self.reset.as_deref());
        let d_h_last = self.d_h_last.as_deref();
        let h = oracle::forward(&self.problem, &self.a, &self.b, h0, reset).unwrap();
        let d = oracle::backward(
            &self.problem,
            &self.a,
            &self.b,
            h0,
            reset,
            &self.d_h,
            d_h_last,
        )
        .unwrap();
        Outcome {
            h,
            d_a: d.a,
            d_b: d.b,
            d_h0: d.h0,
        }
    }

    /// Runs the CPU kernels; every output is filled with NaN beforehand.
    pub fn cpu<E: CpuElement>(&self) -> Outcome {
        let shape = self.problem.shape;
        let poison = |n: usize| vec![E::from_f64(f64::NAN); n];
        let (a, b, d_h) = (
            stored::<E>(&self.a),
            stored::<E>(&self.b),
            stored::<E>(&self.d_h),
        );
        let (h0, d_h_last) = (
            self.h0.as_deref().map(stored::<E>),
            self.d_h_last.as_deref().map(stored::<E>),
        );
        let (h0, reset) = (h0.as_deref(), self.reset.as_deref());
        let mut h = poison(shape.elements());
        cpu::forward(&self.problem, &a, &b, h0, reset, &mut h).unwrap();
        let mut d_a = poison(shape.matrices());
        let mut d_b = poison(shape.elements());
        let mut d_h0 = poison(shape.state());
        cpu::backward(
            &self.problem,
            &a,
            h0,
            reset,
            &h,
            &d_h,
            d_h_last.as_deref(),
            &mut d_a,
            &mut d_b,
            &mut d_h0,
        )
        .unwrap();
        Outcome {
            h: wide(&h),
            d_a: wide(&d_a),
            d_b: wide(&d_b),
            d_h0: wide(&d_h0),
        }
    }

    /// A loss that is linear in the states.
    pub fn loss(&self) -> f64 {
        let h = self.oracle().h;
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let Shape { batch, steps, .. } = self.problem.shape;
        let dim = self.problem.shape.dim();
        let last = if self.problem.reverse { 0 } else { steps - 1 };
        let through_last = self.d_h_last.as_ref().map_or(0.0, |d| {
            (0..batch)
                .map(|n| dot(&d[n * dim..][..dim], &h[(n * steps + last) * dim..][..dim]))
                .sum()
        });
        dot(&self.d_h, &h) + through_last
    }

    /// Holds an outcome against the oracle. As for the elementwise scan (16 roundings a step, which no step amplifies),
    /// and a sum of P products in each.
    #[track_caller]
    pub fn compare<E: CpuElement>(&self, found: &Outcome, what: &str) {
        let shape = self.problem.shape;
        let roundings = (16 + shape.size) * shape.steps.max(1);
        for ((name, found), (_, truth)) in found.tensors().into_iter().zip(self.oracle().tensors())
        {
            assert_eq!(found.len(), truth.len(), "{what} {name}");
            let scale = truth.iter().fold(0.0, |scale: f64, x| scale.max(x.abs()));
            let allowed = E::EPSILON / 2.0 * (roundings as f64).sqrt() * scale;
            for (i, (found, truth)) in found.iter().zip(truth).enumerate() {
                assert!(
                    (found - truth).abs() <= allowed,
                    "{what} {name}[{i}] in {}, {shape:?}, reverse {}: {found}, not {truth}",
                    E::NAME,
                    self.problem.reverse
                );
            }
        }
    }
}
