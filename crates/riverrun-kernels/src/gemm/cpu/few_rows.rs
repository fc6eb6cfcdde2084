//! Products of a few rows, with `B` as stored: packing it would take longer than multiplying by it. `B` is read once, in the order of
//! its memory, whose speed is the limit.

use std::marker::PhantomData;

use bytemuck::{cast_slice, cast_slice_mut};
use pulp::{Simd, WithSimd};

use super::factor::Factor;
use crate::Element;
use crate::simd::cache_hints::prefetch;
use crate::simd::pair::{self, LANES, load_padded, pair_len};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::parallel_map;

/// Columns that a thread computes at a time, at most: their sums stay in the first-level cache.
const MOST: usize = 1024;

/// Columns of a transposed `B` that are turned at a time.
const PANEL: usize = 64;

/// Rows of such a panel that are in the cache at once.
const DEPTH: usize = 128;

/// Rows of `B` that are added up in one pass over the sums. As many are on their way from memory meanwhile: pieces of rows are too
/// short for the machine to see by itself what comes next.
const GROUP: usize = 8;

/// Below this many numbers in `B`, one thread is done before others have begun.
const SMALL: usize = 1 << 16;

/// `D = A B + bias`: every element is bit for bit the sum that a tile computes.
pub(super) struct FewRows<'a, E: Element> {
    pub sizes: [usize; 3],
    pub a: &'a [E::Acc],
    pub b: Factor<'a, E>,
    /// `[n]`, or empty.
    pub bias: &'a [E::Acc],
    pub d: &'a mut [E::Acc],
}

impl<E: Element> WithSimd for FewRows<'_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            sizes,
            a,
            b,
            bias,
            d,
        } = self;
        let [_, k, n] = sizes;
        let threads = match k * n < SMALL {
            true => 1,
            false => rayon::current_num_threads(),
        };
        let width = match b.transposed {
            true => PANEL,
            false => n
                .div_ceil(2 * threads)
                .next_multiple_of(pair_len::<S, E::Acc>())
                .min(MOST),
        };
        by_columns([k, n], width, d, |first, len| {
            let columns = Columns {
                sizes,
                a,
                b,
                bias,
                first,
                len,
            };
            columns.sums(simd)
        });
    }
}

/// Computes `d`, rows of `n` numbers, by pieces of `width` columns, on all threads where a matrix `[k, n]` is not small. `sums` gives
/// a piece by its first column and its length.
pub(super) fn by_columns<R: Copy + Send + Sync>(
    [k, n]: [usize; 2],
    width: usize,
    d: &mut [R],
    sums: impl Fn(usize, usize) -> Vec<R> + Sync,
) {
    let len = |index: usize| width.min(n - index * width);
    let piece = |index: usize| sums(index * width, len(index));
    let count = n.div_ceil(width);
    let pieces: Vec<Vec<R>> = match k * n < SMALL {
        true => (0..count).map(piece).collect(),
        false => parallel_map(count, piece),
    };
    for (index, sums) in pieces.iter().enumerate() {
        let len = len(index);
        for (d, sums) in d.chunks_exact_mut(n).zip(sums.chunks_exact(len)) {
            d[index * width..][..len].copy_from_slice(sums);
        }
    }
}

/// Some columns of a product, from `first` on.
struct Columns<'a, E: Element> {
    sizes: [usize; 3],
    a: &'a [E::Acc],
    b: Factor<'a, E>,
    bias: &'a [E::Acc],
    first: usize,
    len: usize,
}

impl<E: Element> Columns<'_, E> {
    /// `[m, len]`.
    fn sums<S: Simd>(&self, simd: S) -> Vec<E::Acc> {
        let ([m, k, n], len) = (self.sizes, self.len);
        let order = order::<S, E>(simd);
        let width = len.next_multiple_of(order.len());
        // In the order in which pairs hold their numbers.
        let mut sums = vec![E::Acc::ZERO; m * width];
        if !self.bias.is_empty() {
            for sums in sums.chunks_exact_mut(width) {
                for (column, bias) in self.bias[self.first..][..len].iter().enumerate() {
                    sums[place(&order, column)] = *bias;
                }
            }
        }
        let mut add = |rows: &[E], stride: usize, at: usize, depth: usize| {
            simd.vectorize(Rows {
                a: self.a,
                k,
                at,
                depth,
                rows,
                stride,
                len,
                sums: &mut sums,
                width,
            });
        };
        match self.b.transposed {
            false => add(&self.b.data[self.first..], n, 0, k),
            true => {
                let mut panel = vec![0u64; DEPTH * PANEL * size_of::<E>() / size_of::<u64>()];
                for at in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - at);
                    simd.vectorize(Turn {
                        columns: &self.b.data[self.first * k + at..],
                        stride: k,
                        len,
                        depth,
                        panel: &mut panel,
                    });
                    add(cast_slice(&panel), PANEL, at, depth);
                }
            }
        }
        let rows = sums.chunks_exact(width);
        rows.flat_map(|sums| (0..len).map(|column| sums[place(&order, column)]))
            .collect()
    }
}

/// Where the number of a column is among those in the order of pairs.
fn place(order: &[usize], column: usize) -> usize {
    column / order.len() * order.len() + order[column % order.len()]
}

