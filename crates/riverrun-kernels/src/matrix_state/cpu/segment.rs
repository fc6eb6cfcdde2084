//! Some steps of a head: what the backward pass takes from them, and what it adds up for them.

use pulp::Simd;

use super::super::Erase;
use super::step::{Head, Scalars, VECTORS, Vectors, widen};
use crate::Element;
use crate::buffer::Buffer;
use crate::simd::real::Real;

/// Columns of a block: enough that loads of a step's vectors are few beside those of the block.
pub const COLUMNS: usize = 8;

/// A number for each column of a block.
pub type Columns<R> = [R; COLUMNS];

/// Steps of a segment.
pub const SEGMENT: usize = 16;

/// Some steps.
pub struct Segment<R> {
    /// The first step.
    pub first: usize,
    /// Steps, at most [`SEGMENT`].
    pub steps: usize,
    /// `u`.
    pub u: Rows<R>,
    /// What the steps read: `v - y`, or `y` of a separate erase, which is its `w`.
    pub read: Rows<R>,
    /// `∂L/∂o`.
    pub d_o: Rows<R>,
    /// `∂L/∂v`.
    pub d_v: Rows<R>,
    /// Where a step starts anew.
    pub resets: [bool; SEGMENT],
    /// The numbers of the steps.
    pub scalars: [Scalars<R>; SEGMENT],
    /// Sums over columns.
    pub totals: [Totals<R>; SEGMENT],
    /// Elements of a vector: `K` in whole registers.
    rows: usize,
    /// `[SEGMENT, VECTORS, rows]`.
    vectors: Buffer<R>,
    /// In the place of each vector, what columns add to its gradient.
    sums: Buffer<R>,
}

/// Sums over the columns of a step.
#[derive(Clone, Copy, Default)]
pub struct Totals<R> {
    /// `∂L/∂u · (v - y)`.
    pub beta: R,
    /// `∂L/∂o · u`.
    pub u: R,
    /// `∂L/∂o · w`.
    pub w: R,
}

impl<R: Real> Totals<R> {
    #[inline(always)]
    pub fn add(&mut self, other: Self) {
        self.beta += other.beta;
        self.u += other.u;
        self.w += other.w;
    }
}

/// A number for each step and column; columns in whole blocks.
pub struct Rows<R> {
    width: usize,
    numbers: Buffer<R>,
}

impl<R: Real> Rows<R> {
    fn new(width: usize) -> Self {
        Self {
            width,
            numbers: Buffer::zeroed(SEGMENT * width),
        }
    }

    #[inline(always)]
    pub fn row(&self, i: usize) -> &[R] {
        &self.numbers.as_slice()[i * self.width..][..self.width]
    }

    #[inline(always)]
    fn row_mut(&mut self, i: usize) -> &mut [R] {
        &mut self.numbers.as_mut_slice()[i * self.width..][..self.width]
    }

    #[inline(always)]
    pub fn block(&self, i: usize, block: usize) -> Columns<R> {
        self.row(i).as_chunks().0[block]
    }

    #[inline(always)]
    pub fn set(&mut self, i: usize, block: usize, x: Columns<R>) {
        self.row_mut(i).as_chunks_mut().0[block] = x;
    }
}

impl<R: Real> Segment<R> {
    /// For vectors of `rows` elements and `width` columns.
    pub fn new(rows: usize, width: usize) -> Self {
        let vectors = SEGMENT * VECTORS * rows;
        Self {
            first: 0,
            steps: 0,
            u: Rows::new(width),
            read: Rows::new(width),
            d_o: Rows::new(width),
            d_v: Rows::new(width),
            resets: [false; SEGMENT],
            scalars: [Scalars::default(); SEGMENT],
            totals: [Totals::default(); SEGMENT],
            rows,
            vectors: Buffer::zeroed(vectors),
            sums: Buffer::scratch(vectors),
        }
    }

    /// Loads the steps of segment `n`, with what the forward pass kept of them, and clears the sums.
    #[inline(always)]
    pub fn load<S: Simd, E: Element<Acc = R>>(
        &mut self,
        simd: S,
        head: &Head<'_, E>,
        n: usize,
        kept: Option<&[R]>,
        d_o: &[E],
    ) {
        self.first = n * SEGMENT;
        self.steps = SEGMENT.min(head.problem.shape.steps - self.first);
        self.sums.as_mut_slice().fill(R::ZERO);
        self.totals.fill(Totals::default());
        let value = head.problem.shape.value;
        for i in 0..self.steps {
            let t = self.first + i;
            let len = VECTORS * self.rows;
            let vectors = &mut self.vectors.as_mut_slice()[i * len..][..len];
            let vectors = Vectors::of(vectors.chunks_exact_mut(self.rows));
            let scalars = head.vectors(simd, t, vectors);
            self.scalars[i] = scalars;
            self.resets[i] = head.is_reset(t);
            widen(self.u.row_mut(i), head.values(head.inputs.v, t));
            widen(self.d_o.row_mut(i), head.values(d_o, t));
            let Some(kept) = kept else { continue };
            let kept = &kept[t * value..][..value];
            self.read.row_mut(i)[..value].copy_from_slice(kept);
            if head.problem.erase != Erase::Separate {
                for (u, kept) in self.u.row_mut(i).iter_mut().zip(kept) {
                    *u = scalars.beta * *kept;
                }
            }
        }
    }

    /// The vectors of step `i`.
    #[inline(always)]
    pub fn step(&self, i: usize) -> Vectors<&[R]> {
        of_step(self.vectors.as_slice(), self.rows, i)
    }

    /// The sums of step `i`.
    #[inline(always)]
    pub fn sums(&self, i: usize) -> Vectors<&[R]> {
        of_step(self.sums.as_slice(), self.rows, i)
    }

    /// The vectors of step `i`, and its sums to add to.
    #[inline(always)]
    pub fn both(&mut self, i: usize) -> (Vectors<&[R]>, Vectors<&mut [R]>) {
        let len = VECTORS * self.rows;
        let sums = &mut self.sums.as_mut_slice()[i * len..][..len];
        let sums = Vectors::of(sums.chunks_exact_mut(self.rows));
        (of_step(self.vectors.as_slice(), self.rows, i), sums)
    }
}

#[inline(always)]
fn of_step<R>(vectors: &[R], rows: usize, i: usize) -> Vectors<&[R]> {
    let len = VECTORS * rows;
    Vectors::of(vectors[i * len..][..len].chunks_exact(rows))
}
