//! The weights of a backward pass, packed for some units.

use std::ops::Range;

use super::lanes::{Lanes, Number};
use super::packing::{Layout, Packed};
use crate::cell::Problem;

/// The recurrent weights that lead back to some units.
pub(super) struct Weights<R> {
    pub outer: Packed<R>,
    pub inner: Option<Packed<R>>,
}

impl<R: Number> Weights<R> {
    /// Packs for products of `rows` rows.
    pub(super) fn new<L: Lanes<Real = R>>(
        problem: &Problem,
        u: &[R],
        units: Range<usize>,
        rows: usize,
        parallel: bool,
    ) -> Self {
        let hidden = problem.hidden;
        let pack = |gates: Range<usize>| {
            let start = gates.start * hidden * hidden + units.start;
            let layout = Layout::Rows {
                start,
                stride: hidden,
                len: units.len(),
            };
            let columns = units.len().next_multiple_of(L::WIDTH);
            Packed::new::<L>(u, layout, gates.len() * hidden, columns, rows, parallel)
        };
        if problem.cell.products() == 2 {
            Self {
                outer: pack(0..2),
                inner: Some(pack(2..3)),
            }
        } else {
            Self {
                outer: pack(0..problem.cell.gates()),
                inner: None,
            }
        }
    }
}
