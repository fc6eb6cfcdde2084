//! The formulas of the contract, one number after the other: in `f64` the oracle, in `f32` the textbook form that tolerances
//! are derived from and that `bench rollout` times as the scalar program.

use super::{
    Arguments, CLAMP, DELTAS, Decode, LEAST_LOSS, LEAST_PROBABILITY, LINEAR_ENTROPY, Outcome,
    Problem,
};
use crate::Error;

/// `f32` or `f64`, with the functions of the standard library.
pub trait Scalar:
    Copy
    + Default
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::AddAssign
    + std::ops::Neg<Output = Self>
{
    /// The nearest number.
    fn new(x: f64) -> Self;
    /// `e^self`.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
}

macro_rules! scalar {
    ($($type:ident),*) => {$(
        impl Scalar for $type {
            fn new(x: f64) -> Self {
                x as $type
            }
            fn exp(self) -> Self {
                self.exp()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            fn tanh(self) -> Self {
                self.tanh()
            }
            fn sqrt(self) -> Self {
                self.sqrt()
            }
        }
    )*};
}

scalar!(f32, f64);

fn dot<R: Scalar>(a: &[R], b: &[R]) -> R {
    let mut sum = R::default();
    for (a, b) in a.iter().zip(b) {
        sum += *a * *b;
    }
    sum
}

fn sigmoid<R: Scalar>(x: R) -> R {
    let zero = R::default();
    if x < zero {
        let e = x.exp();
        e / (R::new(1.0) + e)
    } else {
        R::new(1.0) / (R::new(1.0) + (-x).exp())
    }
}

/// The second half of `v`, and the entropy of a step.
fn stochastic<R: Scalar>(problem: &Problem, h: &[R]) -> (Vec<R>, R) {
    if problem.decode == Decode::Linear {
        return (h.to_vec(), R::new(LINEAR_ENTROPY));
    }
    let s = (0..problem.stochastic).map(|i| h[problem.logit(i)]);
    let most = s
        .clone()
        .fold(h[0], |most, s| if s > most { s } else { most });
    let e: Vec<R> = s.map(|s| (s - most).exp()).collect();
    let mut all = R::default();
    for e in &e {
        all += *e;
    }
    let p: Vec<R> = e.into_iter().map(|e| e / all).collect();
    let mut entropy = R::default();
    for p in &p {
        // A NaN is not dropped.
        if !matches!(
            p.partial_cmp(&R::new(LEAST_PROBABILITY)),
            Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)
        ) {
            entropy += -(*p * p.ln());
        }
    }
    (p, entropy)
}

fn decode<R: Scalar>(problem: &Problem, y: R) -> R {
    if problem.decode == Decode::Linear {
        return y;
    }
    let (least, most, floor) = (R::new(-CLAMP), R::new(CLAMP), R::new(LEAST_LOSS));
    let y = match y {
        y if y < least => least,
        y if y > most => most,
        y => y,
    };
    let loss = y.exp();
    if loss < floor { floor } else { loss }
}

/// Runs every member.
///
/// # Errors
/// [`Error::Rollout`] for sizes and [`Error::Length`] for arrays that do not fit.
pub fn run<R: Scalar>(problem: &Problem, arguments: Arguments<'_, R>) -> Result<Outcome<R>, Error> {
    arguments.check(problem)?;
    let (hidden, inputs) = (problem.hidden, problem.features);
    let mut found = Outcome::filled(problem, R::default());
    let v = problem.combined();
    let (head, delta_head) = arguments.heads(problem);
    for m in 0..problem.members {
        let [w, u, bias, h0] = arguments.member(problem, m);
        let mut h = h0.to_vec();
        let mut features = arguments.features.to_vec();
        let mut entropy = R::default();
        let points = m * (problem.steps + 1);
        found.trajectory[points] = arguments.loss[0];
        let gate = |row: usize, features: &[R], h: &[R]| {
            bias[row]
                + dot(&w[row * inputs..(row + 1) * inputs], features)
                + dot(&u[row * hidden..(row + 1) * hidden], h)
        };
        for t in 0..problem.steps {
            let z: Vec<R> = (0..hidden)
                .map(|i| sigmoid(gate(i, &features, &h)))
                .collect();
            let rh: Vec<R> = (0..hidden)
                .map(|i| sigmoid(gate(hidden + i, &features, &h)) * h[i])
                .collect();
            for i in 0..hidden {
                let c = gate(2 * hidden + i, &features, &rh).tanh();
                h[i] = (R::new(1.0) - z[i]) * h[i] + z[i] * c;
            }
            let (p, more) = stochastic(problem, &h);
            entropy += more;
            let loss = decode(problem, dot(&head[..hidden], &h) + dot(&head[hidden..], &p));
            features[0] = loss;
            found.trajectory[points + t + 1] = loss;
            found.norm[m * problem.steps + t] = dot(&h, &h).sqrt();
        }
        let state = &mut found.state[m * v..(m + 1) * v];
        state[..hidden].copy_from_slice(&h);
        state[hidden..].copy_from_slice(&stochastic(problem, &h).0);
        for k in 0..DELTAS {
            found.delta[m * DELTAS + k] = dot(&delta_head[k * v..(k + 1) * v], state);
        }
        found.entropy[m] = entropy;
    }
    Ok(found)
}
