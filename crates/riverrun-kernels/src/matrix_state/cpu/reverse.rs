//! A head through all steps and back.
//!
//! The forward pass runs again for what the steps read. With that, columns of the state need no sums over rows: states are kept at
//! the starts of segments, and computed once more within one, a block of columns at a time.

use pulp::{Simd, WithSimd};

use super::super::{Erase, Gate, Gradients, LARGEST};
use super::block::{gather, place, replay, scatter};
use super::forward::{Forward, Into};
use super::segment::{COLUMNS, SEGMENT, Segment, Totals};
use super::step::{Head, narrow};
use crate::Element;
use crate::buffer::Buffer;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};
use crate::threads::Shared;

/// Where gradients go.
pub struct Targets<'a, E: Element> {
    pub d: Gradients<Shared<'a, E>, Shared<'a, E::Acc>>,
    /// The gradients of `q` and `k` by head, `[B, T, H, K]`, where heads share them.
    pub apart: Option<[Shared<'a, E::Acc>; 2]>,
    /// The gradient of the bonus by sequence, `[B, H, K]`.
    pub bonus: Shared<'a, E::Acc>,
}

/// The `len` elements of a head from `first` on.
#[inline(always)]
fn part<T>(of: Shared<'_, T>, first: usize, len: usize) -> &mut [T] {
    // SAFETY: a task takes elements of its own head alone, one slice at a time.
    unsafe { of.slice_mut(first, len) }
}

/// The backward pass of a head.
pub struct Reverse<'a, E: Element> {
    pub head: Head<'a, E>,
    pub d_o: &'a [E],
    pub d_last: Option<&'a [E::Acc]>,
    pub to: &'a Targets<'a, E>,
}

impl<E: Element> WithSimd for Reverse<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.head.problem.reads(), self.head.problem.erase) {
            (_, Erase::Separate) => self.run::<S, true, true>(simd),
            (true, _) => self.run::<S, true, false>(simd),
            (false, _) => self.run::<S, false, false>(simd),
        }
    }
}

