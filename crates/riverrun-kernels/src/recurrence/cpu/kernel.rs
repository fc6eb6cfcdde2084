//! One sequence, one block of channels, all steps: the loops that are compiled once per gate, type and level.
//!
//! Time is the outer loop and a row of channels the inner one, taken [`LANES`] channels at a time: rows are what memory
//! streams, and lanes are what fills vector registers. The carries of a block stay in the first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Element;
use crate::memory::{Streaming, prefetch};
use crate::real::Real;
use crate::recurrence::coefficients::Coefficients;
use crate::recurrence::{Problem, Rows, RowsMut};
use crate::simd::{Isa, Task};

/// Channels computed together: a power of two that fills the widest vector registers.
pub const LANES: usize = 16;

/// The most channels of a block, a multiple of [`LANES`]: their carries and rows fit the first-level cache.
pub const WIDTH: usize = 1024;

/// What both passes work on.
pub struct Block<'a, E, C, const N: usize> {
    pub problem: &'a Problem,
    pub inputs: [&'a Rows<'a, E>; N],
    /// The block's part of `h_0`.
    pub h0: Option<&'a [E]>,
    /// The sequence's resets.
    pub reset: Option<&'a [bool]>,
    /// The sequence.
    pub b: usize,
    pub channels: Range<usize>,
    /// Whether to store past the caches.
    pub streaming: bool,
    pub gate: PhantomData<C>,
}

impl<E, C, const N: usize> Block<'_, E, C, N> {
    /// The place in time of the step that runs as number `s`.
    #[inline(always)]
    fn time(&self, s: usize) -> usize {
        if self.problem.reverse {
            self.problem.shape.steps - 1 - s
        } else {
            s
        }
    }

    #[inline(always)]
    fn is_reset(&self, t: usize) -> bool {
        self.reset.is_some_and(|reset| reset[t])
    }

    #[inline(always)]
    fn row<'r>(&self, rows: &Rows<'r, E>, t: usize) -> &'r [E] {
        &rows.row(self.b, t)[self.channels.clone()]
    }

    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "a block has its rows to itself")]
    fn row_mut<'r>(&self, rows: &'r RowsMut<E>, t: usize) -> &'r mut [E] {
        // SAFETY: no other block has this sequence and these channels, rows do not overlap, and a kernel lets go of
        // a row before it asks for another of the same tensor.
        unsafe { rows.row_mut(self.b, t, self.channels.clone()) }
    }

    /// Whether the rows of an input leave gaps. Prefetchers of the machine follow rows that adjoin, but stumble at every
    /// gap; there the kernel has to ask for the next row while it works on one.
    #[inline(always)]
    fn has_gaps(&self) -> bool {
        self.inputs
            .iter()
            .any(|input| !input.steps_adjoin(self.channels.len()))
    }

    #[inline(always)]
    fn permission(&self) -> Option<Streaming> {
        // Blocks with a rest of channels would mix both kinds of store in one cache line.
        let whole = self.channels.len().is_multiple_of(LANES);
        (self.streaming && whole).then(Streaming::new)
    }
}

/// The forward pass of a block.
pub struct Forward<'a, E, C, const N: usize> {
    pub block: Block<'a, E, C, N>,
    pub h: &'a RowsMut<'a, E>,
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Forward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self { block, h } = self;
        let steps = block.problem.shape.steps;
        let gaps = block.has_gaps();
        let streaming = block.permission();
        let mut carry = Carry::<E>::new(block.channels.len(), block.h0);
        for s in 0..steps {
            let t = block.time(s);
            if block.is_reset(t) {
                carry.clear();
            }
            let inputs = block.inputs.map(|input| block.row(input, t));
            let ahead = if gaps && s + 1 < steps {
                block
                    .inputs
                    .map(|input| block.row(input, block.time(s + 1)))
            } else {
                [&[][..]; N]
            };
            let h = block.row_mut(h, t);
            forward_row::<E, C, I, N>(inputs, ahead, &mut carry.lanes, h, streaming.as_ref());
        }
    }
}

#[inline(always)]
fn forward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E]; N],
    ahead: [&[E]; N],
    carry: &mut [[E::Acc; LANES]],
    h: &mut [E],
    streaming: Option<&Streaming>,
) {
    let width = h.len();
    let full = width / LANES;
    for i in 0..full {
        let at = i * LANES..(i + 1) * LANES;
        ahead.iter().for_each(|row| prefetch(row.get(at.start)));
        let inputs = inputs.map(|input| lanes(&input[at.clone()]));
        let y = forward_lanes::<E, C, I, N>(inputs, &mut carry[i]);
        store(&mut h[at], &y, streaming);
    }
    let rest = full * LANES;
    if rest < width {
        let inputs = inputs.map(|input| padded(&input[rest..width]));
        let y = forward_lanes::<E, C, I, N>(inputs.each_ref(), &mut carry[full]);
        h[rest..].copy_from_slice(&y[..width - rest]);
    }
}

