//! [`LANES`] channels on their way into the arithmetic type and back.
//!
//! Where the conversion of one value is an instruction or two that vectorise, it is part of the loop over lanes, and
//! nothing is stored in between. Where it is not, all lanes are converted before the loop and after it.
//!
//! In such a loop all results are written to locals, carries too: the compiler then knows that no output is also
//! an input, without which it would keep the order of every load and store and vectorise nothing. Inputs come by
//! reference, because an array that comes by value is copied whole for every lane.

use crate::Element;
use crate::real::Real;
use crate::simd::Isa;

/// Channels computed together: a power of two that fills the widest vector registers.
pub const LANES: usize = 16;

/// What a loop over lanes reads.
#[derive(Clone, Copy)]
pub struct Input<'a, E: Element> {
    narrow: &'a [E; LANES],
    wide: [E::Acc; LANES],
}

impl<'a, E: Element> Input<'a, E> {
    #[inline(always)]
    pub fn new<I: Isa>(isa: I, narrow: &'a [E; LANES]) -> Self {
        let zeros = [E::Acc::ZERO; LANES];
        let wide = if E::CONVERTS_IN_LOOPS {
            zeros
        } else {
            E::widen_lanes(isa, narrow)
        };
        Self { narrow, wide }
    }

    #[inline(always)]
    pub fn at(&self, i: usize) -> E::Acc {
        if E::CONVERTS_IN_LOOPS {
            self.narrow[i].widen()
        } else {
            self.wide[i]
        }
    }
}

/// The inputs of a gate.
#[inline(always)]
pub fn inputs<'a, E: Element, I: Isa, const N: usize>(
    isa: I,
    lanes: [&'a [E; LANES]; N],
) -> [Input<'a, E>; N] {
    let mut inputs = [Input::new(isa, lanes[0]); N];
    for k in 1..N {
        inputs[k] = Input::new(isa, lanes[k]);
    }
    inputs
}

/// What a loop over lanes writes.
#[derive(Clone, Copy)]
pub struct Output<E: Element> {
    narrow: [E; LANES],
    wide: [E::Acc; LANES],
}

impl<E: Element> Output<E> {
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            narrow: [E::ZERO; LANES],
            wide: [E::Acc::ZERO; LANES],
        }
    }

    #[inline(always)]
    pub fn set(&mut self, i: usize, x: E::Acc) {
        if E::CONVERTS_IN_LOOPS {
            self.narrow[i] = E::narrow(x);
        } else {
            self.wide[i] = x;
        }
    }

    #[inline(always)]
    pub fn finish<I: Isa>(self, isa: I) -> [E; LANES] {
        if E::CONVERTS_IN_LOOPS {
            self.narrow
        } else {
            E::narrow_lanes(isa, &self.wide)
        }
    }
}
