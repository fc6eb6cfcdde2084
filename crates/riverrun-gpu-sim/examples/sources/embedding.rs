//! The embedding's kernels.

use std::error::Error;

use cubecl::ir::{ElemType, IntKind};
use riverrun_kernels::embedding::Shape;
use riverrun_kernels::embedding::gpu::{Backward, Forward, backward, forward};
use riverrun_kernels::gpu::Dtype;

use super::Writer;

/// `[N, V, D]`: counting in blocks of one token a thread and of four, vectors of all widths.
const SHAPES: [[usize; 3]; 3] = [
    [65_536, 65, 512],
    [16_384, 50_257, 768],
    [65_536, 200_000, 33],
];

/// Both passes of every shape, type and type of tokens.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    for (n, [tokens, vocab, dim]) in SHAPES.into_iter().enumerate() {
        let shape = Shape::new(tokens, vocab, dim);
        for dtype in Dtype::ALL {
            // In a sample each shape has one of the types.
            if writer.sample && dtype != Dtype::ALL[n] {
                continue;
            }
            for (name, kind) in [("i32", IntKind::I32), ("i64", IntKind::I64)] {
                if writer.sample && (n == 1) != (name == "i64") {
                    continue;
                }
                let index = ElemType::Int(kind);
                let place = format!("embedding/{tokens}x{vocab}x{dim}-{}-{name}", dtype.name());
                writer.write(&format!("{place}-forward"), |client| {
                    let args = Forward {
                        weight: client.empty(shape.table() * dtype.size()),
                        tokens: client.empty(tokens * index.size()),
                        index,
                        y: client.empty(shape.outputs() * dtype.size()),
                    };
                    forward(client, dtype, shape, &args)
                })?;
                writer.write(&format!("{place}-backward"), |client| {
                    let args = Backward {
                        d_y: client.empty(shape.outputs() * dtype.size()),
                        tokens: client.empty(tokens * index.size()),
                        index,
                        d_weight: client.empty(shape.table() * dtype.size()),
                    };
                    backward(client, dtype, shape, &args)
                })?;
            }
        }
    }
    Ok(())
}
