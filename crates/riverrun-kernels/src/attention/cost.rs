//! The cost of attention: bytes and flops.

use super::Problem;

impl Problem {
    /// Pairs of a query and a key that it sees, over all sequences and heads, without marks.
    pub fn pairs(&self) -> u128 {
        let shape = self.shape;
        let one: u128 = (0..shape.queries).map(|i| self.span(i).len() as u128).sum();
        one * (shape.batch * shape.heads) as u128
    }

    /// Floating-point operations of a forward pass (2 products, 2 operations a number) or a backward pass (5 products), as
    /// attention kernels are commonly counted.
    pub fn flops(&self, backward: bool) -> u128 {
        let products = if backward { 5 } else { 2 };
        2 * products * self.pairs() * self.shape.dim as u128
    }
}
