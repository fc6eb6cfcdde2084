//! The form of a problem, as the kernels know it, and its sizes.

use cubecl::prelude::*;

use crate::few_rows::Then;
use crate::gpu::group::Group;
use crate::gpu::storage::Storage;
use crate::recurrence::Gate;
use crate::recurrence::gates::gpu::Math;

/// The form of a problem, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub rows: usize,
    pub matrices: usize,
    /// Numbers of a vector.
    pub vector: usize,
    /// Rows of `W` that a thread reads at once.
    pub batch: usize,
    /// How often it does.
    pub batches: usize,
    /// Every thread has as many.
    pub whole: bool,
    pub norm: bool,
    pub bias: bool,
    pub then: Then,
    pub storage: Storage,
    /// The device runs PTX.
    pub ptx: bool,
    /// Launches overlap in recordings.
    pub overlaps: bool,
    /// Words of 32 bits, four to a vector.
    pub words: bool,
    pub group: Group,
}

impl Config {
    /// Products for each number of `y`.
    pub fn parts(&self) -> usize {
        match self.then {
            Then::Gated => 2,
            then => then.parts(),
        }
    }

    /// Numbers that a thread adds up: the products, then the squares of the rows.
    pub fn sums(&self) -> usize {
        self.rows * self.parts() * self.vector
    }

    pub fn count(&self) -> usize {
        self.sums() + if self.norm { self.rows } else { 0 }
    }

    /// Threads that divide the rows of `W` among them.
    pub fn deep(&self) -> usize {
        self.group.units / self.group.lanes
    }

    pub fn gate(&self) -> Gate {
        match self.then {
            Then::Step(gate) => gate,
            _ => Gate::Raw,
        }
    }

    /// A kernel with a state of its own comes after the products of several matrices.
    pub fn let_first(&self) -> bool {
        !self.steps() && (self.matrices == 1 || self.then == Then::Gated)
    }

    pub fn steps(&self) -> bool {
        matches!(self.then, Then::Step(_))
    }

    pub fn math(&self) -> Math {
        Math {
            ptx: self.ptx,
            narrow: false,
        }
    }
}

/// A matrix and its place among the groups.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Place {
    /// Vectors of a row of its `y`.
    pub columns: usize,
    /// Vectors from one row to the next.
    pub stride: usize,
    /// The group after its last.
    pub end: usize,
}

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub inputs: usize,
    pub first: Place,
    pub second: Place,
    pub third: Place,
    /// `1 / inputs`.
    pub inverse: f32,
    pub epsilon: f32,
}