// Results leave the loops over lanes by value: the compiler then knows that no output is also an input, without which it
// would keep the order of every load and store and vectorise nothing. Inputs come by reference, because an array that
// comes by value is copied whole for every lane.

#[inline(always)]
fn forward_lanes<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E; LANES]; N],
    carry: &mut [E::Acc; LANES],
) -> [E; LANES] {
    let mut h = [E::default(); LANES];
    for i in 0..LANES {
        let (a, b) = C::forward::<E::Acc, I>(inputs.map(|input| input[i].widen()));
        let y = a.mul_add::<I>(carry[i], b);
        carry[i] = y;
        h[i] = E::narrow(y);
    }
    h
}

/// The backward pass of a block.
pub struct Backward<'a, E, C, const N: usize> {
    pub block: Block<'a, E, C, N>,
    pub h: &'a Rows<'a, E>,
    pub d_h: &'a Rows<'a, E>,
    /// The block's part of `∂L/∂h_last`.
    pub d_h_last: Option<&'a [E]>,
    pub d_inputs: [&'a RowsMut<'a, E>; N],
    /// `[B, 1, D]`.
    pub d_h0: Option<&'a RowsMut<'a, E>>,
}

/// What the backward pass of a step reads.
struct Reads<'a, E, const N: usize> {
    inputs: [&'a [E]; N],
    h_prev: &'a [E],
    d_h: &'a [E],
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Backward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            block,
            h,
            d_h,
            d_h_last,
            d_inputs,
            d_h0,
        } = self;
        let width = block.channels.len();
        let zeros = &[E::default(); WIDTH][..width];
        let reads = |s: usize| {
            let t = block.time(s);
            Reads {
                inputs: block.inputs.map(|input| block.row(input, t)),
                h_prev: match s {
                    _ if block.is_reset(t) => zeros,
                    0 => block.h0.unwrap_or(zeros),
                    _ => block.row(h, block.time(s - 1)),
                },
                d_h: block.row(d_h, t),
            }
        };
        let gaps = block.has_gaps();
        let streaming = block.permission();
        let mut carry = Carry::<E>::new(width, d_h_last);
        for s in (0..block.problem.shape.steps).rev() {
            let t = block.time(s);
            let ahead = (gaps && s > 0).then(|| reads(s - 1));
            let d_inputs = d_inputs.map(|d| block.row_mut(d, t));
            let streaming = streaming.as_ref();
            backward_row::<E, C, I, N>(reads(s), ahead, &mut carry.lanes, d_inputs, streaming);
            if block.is_reset(t) {
                carry.clear();
            }
        }
        if let Some(d_h0) = d_h0 {
            let d_h0 = block.row_mut(d_h0, 0);
            for (d, carry) in d_h0.iter_mut().zip(carry.lanes.as_flattened()) {
                *d = E::narrow(*carry);
            }
        }
    }
}

#[inline(always)]
fn backward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    reads: Reads<E, N>,
    ahead: Option<Reads<E, N>>,
    carry: &mut [[E::Acc; LANES]],
    d_inputs: [&mut [E]; N],
    streaming: Option<&Streaming>,
) {
    let Reads {
        inputs,
        h_prev,
        d_h,
    } = reads;
    let width = d_h.len();
    let full = width / LANES;
    // From the last channel to the first: steps run backwards here, and so do all addresses then, which prefetchers
    // follow where they would not follow rows that go forwards and steps that go back.
    let rest = full * LANES;
    if rest < width {
        let inputs = inputs.map(|input| padded(&input[rest..width]));
        let (h_prev, d_h) = (padded(&h_prev[rest..width]), padded(&d_h[rest..width]));
        let d = backward_lanes::<E, C, I, N>(inputs.each_ref(), &h_prev, &d_h, &mut carry[full]);
        for k in 0..N {
            d_inputs[k][rest..].copy_from_slice(&d[k][..width - rest]);
        }
    }
    for i in (0..full).rev() {
        let at = i * LANES..(i + 1) * LANES;
        if let Some(ahead) = &ahead {
            prefetch(ahead.h_prev.get(at.start));
            prefetch(ahead.d_h.get(at.start));
            for k in 0..N {
                prefetch(
                    ahead.inputs[k]
                        .get(at.start)
                        .filter(|_| C::BACKWARD_READS[k]),
                );
            }
        }
        let inputs = inputs.map(|input| lanes(&input[at.clone()]));
        let (h_prev, d_h) = (lanes(&h_prev[at.clone()]), lanes(&d_h[at.clone()]));
        let d = backward_lanes::<E, C, I, N>(inputs, h_prev, d_h, &mut carry[i]);
        for k in 0..N {
            store(&mut d_inputs[k][at.clone()], &d[k], streaming);
        }
    }
}

#[inline(always)]
fn backward_lanes<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E; LANES]; N],
    h_prev: &[E; LANES],
    d_h: &[E; LANES],
    carry: &mut [E::Acc; LANES],
) -> [[E; LANES]; N] {
    let mut d_inputs = [[E::default(); LANES]; N];
    for i in 0..LANES {
        let d = d_h[i].widen() + carry[i];
        let x = inputs.map(|input| input[i].widen());
        let (a, dx) = C::backward::<E::Acc, I>(x, h_prev[i].widen(), d);
        carry[i] = a * d;
        for k in 0..N {
            d_inputs[k][i] = E::narrow(dx[k]);
        }
    }
    d_inputs
}

