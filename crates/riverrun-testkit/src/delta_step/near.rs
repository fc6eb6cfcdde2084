//! Numbers with a bound on the error of a computation of them.

use std::ops::{Add, Mul, Sub};

/// A number and how far a computed one may be from it, before the rounding of the operation that made it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Near {
    pub x: f64,
    pub off: f64,
}

/// Without an error.
pub fn exact(x: f64) -> Near {
    Near { x, off: 0.0 }
}

impl Add for Near {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            x: self.x + other.x,
            off: self.off + other.off,
        }
    }
}

impl Sub for Near {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + other * exact(-1.0)
    }
}

impl Mul for Near {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self {
            x: self.x * other.x,
            off: self.x.abs() * other.off + self.off * (other.x.abs() + other.off),
        }
    }
}

impl Near {
    /// After `count` roundings `u` of a size.
    pub fn rounded(self, u: f64, count: f64, size: f64) -> Self {
        Self {
            off: self.off + u * count * size,
            ..self
        }
    }

    /// A function of it, whose slope is at most `slope` nearby.
    pub fn map(self, f: impl Fn(f64) -> f64, slope: f64) -> Self {
        Self {
            x: f(self.x),
            off: self.off * slope,
        }
    }

    /// `1 / √x` of a number above 0.
    pub fn inverse_root(self) -> Self {
        let nearest = (self.x - self.off).max(self.x / 4.0);
        self.map(|x| x.powf(-0.5), 0.5 * nearest.powf(-1.5))
    }
}

/// The sum of terms, each rounded, in any order.
pub fn sum(u: f64, terms: impl Iterator<Item = Near>) -> Near {
    let (total, sizes, count) = terms.fold((Near::default(), 0.0, 4.0), |(sum, size, n), term| {
        (sum + term, size + term.x.abs(), n + 1.0)
    });
    total.rounded(u, count, sizes)
}
