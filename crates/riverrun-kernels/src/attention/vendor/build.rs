//! The graphs of attention, in the forms that cuDNN's fused engines know. Shapes are `[B, H, T, D]` with the strides of
//! `[B, T, H, D]` in memory; of packed inputs and gradients, with those of `[B, T, H + 2 Hk, D]`.

use super::graph::{Four, Graph, Slot, Tensor, contiguous, transposed};
use super::ids::{data, pointwise, reduce};
use super::library::Library;
use super::{Direction, Key, Layout};
use crate::gpu::Dtype;
use crate::gpu::plans::Refusal;

struct Sizes<'a> {
    key: &'a Key,
}

impl Sizes<'_> {
    fn io(&self) -> u32 {
        match self.key.dtype {
            Dtype::F32 => data::FLOAT,
            Dtype::F16 => data::HALF,
            Dtype::Bf16 => data::BFLOAT16,
        }
    }

    fn of(&self, heads: usize) -> Four {
        let shape = self.key.shape;
        [shape.batch, heads, shape.queries, shape.dim].map(|size| size as i64)
    }

    /// The strides of an input or its gradient.
    fn strides(&self, heads: usize) -> Four {
        let shape = self.key.shape;
        let heads = match self.key.layout {
            Layout::Separate => heads,
            Layout::Packed => shape.packed_heads(),
        };
        self.dense(heads)
    }

    /// The strides of `[B, T, heads, D]`.
    fn dense(&self, heads: usize) -> Four {
        let [_, heads, steps, dim] = self.of(heads);
        [steps * heads * dim, dim, heads * dim, 1]
    }

    /// A number a query.
    fn rows(&self) -> Four {
        let [b, h, t, _] = self.of(self.key.shape.heads);
        [b, h, t, 1]
    }

    fn scores(&self) -> Four {
        let [b, h, t, _] = self.of(self.key.shape.heads);
        [b, h, t, t]
    }

    fn queries(&self, graph: &mut Graph, slot: Slot) -> Result<Tensor, Refusal> {
        let heads = self.key.shape.heads;
        graph.buffer(slot, self.of(heads), self.strides(heads), self.io())
    }

    /// `o` and its gradient.
    fn results(&self, graph: &mut Graph, slot: Slot) -> Result<Tensor, Refusal> {
        let heads = self.key.shape.heads;
        graph.buffer(slot, self.of(heads), self.dense(heads), self.io())
    }

    fn keys(&self, graph: &mut Graph, slot: Slot) -> Result<Tensor, Refusal> {
        let heads = self.key.shape.key_heads;
        graph.buffer(slot, self.of(heads), self.strides(heads), self.io())
    }

    /// The same memory, read as the transposed matrix.
    fn keys_transposed(&self, graph: &mut Graph, slot: Slot) -> Result<Tensor, Refusal> {
        let heads = self.key.shape.key_heads;
        let (sizes, strides) = (transposed(self.of(heads)), transposed(self.strides(heads)));
        graph.buffer(slot, sizes, strides, self.io())
    }

    fn numbers(&self, graph: &mut Graph, slot: Slot) -> Result<Tensor, Refusal> {
        graph.buffer(slot, self.rows(), contiguous(self.rows()), data::FLOAT)
    }

    /// `a b` for each query head; with fewer key heads, the sum over each group.
    fn grouped(&self, graph: &mut Graph, a: Tensor, b: Tensor, out: Tensor) -> Result<(), Refusal> {
        let shape = self.key.shape;
        if shape.heads == shape.key_heads {
            return graph.product(a, b, out);
        }
        let every = graph.between(self.of(shape.heads), self.io())?;
        graph.product(a, b, every)?;
        graph.reduce(reduce::ADD, every, out)
    }
}

/// The graph of a pass.
pub(super) fn graph(library: &'static Library, key: &Key) -> Result<Graph, Refusal> {
    let mut graph = Graph::new(library);
    let sizes = Sizes { key };
    match key.direction {
        Direction::Forward => forward(&mut graph, &sizes)?,
        Direction::Backward { ordered } => backward(&mut graph, &sizes, ordered)?,
    }
    Ok(graph)
}

/// `o = softmax(mask(scale · q kᵀ)) v`.
fn forward(graph: &mut Graph, sizes: &Sizes<'_>) -> Result<(), Refusal> {
    let key = sizes.key;
    let q = sizes.queries(graph, Slot::Q)?;
    let k = sizes.keys_transposed(graph, Slot::K)?;
    let v = sizes.keys(graph, Slot::V)?;
    let o = sizes.results(graph, Slot::O)?;
    let lse = sizes.numbers(graph, Slot::Lse)?;
    let scores = graph.between(sizes.scores(), data::FLOAT)?;
    graph.product(q, k, scores)?;
    let scale = graph.value(key.scale())?;
    let scores = graph.map(pointwise::MUL, &[scores, scale])?;
    let scores = graph.mask(scores, key.causal, key.window)?;
    let p = graph.softmax(scores, lse, sizes.io())?;
    graph.product(p, v, o)
}