/// What a block of channels carries from step to step.
struct Carry<E: Element> {
    lanes: [[E::Acc; LANES]; WIDTH / LANES],
    /// Of `lanes`, how many the block has.
    used: usize,
}

impl<E: Element> Carry<E> {
    /// The block's part of a state, zero if there is none.
    #[inline(always)]
    fn new(channels: usize, state: Option<&[E]>) -> Self {
        let mut lanes = [[E::Acc::ZERO; LANES]; WIDTH / LANES];
        for (carry, x) in lanes
            .as_flattened_mut()
            .iter_mut()
            .zip(state.unwrap_or_default())
        {
            *carry = x.widen();
        }
        Self {
            lanes,
            used: channels.div_ceil(LANES),
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.lanes[..self.used].fill([E::Acc::ZERO; LANES]);
    }
}

#[inline(always)]
fn lanes<E>(x: &[E]) -> &[E; LANES] {
    x.try_into().expect("a slice of LANES")
}

/// The last channels of a row, with zeros after them.
#[inline(always)]
fn padded<E: Element>(x: &[E]) -> [E; LANES] {
    let mut lanes = [E::default(); LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

#[inline(always)]
fn store<E: Element>(to: &mut [E], from: &[E; LANES], streaming: Option<&Streaming>) {
    let to: &mut [E; LANES] = to.try_into().expect("a slice of LANES");
    match streaming {
        Some(streaming) => streaming.store(to, from),
        None => *to = *from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recurrence::coefficients::Visitor;
    use crate::recurrence::{Gate, Shape};
    use crate::simd::Level;

    /// `h`, `d_inputs` and `d_h0` of one sequence, computed at a given level.
    struct AtLevel(Level, Gate);

    impl Visitor for AtLevel {
        type Output = Vec<Vec<f32>>;

        fn visit<C: Coefficients<N>, const N: usize>(self) -> Self::Output {
            let Self(level, gate) = self;
            let shape = Shape::new(1, 40, 37);
            let problem = Problem::new(shape, gate);
            let data = |seed: usize| -> Vec<f32> {
                (0..shape.elements())
                    .map(|i| ((i * 31 + seed * 17) % 97) as f32 / 48.5 - 1.0)
                    .collect()
            };
            let inputs: Vec<Vec<f32>> = (0..N).map(data).collect();
            let inputs: Vec<Rows<f32>> = inputs
                .iter()
                .map(|x| Rows::contiguous(x, shape).unwrap())
                .collect();
            let (h0, d_h) = (data(7), data(8));
            let block = || Block::<f32, C, N> {
                problem: &problem,
                inputs: std::array::from_fn(|k| &inputs[k]),
                h0: Some(&h0[..shape.dim]),
                reset: None,
                b: 0,
                channels: 0..shape.dim,
                streaming: false,
                gate: PhantomData,
            };
            let mut h = data(9);
            let out = RowsMut::contiguous(&mut h, shape).unwrap();
            level.run(Forward {
                block: block(),
                h: &out,
            });

            let mut d: Vec<Vec<f32>> = (0..N).map(data).collect();
            let d_inputs: Vec<RowsMut<f32>> = d
                .iter_mut()
                .map(|d| RowsMut::contiguous(d, shape).unwrap())
                .collect();
            let mut d_h0 = h0.clone();
            d_h0.truncate(shape.dim);
            let state = RowsMut::contiguous(&mut d_h0, Shape::new(1, 1, shape.dim)).unwrap();
            level.run(Backward {
                block: block(),
                h: &Rows::contiguous(&h, shape).unwrap(),
                d_h: &Rows::contiguous(&d_h, shape).unwrap(),
                d_h_last: None,
                d_inputs: std::array::from_fn(|k| &d_inputs[k]),
                d_h0: Some(&state),
            });
            [vec![h, d_h0], d].concat()
        }
    }

    /// Levels with a fused multiply-add agree bit for bit; without it results differ by roundings.
    #[test]
    fn levels_agree() {
        for gate in Gate::all() {
            let results = Level::available()
                .iter()
                .map(|&level| gate.visit(AtLevel(level, gate)));
            let results: Vec<Vec<Vec<f32>>> = results.collect();
            let best = results[0].concat();
            for (level, result) in Level::available().iter().zip(&results) {
                for (i, (found, expected)) in result.concat().iter().zip(&best).enumerate() {
                    let error = (found - expected).abs();
                    let name = gate.name();
                    assert!(
                        error <= 2e-6,
                        "{name} at {level:?}: element {i} is {found}, not {expected}"
                    );
                }
            }
            if let [_, second, _] = &results[..] {
                assert_eq!(second.concat(), best, "{}", gate.name());
            }
        }
    }
}
