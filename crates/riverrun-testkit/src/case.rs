//! A problem, the forms that run it, and the verdict on a result.

use riverrun_kernels::{CpuElement, Element, Error};

#[cfg(feature = "ops")]
use crate::Failure;
use crate::{Comparison, Target, Tensors, rounded, worst};

/// A problem of an operation with its data, in `f64`.
///
/// A form runs the problem once and returns every output and every gradient by name; outputs are filled with NaN first.
pub trait Case: Clone {
    /// The data that a storage type rounds.
    fn numbers(&mut self) -> Vec<&mut Vec<f64>>;

    /// The exact result of a problem whose data `E` represents.
    fn oracle<E: Element>(&self) -> Tensors;

    /// The largest error of each number that passes, under the names and in the lengths of `truth`, the oracle's result.
    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors;

    /// Runs the CPU kernels.
    ///
    /// # Errors
    /// The errors of the kernels.
    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error>;

    /// Runs the GPU kernels.
    ///
    /// # Errors
    /// The errors of the kernels.
    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error>;

    /// Runs the operation on tensors of an autodiff device, as its users call it.
    ///
    /// # Errors
    /// The errors of the operation.
    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        let _ = on;
        Err(Failure("checked by its kernels".into()))
    }

    /// The same with all data rounded to a storage type.
    fn rounded<E: Element>(mut self) -> Self {
        for numbers in self.numbers() {
            *numbers = rounded::<E>(numbers);
        }
        self
    }

    /// Compares every tensor of a result with the oracle's.
    fn compared<E: Element>(&self, found: &Tensors) -> Vec<Comparison> {
        let truth = self.oracle::<E>();
        compare(found, &truth, &self.allowed::<E>(&truth))
    }

    /// Runs the kernels of a target: the GPU's, or the CPU's where it has no client.
    ///
    /// # Errors
    /// The errors of the kernels.
    fn run<E: CpuElement>(&self, target: &Target) -> Result<Tensors, Error> {
        #[cfg(feature = "gpu")]
        if let Some((client, dtype)) = target.kernels::<E>() {
            return self.gpu(client, dtype);
        }
        let _ = target;
        self.cpu::<E>()
    }
}

/// A result beside its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Every tensor: a missing one, or one too many, has an error of NaN.
    pub comparisons: Vec<Comparison>,
    /// Whether a second run gave the same bits.
    pub repeats: bool,
}

impl Verdict {
    /// Whether every tensor is right, and the second run equal.
    pub fn passes(&self) -> bool {
        self.repeats && self.comparisons.iter().all(Comparison::passes)
    }
}

/// Runs a form of a problem twice, and compares the result with the oracle.
///
/// # Errors
/// The errors of the form.
pub fn judge<E: Element, F>(
    case: &impl Case,
    mut run: impl FnMut() -> Result<Tensors, F>,
) -> Result<Verdict, F> {
    let (found, again) = (run()?, run()?);
    Ok(Verdict {
        comparisons: case.compared::<E>(&found),
        repeats: found.same_bits(&again),
    })
}

/// Compares every tensor of the reference, and every other that was found. Where the reference has NaN, only NaN passes.
pub(crate) fn compare(found: &Tensors, truth: &Tensors, allowed: &Tensors) -> Vec<Comparison> {
    assert_eq!(truth.names(), allowed.names(), "a rule for every tensor");
    let wrong = |tensor: &str| Comparison {
        tensor: tensor.into(),
        error: f64::NAN,
        allowed: 0.0,
    };
    let mut comparisons: Vec<Comparison> = truth
        .iter()
        .zip(allowed.iter())
        .map(
            |((name, truth), (_, allowed))| match found.iter().find(|(found, _)| *found == name) {
                Some((_, found)) if found.len() == truth.len() => {
                    let found: Vec<f64> = found.iter().zip(truth).map(nan_for_nan).collect();
                    let truth: Vec<f64> = truth.iter().map(|&x| number(x)).collect();
                    worst(name, &found, &truth, |i| allowed[i].max(0.0))
                }
                _ => wrong(name),
            },
        )
        .collect();
    let known = truth.names();
    let unknown = found
        .names()
        .into_iter()
        .filter(|name| !known.contains(name));
    comparisons.extend(unknown.map(wrong));
    comparisons
}

/// A number; 0 for NaN.
fn number(x: f64) -> f64 {
    if x.is_nan() { 0.0 } else { x }
}

/// What was found; 0 for the NaN of a reference that is NaN too, and NaN for any other number there.
fn nan_for_nan((&found, truth): (&f64, &f64)) -> f64 {
    match (found.is_nan(), truth.is_nan()) {
        (true, true) => 0.0,
        (false, true) => f64::NAN,
        _ => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tensor_is_wrong() {
        let tensors = |names: &[&'static str]| Tensors::new(names.iter().map(|&n| (n, vec![1.0])));
        let passes = |found: &[&'static str], truth: &[&'static str]| {
            let truth = tensors(truth);
            let all = compare(&tensors(found), &truth, &truth);
            all.iter().all(Comparison::passes)
        };
        assert!(passes(&["y", "d_x"], &["y", "d_x"]));
        assert!(!passes(&["y"], &["y", "d_x"]));
        assert!(!passes(&["y", "d_x"], &["y"]));
        let nan = Tensors::new([("y", vec![f64::NAN])]);
        let none = Tensors::new([("y", vec![0.0])]);
        assert!(compare(&nan, &nan, &none)[0].passes());
        assert!(!compare(&none, &nan, &none)[0].passes());
        assert!(!compare(&nan, &none, &none)[0].passes());
        let (short, truth) = (Tensors::new([("y", vec![])]), tensors(&["y"]));
        assert!(!compare(&short, &truth, &truth)[0].passes());
    }
}
