//! Bytes that an embedding moves: the floor that kernels are measured against, and those of the GPU form.
//!
//! | bytes | forward | backward |
//! | --- | --- | --- |
//! | least | tokens, `y` written, each row in use read once | tokens, `∂L/∂y` read, the whole gradient written |
//! | GPU form | as the least; a row in use that has left the cache is read again | the least, and: a count for each block of tokens and row, written, read and written again; four words for each token; `f32` sums of the pieces of segments that are longer than a piece |
//!
//! Counts are a word for each row and block of 256, 1024 or 4096 tokens: at most 16 MB with the first and 64 MB with the
//! second. Predicted for a card of 4.2 TB/s in bf16, eight launches recorded
//! together: 65536 tokens, `V` 65, `D` 512: 67 MB least (16 µs), 84 MB moved, about 40 µs; 16384, 50257, 768: 102 MB
//! (24 µs), 160 MB, about 55 µs; 16384, 65, 256: 8 MB (2 µs), about 20 µs, which is the launches.

use super::Shape;

/// Bytes of the least traffic of a pass, with elements of `element` bytes and tokens of `token` bytes. The rows in use
/// are taken to be as many as there are tokens, or all.
pub fn bytes(shape: Shape, backward: bool, element: usize, token: usize) -> usize {
    let tokens = shape.tokens * token;
    let table = if backward {
        shape.table()
    } else {
        shape.vocab.min(shape.tokens) * shape.dim
    };
    tokens + (shape.outputs() + table) * element
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backward_reads_its_gradient_and_writes_the_table() {
        let shape = Shape::new(10, 7, 3);
        assert_eq!(bytes(shape, true, 2, 4), 40 + (30 + 21) * 2);
        assert_eq!(bytes(shape, false, 4, 8), 80 + (30 + 21) * 4);
        assert_eq!(bytes(Shape::new(0, 7, 3), false, 4, 8), 0);
    }
}
