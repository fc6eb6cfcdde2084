//! Results: tensors by name.

use crate::same_bits;

/// Tensors with their names, in `f64`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tensors(Vec<(&'static str, Vec<f64>)>);

impl Tensors {
    /// In the order of the list.
    pub fn new(tensors: impl IntoIterator<Item = (&'static str, Vec<f64>)>) -> Self {
        Self(tensors.into_iter().collect())
    }

    /// A tensor by its name.
    ///
    /// # Panics
    /// Without such a tensor.
    pub fn get(&self, name: &str) -> &[f64] {
        let found = self.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    /// Every tensor with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[f64])> {
        self.0.iter().map(|(name, numbers)| (*name, &numbers[..]))
    }

    /// The names, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }

    /// Tensors of the same names and lengths: each number replaced by a function of its tensor's name, its place and itself.
    pub fn map(&self, f: impl Fn(&str, usize, f64) -> f64) -> Self {
        let mapped = |(name, numbers): (&'static str, &[f64])| {
            let numbers = numbers.iter().enumerate();
            (name, numbers.map(|(i, &x)| f(name, i, x)).collect())
        };
        Self::new(self.iter().map(mapped))
    }

    /// Whether both have the same tensors, bit by bit.
    pub fn same_bits(&self, other: &Self) -> bool {
        self.names() == other.names()
            && same_bits(
                self.iter().map(|(_, numbers)| numbers),
                other.iter().map(|(_, numbers)| numbers),
            )
    }
}

/// A mask as numbers: 1 where a mark is.
pub fn marks(mask: &[bool]) -> Vec<f64> {
    mask.iter().map(|&mark| f64::from(u8::from(mark))).collect()
}
