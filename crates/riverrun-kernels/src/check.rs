//! What every check of a result against the truth shares; the rule of acceptance is each operation's own.

#[cfg(feature = "gpu")]
mod buffer;

#[cfg(feature = "gpu")]
pub use buffer::{bytes, numbers};

/// The largest; NaN if any is.
pub fn largest(x: impl Iterator<Item = f64>) -> f64 {
    // Not `f64::max`, which drops NaN.
    x.fold(0.0, |largest: f64, x| {
        if largest.is_nan() || x <= largest {
            largest
        } else {
            x
        }
    })
}

/// The largest absolute difference; NaN if any is.
///
/// # Panics
/// Where the lengths differ.
pub fn distance(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    largest(x.iter().zip(y).map(|(x, y)| (x - y).abs()))
}

/// One tensor of a result against the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Which tensor.
    pub tensor: String,
    /// The largest absolute error.
    pub error: f64,
    /// The largest that is right.
    pub allowed: f64,
}

impl Verdict {
    /// Whether the error is within what is allowed; NaN never is.
    pub fn right(&self) -> bool {
        self.error <= self.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nan_makes_a_tensor_wrong() {
        assert!(distance(&[f64::NAN, 1.0, 2.0], &[0.0, 1.0, 2.5]).is_nan());
        assert!(distance(&[0.0, 1.0, f64::NAN], &[0.5, 1.0, 2.0]).is_nan());
        assert_eq!(distance(&[0.0, 1.0, 2.0], &[0.5, -1.0, 2.0]), 2.0);
        let verdict = Verdict {
            tensor: "h".into(),
            error: f64::NAN,
            allowed: f64::INFINITY,
        };
        assert!(!verdict.right());
    }
}
