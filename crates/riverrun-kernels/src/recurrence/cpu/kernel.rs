//! One sequence, one block of channels, all steps: the loops that are compiled once per gate, type and level.
//!
//! Time is the outer loop and a row of channels the inner one, taken [`LANES`] channels at a time: rows are what memory
//! streams, and lanes are what fills vector registers. The carries of a block stay in the first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Element;
use crate::real::Real;
use crate::recurrence::coefficients::Coefficients;
use crate::recurrence::{Problem, Rows, RowsMut};
use crate::simd::{Isa, Task};

/// Channels computed together: a power of two that fills the widest vector registers.
pub const LANES: usize = 16;

/// The most channels of a block, a multiple of [`LANES`]: their carries and rows fit the first-level cache.
pub const WIDTH: usize = 1024;

/// The forward pass of one sequence and block of channels.
pub struct Forward<'a, E, C, const N: usize> {
    pub problem: &'a Problem,
    pub inputs: [&'a Rows<'a, E>; N],
    /// The block's part of `h_0`.
    pub h0: Option<&'a [E]>,
    /// The sequence's resets.
    pub reset: Option<&'a [bool]>,
    pub h: &'a RowsMut<'a, E>,
    pub b: usize,
    pub channels: Range<usize>,
    pub gate: PhantomData<C>,
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Forward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            problem,
            inputs,
            h0,
            reset,
            h,
            b,
            channels,
            ..
        } = self;
        let steps = problem.shape.steps;
        let mut carry = Carry::<E>::new(channels.len(), h0);
        for s in 0..steps {
            let t = if problem.reverse { steps - 1 - s } else { s };
            if reset.is_some_and(|reset| reset[t]) {
                carry.clear();
            }
            let inputs = inputs.map(|input| &input.row(b, t)[channels.clone()]);
            // SAFETY: no other task has this sequence and these channels, and rows do not overlap.
            let h = unsafe { h.row_mut(b, t, channels.clone()) };
            forward_row::<E, C, I, N>(inputs, &mut carry.lanes, h);
        }
    }
}

#[inline(always)]
fn forward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E]; N],
    carry: &mut [[E::Acc; LANES]],
    h: &mut [E],
) {
    let width = h.len();
    let full = width / LANES;
    for block in 0..full {
        let at = block * LANES..(block + 1) * LANES;
        let inputs = inputs.map(|input| lanes(&input[at.clone()]));
        let y = forward_lanes::<E, C, I, N>(inputs, &mut carry[block]);
        h[at].copy_from_slice(&y);
    }
    let rest = full * LANES;
    if rest < width {
        let inputs = inputs.map(|input| padded(&input[rest..width]));
        let y = forward_lanes::<E, C, I, N>(inputs.each_ref(), &mut carry[full]);
        h[rest..].copy_from_slice(&y[..width - rest]);
    }
}

// Lanes go in and out by value: the compiler then knows that no output is also an input, without which it would keep
// the order of every load and store and vectorise nothing.

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

/// The backward pass of one sequence and block of channels.
pub struct Backward<'a, E, C, const N: usize> {
    pub problem: &'a Problem,
    pub inputs: [&'a Rows<'a, E>; N],
    /// The block's part of `h_0`.
    pub h0: Option<&'a [E]>,
    /// The sequence's resets.
    pub reset: Option<&'a [bool]>,
    pub h: &'a Rows<'a, E>,
    pub d_h: &'a Rows<'a, E>,
    /// The block's part of `∂L/∂h_last`.
    pub d_h_last: Option<&'a [E]>,
    pub d_inputs: [&'a RowsMut<'a, E>; N],
    /// `[B, 1, D]`.
    pub d_h0: Option<&'a RowsMut<'a, E>>,
    pub b: usize,
    pub channels: Range<usize>,
    pub gate: PhantomData<C>,
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Backward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            problem,
            inputs,
            h0,
            reset,
            h,
            d_h,
            d_h_last,
            d_inputs,
            d_h0,
            b,
            channels,
            ..
        } = self;
        let steps = problem.shape.steps;
        let time = |s: usize| if problem.reverse { steps - 1 - s } else { s };
        let zeros = [E::default(); WIDTH];
        let zeros = &zeros[..channels.len()];
        let mut carry = Carry::<E>::new(channels.len(), d_h_last);
        for s in (0..steps).rev() {
            let t = time(s);
            let reset = reset.is_some_and(|reset| reset[t]);
            let h_prev = match s {
                _ if reset => zeros,
                0 => h0.unwrap_or(zeros),
                _ => &h.row(b, time(s - 1))[channels.clone()],
            };
            let inputs = inputs.map(|input| &input.row(b, t)[channels.clone()]);
            let d_h = &d_h.row(b, t)[channels.clone()];
            // SAFETY: no other task has this sequence and these channels, and rows do not overlap.
            let d_inputs = d_inputs.map(|d| unsafe { d.row_mut(b, t, channels.clone()) });
            backward_row::<E, C, I, N>(inputs, h_prev, d_h, &mut carry.lanes, d_inputs);
            if reset {
                carry.clear();
            }
        }
        if let Some(d_h0) = d_h0 {
            // SAFETY: as above.
            let d_h0 = unsafe { d_h0.row_mut(b, 0, channels) };
            for (d, carry) in d_h0.iter_mut().zip(carry.lanes.as_flattened()) {
                *d = E::narrow(*carry);
            }
        }
    }
}

#[inline(always)]
fn backward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E]; N],
    h_prev: &[E],
    d_h: &[E],
    carry: &mut [[E::Acc; LANES]],
    d_inputs: [&mut [E]; N],
) {
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
    for block in (0..full).rev() {
        let at = block * LANES..(block + 1) * LANES;
        let inputs = inputs.map(|input| lanes(&input[at.clone()]));
        let (h_prev, d_h) = (lanes(&h_prev[at.clone()]), lanes(&d_h[at.clone()]));
        let d = backward_lanes::<E, C, I, N>(inputs, h_prev, d_h, &mut carry[block]);
        for k in 0..N {
            d_inputs[k][at.clone()].copy_from_slice(&d[k]);
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
    blocks: usize,
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
            blocks: channels.div_ceil(LANES),
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.lanes[..self.blocks].fill([E::Acc::ZERO; LANES]);
    }
}

#[inline(always)]
fn lanes<E>(x: &[E]) -> &[E; LANES] {
    x.try_into().expect("a slice of LANES")
}

#[inline(always)]
fn padded<E: Element>(x: &[E]) -> [E; LANES] {
    let mut lanes = [E::default(); LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}