/// The place of each number of memory in a loaded pair.
fn order<S: Simd, E: Element>(simd: S) -> Vec<usize> {
    struct Load<E>(PhantomData<E>);
    impl<E: Element> WithSimd for Load<E> {
        type Output = Vec<usize>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<usize> {
            let n = pair_len::<S, E::Acc>();
            let numbers: [E; LANES] = std::array::from_fn(|i| E::from_f64(i as f64));
            let mut loaded = [E::Acc::ZERO; LANES];
            pair::store(&mut loaded[..n], E::load(simd, &numbers[..n]));
            let mut order = vec![0; n];
            for (place, number) in loaded[..n].iter().enumerate() {
                order[number.to_f64() as usize] = place;
            }
            order
        }
    }
    simd.vectorize(Load::<E>(PhantomData))
}

/// Rows of a panel `[DEPTH, PANEL]` from its columns: `len` columns of `B`, `stride` numbers apart, each `depth` numbers.
struct Turn<'a, E> {
    columns: &'a [E],
    stride: usize,
    len: usize,
    depth: usize,
    panel: &'a mut [u64],
}

impl<E: Element> WithSimd for Turn<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self {
            columns,
            stride,
            len,
            depth,
            panel,
        } = self;
        // As many columns at a time as fill a word: a number by itself takes as long to write.
        let words = size_of::<u64>() / size_of::<E>();
        let done = len / words * words;
        let mut joined = [0u64; DEPTH];
        for at in (0..done).step_by(words) {
            let column = |i: usize| &columns[(at + i) * stride..][..depth];
            match words {
                4 => join::<u16, 4>([0, 1, 2, 3].map(|i| cast_slice(column(i))), &mut joined),
                2 => join::<u32, 2>([0, 1].map(|i| cast_slice(column(i))), &mut joined),
                _ => join::<u64, 1>([cast_slice(column(0))], &mut joined),
            }
            let rows = panel.chunks_exact_mut(PANEL / words);
            for (to, joined) in rows.zip(&joined[..depth]) {
                to[at / words] = *joined;
            }
        }
        for at in done..len {
            let rows = cast_slice_mut::<u64, E>(panel).chunks_exact_mut(PANEL);
            for (to, x) in rows.zip(&columns[at * stride..][..depth]) {
                to[at] = *x;
            }
        }
    }
}

/// Numbers of `N` columns side by side in a word, the first in its low bits: the first in memory.
#[inline(always)]
fn join<T: Copy + Into<u64>, const N: usize>(columns: [&[T]; N], joined: &mut [u64; DEPTH]) {
    const {
        assert!(
            cfg!(target_endian = "little"),
            "bits are in the order of memory"
        )
    };
    joined.fill(0);
    for (i, column) in columns.into_iter().enumerate() {
        for (joined, x) in joined.iter_mut().zip(column) {
            *joined |= (*x).into() << (i * 8 * size_of::<T>());
        }
    }
}

/// Adds the products of columns `at..at + depth` of `A` with as many rows of `B`, `stride` numbers apart, to sums.
struct Rows<'a, E: Element> {
    a: &'a [E::Acc],
    k: usize,
    at: usize,
    depth: usize,
    rows: &'a [E],
    stride: usize,
    len: usize,
    sums: &'a mut [E::Acc],
    width: usize,
}

impl<E: Element> WithSimd for Rows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let groups = self.depth / GROUP * GROUP;
        for row in (0..groups).step_by(GROUP) {
            self.add::<S, GROUP>(simd, row);
        }
        for row in groups..self.depth {
            self.add::<S, 1>(simd, row);
        }
    }
}

impl<E: Element> Rows<'_, E> {
    /// Adds the products with `N` rows, one after the other to each sum.
    #[inline(always)]
    fn add<S: Simd, const N: usize>(&mut self, simd: S, row: usize) {
        let lanes = pair_len::<S, E::Acc>();
        let full = self.len / lanes * lanes;
        let rows: [&[E]; N] =
            std::array::from_fn(|i| &self.rows[(row + i) * self.stride..][..self.len]);
        let next = N * self.stride;
        let sums = self.sums.chunks_exact_mut(self.width);
        for (m, (a, sums)) in self.a.chunks_exact(self.k).zip(sums).enumerate() {
            let x: [Vector<S, E::Acc>; N] =
                std::array::from_fn(|i| Vector::splat(simd, a[self.at + row + i]));
            let (whole, rest) = sums.split_at_mut(full);
            for (index, to) in whole.chunks_exact_mut(lanes).enumerate() {
                let mut sum = pair::load(simd, to);
                for (x, row) in x.iter().zip(&rows) {
                    if m == 0 {
                        prefetch(row.as_ptr().wrapping_add(next + index * lanes));
                    }
                    let [low, high] = E::load(simd, &row[index * lanes..][..lanes]);
                    sum = [x.mul_add(low, sum[0]), x.mul_add(high, sum[1])];
                }
                pair::store(to, sum);
            }
            if !rest.is_empty() {
                let mut sum = pair::load(simd, rest);
                for (x, row) in x.iter().zip(&rows) {
                    let [low, high] = load_padded(simd, &row[full..]);
                    sum = [x.mul_add(low, sum[0]), x.mul_add(high, sum[1])];
                }
                pair::store(rest, sum);
            }
        }
    }
}
