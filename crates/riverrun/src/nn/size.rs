//! The sizes of layers, by formula.

/// The sum of products of sizes; `None` if it does not fit into 64 bits.
pub fn count(products: &[&[usize]]) -> Option<u64> {
    products.iter().try_fold(0u64, |sum, factors| {
        let factors = factors.iter();
        let product = factors
            .clone()
            .try_fold(1u64, |product, &factor| product.checked_mul(factor as u64));
        sum.checked_add(product?)
    })
}