impl<E: Element> Reverse<'_, E> {
    /// Steps read the state before them (`READ`), and write along a vector of their own (`WRITE`).
    #[inline(always)]
    fn run<S: Simd, const READ: bool, const WRITE: bool>(&self, simd: S) {
        let head = self.head;
        let shape = head.problem.shape;
        let rows = shape.key.next_multiple_of(lanes::<S, E::Acc>());
        let blocks = shape.value.div_ceil(COLUMNS);
        let (block, state) = (rows * COLUMNS, rows * blocks * COLUMNS);

        let erases = head.problem.erase != Erase::None;
        let elements = if erases { shape.steps * shape.value } else { 0 };
        let mut kept = Buffer::scratch(elements);
        if erases {
            let columns = 0..shape.value;
            let into = Into::Read(kept.as_mut_slice());
            let mut forward = Forward {
                head,
                columns,
                into,
            };
            forward.tiles::<S, READ, WRITE>(simd);
        }
        let kept = erases.then_some(kept.as_slice());

        let segments = shape.steps.div_ceil(SEGMENT);
        let mut states = Buffer::scratch(segments.max(1) * state);
        let states = states.as_mut_slice();
        self.to_blocks::<S>(head.inputs.initial, &mut states[..state]);
        let mut d = Buffer::scratch(state);
        let d = d.as_mut_slice();
        self.to_blocks::<S>(self.d_last, d);

        let mut segment = Segment::new(rows, blocks * COLUMNS);
        let mut history = Buffer::scratch(SEGMENT * block);
        let history = history.as_mut_slice();
        for n in 1..segments {
            segment.load(simd, &head, n - 1, kept, self.d_o);
            let (before, after) = states[(n - 1) * state..(n + 1) * state].split_at_mut(state);
            after.copy_from_slice(before);
            for (index, state) in after.chunks_exact_mut(block).enumerate() {
                replay::<S, _, WRITE>(simd, &segment, index, state, &mut []);
            }
        }
        for n in (0..segments).rev() {
            segment.load(simd, &head, n, kept, self.d_o);
            let starts = states[n * state..][..state].chunks_exact_mut(block);
            for (index, (state, d)) in starts.zip(d.chunks_exact_mut(block)).enumerate() {
                replay::<S, _, WRITE>(simd, &segment, index, state, history);
                for i in (0..segment.steps).rev() {
                    let state = &history[i * block..][..block];
                    self.step::<S, READ, WRITE>(simd, &mut segment, i, index, state, d);
                }
            }
            for i in 0..segment.steps {
                self.finish(simd, &segment, i);
            }
        }
        let to = part(self.to.d.initial, head.state(), shape.key * shape.value);
        for (row, to) in to.chunks_exact_mut(shape.value).enumerate() {
            for (column, to) in to.iter_mut().enumerate() {
                let first = column / COLUMNS * block;
                *to = d[first + place::<S, E::Acc>(row, column % COLUMNS)];
            }
        }
    }

    /// The head's state in blocks.
    #[inline(always)]
    fn to_blocks<S: Simd>(&self, states: Option<&[E::Acc]>, to: &mut [E::Acc]) {
        let shape = self.head.problem.shape;
        let block = shape.key.next_multiple_of(lanes::<S, E::Acc>()) * COLUMNS;
        to.fill(E::Acc::ZERO);
        let Some(states) = states else { return };
        let state = states[self.head.state()..].chunks_exact(shape.value);
        for (row, from) in state.take(shape.key).enumerate() {
            for (column, from) in from.iter().enumerate() {
                let first = column / COLUMNS * block;
                to[first + place::<S, E::Acc>(row, column % COLUMNS)] = *from;
            }
        }
    }

    /// Takes `d`, the gradient of a block of the state after step `i` of the segment, to that of the state before.
    #[inline(always)]
    fn step<S: Simd, const READ: bool, const WRITE: bool>(
        &self,
        simd: S,
        segment: &mut Segment<E::Acc>,
        i: usize,
        block: usize,
        state: &[E::Acc],
        d: &mut [E::Acc],
    ) {
        let scalars = segment.scalars[i];
        let (u, read) = (segment.u.block(i, block), segment.read.block(i, block));
        let d_o = segment.d_o.block(i, block);
        let (step, mut sums) = segment.both(i);
        let [mut d_u, mut d_w] =
            gather::<S, _, WRITE>(simd, [state, &*d], &step, &mut sums, d_o, u, read);
        let (mut d_v, mut d_y) = (d_u, d_o);
        let mut totals = Totals::default();
        let minus = E::Acc::from_f64(-1.0);
        for c in 0..COLUMNS {
            d_u[c] += scalars.direct * d_o[c];
            d_w[c] += scalars.cross * d_o[c];
            d_v[c] = scalars.beta * d_u[c];
            d_y[c] = match self.head.problem.erase {
                Erase::None => d_o[c],
                Erase::Separate => d_w[c],
                Erase::Key | Erase::Free => minus * d_v[c],
            };
            totals.beta += d_u[c] * read[c];
            totals.u += u[c] * d_o[c];
            totals.w += read[c] * d_o[c];
        }
        scatter::<S, _, READ>(simd, state, d, &step, &mut sums, d_o, d_y);
        if segment.resets[i] {
            d.fill(E::Acc::ZERO);
        }
        segment.d_v.set(i, block, d_v);
        segment.totals[i].add(totals);
    }

    /// Writes the gradients of step `i` of the segment.
    #[inline(always)]
    fn finish<S: Simd>(&self, simd: S, segment: &Segment<E::Acc>, i: usize) {
        let (head, d) = (self.head, &self.to.d);
        let (problem, shape) = (head.problem, head.problem.shape);
        let key = shape.key;
        let row = head.row(segment.first + i);
        let (step, sums, totals) = (segment.step(i), segment.sums(i), segment.totals[i]);
        let [mut q, mut k, mut g, mut erase, mut write] = [[E::Acc::ZERO; LARGEST]; 5];
        for c in 0..key {
            let alpha = step.alpha[c];
            g[c] = alpha * sums.alpha[c];
            if problem.bonus {
                let (key, query, bonus) = (step.k[c], step.read[c], step.write[c]);
                q[c] = sums.q[c] + totals.u * key * bonus;
                k[c] = sums.k[c] + totals.u * query * bonus;
                write[c] = totals.u * query * key;
                continue;
            }
            q[c] = alpha * sums.q[c] + step.k[c] * totals.u;
            k[c] = sums.k[c] + step.q[c] * totals.u;
            match problem.erase {
                Erase::None => {}
                Erase::Key | Erase::Free => {
                    g[c] += step.read[c] * sums.read[c];
                    erase[c] = alpha * sums.read[c];
                }
                Erase::Separate => {
                    q[c] += step.write[c] * totals.w;
                    erase[c] = sums.read[c];
                    write[c] = sums.write[c] + step.q[c] * totals.w;
                }
            }
            if problem.erase == Erase::Key {
                k[c] += erase[c];
            }
        }
        let key_row = head.key_row(segment.first + i);
        match self.to.apart {
            Some([d_q, d_k]) => {
                part(d_q, row * key, key).copy_from_slice(&q[..key]);
                part(d_k, row * key, key).copy_from_slice(&k[..key]);
            }
            None => {
                narrow(part(d.q, key_row * key, key), &q);
                narrow(part(d.k, key_row * key, key), &k);
            }
        }
        narrow(
            part(d.v, row * shape.value, shape.value),
            segment.d_v.row(i),
        );
        match (problem.gate, d.g) {
            (Gate::Head, Some(d_g)) => {
                let mut sum = Vector::<S, _>::splat(simd, E::Acc::ZERO);
                for g in E::Acc::split::<S>(&g).0 {
                    sum = sum + Vector::new(simd, *g);
                }
                narrow(part(d_g, row, 1), &[sum.sum()]);
            }
            (_, Some(d_g)) => narrow(part(d_g, row * key, key), &g),
            (_, None) => {}
        }
        if let Some(d_beta) = d.beta {
            narrow(part(d_beta, row, 1), &[totals.beta]);
        }
        for (to, from) in [(d.erase, &erase), (d.write, &write)] {
            if let Some(to) = to {
                narrow(part(to, row * key, key), from);
            }
        }
        if problem.bonus {
            let first = (head.sequence * shape.heads + head.head) * key;
            let to = part(self.to.bonus, first, key);
            for (to, write) in to.iter_mut().zip(&write) {
                *to += *write;
            }
        }
    }
}