/// The formulas of [`attention`](crate::attention). `ordered`: `dq` comes from a product with the whole of `ds`, which goes through
/// the workspace; else it is summed up by atomics.
fn backward(graph: &mut Graph, sizes: &Sizes<'_>, ordered: bool) -> Result<(), Refusal> {
    let key = sizes.key;
    let heads = key.shape.heads;
    let q = sizes.queries(graph, Slot::Q)?;
    let k = sizes.keys_transposed(graph, Slot::K)?;
    let v = sizes.keys_transposed(graph, Slot::V)?;
    let o = sizes.results(graph, Slot::O)?;
    let d_o = sizes.results(graph, Slot::DO)?;
    let lse = sizes.numbers(graph, Slot::Lse)?;
    let d_q = sizes.queries(graph, Slot::DQ)?;
    let d_k = sizes.keys(graph, Slot::DK)?;
    let d_v = sizes.keys(graph, Slot::DV)?;
    let delta = sizes.numbers(graph, Slot::Delta)?;
    let one = graph.value(1.0)?;
    let scale = graph.value(key.scale())?;

    // The product with 1 stands where the engines expect the scale of dropout, and they know the other product by its strides.
    let [b, h, t, d] = sizes.of(heads);
    let strides = [h * t * d, t * d, h * d, 1];
    let product = graph.between_with([b, h, t, d], strides, data::FLOAT)?;
    graph.pointwise_to(pointwise::MUL, data::FLOAT, None, &[d_o, o], product)?;
    let sums = graph.between(sizes.rows(), data::FLOAT)?;
    graph.reduce(reduce::ADD, product, sums)?;
    graph.pointwise_to(pointwise::MUL, data::FLOAT, None, &[sums, one], delta)?;

    // The engines expect the mask after `lse` is taken off.
    let scores = graph.between(sizes.scores(), data::FLOAT)?;
    graph.product(q, k, scores)?;
    let scores = graph.map(pointwise::MUL, &[scores, scale])?;
    let scores = graph.map(pointwise::SUB, &[scores, lse])?;
    let scores = graph.mask(scores, key.causal, key.window)?;
    let p = graph.map(pointwise::EXP, &[scores])?;

    let turned = graph.transpose(p, sizes.io())?;
    sizes.grouped(graph, turned, d_o, d_v)?;

    let d_p = graph.between(sizes.scores(), data::FLOAT)?;
    graph.product(d_o, v, d_p)?;
    let d_s = graph.map(pointwise::SUB, &[d_p, delta])?;
    let d_s = graph.map(pointwise::MUL, &[d_s, p])?;
    let d_s = graph.map(pointwise::MUL, &[d_s, scale])?;

    let turned = graph.transpose(d_s, sizes.io())?;
    sizes.grouped(graph, turned, q, d_k)?;

    let k = graph.transpose(k, data::FLOAT)?;
    if ordered {
        return graph.product(d_s, k, d_q);
    }
    let sums = graph.buffer(
        Slot::Sums,
        sizes.of(heads),
        contiguous(sizes.of(heads)),
        data::FLOAT,
    )?;
    graph.product(d_s, k, sums)?;
    graph.pointwise_to(pointwise::IDENTITY, data::FLOAT, None, &[sums], d_q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{Problem, Shape};

    /// Where the library is installed: it checks every tensor and operation, for which it needs no device.
    #[test]
    fn the_library_accepts_every_graph() {
        let library = match Library::get() {
            Ok(library) => library,
            Err(reason) => return println!("skipped: {reason}"),
        };
        let directions = [
            Direction::Forward,
            Direction::Backward { ordered: true },
            Direction::Backward { ordered: false },
        ];
        for (dtype, [batch, steps, heads, key_heads, dim], causal, window) in [
            (Dtype::Bf16, [2, 256, 4, 2, 64], true, None),
            (Dtype::Bf16, [1, 1024, 2, 2, 128], false, None),
            (Dtype::F16, [1, 500, 2, 1, 128], true, Some(100)),
            (Dtype::Bf16, [1, 512, 2, 1, 256], true, None),
        ] {
            let shape = Shape {
                key_heads,
                ..Shape::same(batch, steps, heads, dim)
            };
            let problem = Problem {
                causal,
                window,
                ..Problem::new(shape)
            };
            for layout in [Layout::Separate, Layout::Packed] {
                for direction in directions {
                    let key = Key::new(&problem, dtype, direction, layout);
                    let graph = graph(library, &key)
                        .and_then(|graph| graph.finalized(std::ptr::null_mut()));
                    assert!(graph.is_ok(), "{key:?}: {:?}", graph.err());
                }
            }
        }
    }
}
