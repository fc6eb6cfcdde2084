//! A factor of a product.

/// A stored matrix, rows contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a, E> {
    /// `[rows, columns]`, or `[columns, rows]` if it is the transpose that is stored.
    pub data: &'a [E],
    /// Whether the transpose is stored.
    pub transposed: bool,
}
