//! Numbers with the size of their terms, and matrices of them.

use std::ops::{Add, Mul, Neg};

/// A number, and the root of the sum of the squares of the terms that it was added up from: what its rounding errors are
/// relative to, also where the terms cancel.
#[derive(Clone, Copy, Default)]
pub struct Number {
    /// The number.
    pub x: f64,
    /// The size of its terms.
    pub size: f64,
}

impl From<f64> for Number {
    fn from(x: f64) -> Self {
        let size = x.abs();
        Self { x, size }
    }
}

impl Add for Number {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            x: self.x + other.x,
            size: self.size.hypot(other.size),
        }
    }
}

impl Mul for Number {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self {
            x: self.x * other.x,
            size: self.size * other.size,
        }
    }
}

impl Neg for Number {
    type Output = Self;

    fn neg(self) -> Self {
        Self { x: -self.x, ..self }
    }
}

/// Numbers without terms.
pub fn numbers(x: &[f64]) -> Vec<Number> {
    x.iter().copied().map(Number::from).collect()
}

/// `x·y`.
pub fn dot(x: &[Number], y: &[Number]) -> Number {
    let products = x.iter().zip(y).map(|(x, y)| *x * *y);
    products.fold(Number::default(), Add::add)
}

/// `x by`.
pub fn scaled(x: &[Number], by: Number) -> Vec<Number> {
    x.iter().map(|x| *x * by).collect()
}

/// `x ∘ y`.
pub fn product(x: &[Number], y: &[Number]) -> Vec<Number> {
    x.iter().zip(y).map(|(x, y)| *x * *y).collect()
}

/// `-x`.
pub fn minus(x: &[Number]) -> Vec<Number> {
    x.iter().map(|x| -*x).collect()
}

/// `to += x`.
pub fn add_to(to: &mut [Number], x: &[Number]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to = *to + *x;
    }
}

/// A matrix.
#[derive(Clone)]
pub struct Matrix {
    columns: usize,
    /// The elements, row by row.
    pub x: Vec<Number>,
}

impl Matrix {
    /// Zeros.
    pub fn zeros(rows: usize, columns: usize) -> Self {
        let x = vec![Number::default(); rows * columns];
        Self { columns, x }
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = &[Number]> {
        self.x.chunks(self.columns)
    }

    /// `M y`.
    pub fn times(&self, y: &[Number]) -> Vec<Number> {
        self.rows().map(|row| dot(row, y)).collect()
    }

    /// `Mᵀ x`.
    pub fn transposed_times(&self, x: &[Number]) -> Vec<Number> {
        let mut sum = vec![Number::default(); self.columns];
        for (row, x) in self.rows().zip(x) {
            add_to(&mut sum, &scaled(row, *x));
        }
        sum
    }

    /// `M + x yᵀ`.
    pub fn plus_outer(mut self, x: &[Number], y: &[Number]) -> Self {
        for (row, x) in self.x.chunks_mut(self.columns).zip(x) {
            add_to(row, &scaled(y, *x));
        }
        self
    }

    /// `Diag(x) M`.
    pub fn scaled(&self, x: &[Number]) -> Self {
        let rows = self.rows().zip(x).flat_map(|(row, x)| scaled(row, *x));
        Self {
            columns: self.columns,
            x: rows.collect(),
        }
    }

    /// The same numbers, all of the size of the largest: the errors of a state spread over its elements.
    pub fn levelled(mut self) -> Self {
        let size = crate::largest(self.x.iter().map(|x| x.x.abs()));
        self.x.iter_mut().for_each(|x| x.size = size);
        self
    }
}
