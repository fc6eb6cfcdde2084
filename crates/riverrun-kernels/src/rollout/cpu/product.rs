//! Products of row-major matrices with a vector, and elementwise loops, on the machine's vector registers.

use pulp::{Simd, WithSimd};

use crate::simd::vector::Vector;

/// `out_i += Σ_k a[i, k] x_k` for the rows of `a`, `x.len()` numbers each.
pub(super) struct AddProduct<'a> {
    pub a: &'a [f32],
    pub x: &'a [f32],
    pub out: &'a mut [f32],
}

impl WithSimd for AddProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // So many sums are under way that a multiplication never waits for the one before.
        const ROWS: usize = 8;
        let width = self.x.len();
        let mut blocks = self.out.chunks_exact_mut(ROWS);
        let mut a = self.a;
        for out in &mut blocks {
            let (block, after) = a.split_at(ROWS * width);
            add_rows::<S, ROWS>(simd, block, self.x, out);
            a = after;
        }
        for (row, out) in blocks.into_remainder().iter_mut().enumerate() {
            let row = &a[row * width..(row + 1) * width];
            add_rows::<S, 1>(simd, row, self.x, std::slice::from_mut(out));
        }
    }
}

#[inline(always)]
fn add_rows<S: Simd, const N: usize>(simd: S, a: &[f32], x: &[f32], out: &mut [f32]) {
    let (lanes, rest) = S::as_simd_f32s(x);
    let rows: [(&[S::f32s], &[f32]); N] = std::array::from_fn(|n| {
        let (row, end) = S::as_simd_f32s(&a[n * x.len()..(n + 1) * x.len()]);
        (&row[..lanes.len()], end)
    });
    let mut sums = [simd.splat_f32s(0.0); N];
    for (k, x) in lanes.iter().enumerate() {
        for n in 0..N {
            sums[n] = simd.mul_add_e_f32s(rows[n].0[k], *x, sums[n]);
        }
    }
    if !rest.is_empty() {
        let x = simd.partial_load_f32s(rest);
        for n in 0..N {
            sums[n] = simd.mul_add_e_f32s(simd.partial_load_f32s(rows[n].1), x, sums[n]);
        }
    }
    for n in 0..N {
        out[n] += simd.reduce_sum_f32s(sums[n]);
    }
}

/// `out_i ← base_i + first_i · signal`. On vector registers, since a fused multiplication outside of them is a call.
pub(super) struct AddSignal<'a> {
    pub base: &'a [f32],
    pub first: &'a [f32],
    pub signal: f32,
    pub out: &'a mut [f32],
}

impl WithSimd for AddSignal<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let signal = simd.splat_f32s(self.signal);
        let (base, base_rest) = S::as_simd_f32s(self.base);
        let (first, first_rest) = S::as_simd_f32s(self.first);
        let (out, out_rest) = S::as_mut_simd_f32s(self.out);
        for ((out, base), first) in out.iter_mut().zip(base).zip(first) {
            *out = simd.mul_add_e_f32s(*first, signal, *base);
        }
        let (base, first) = (
            simd.partial_load_f32s(base_rest),
            simd.partial_load_f32s(first_rest),
        );
        simd.partial_store_f32s(out_rest, simd.mul_add_e_f32s(first, signal, base));
    }
}

/// Lengths of scratch vectors are multiples of this, and so of every register.
pub(super) const PADDING: usize = 16;

/// `z ← σ(z)`, `keep ← σ(-z)`, `rh ← σ(r) ∘ h`; all of one padded length.
pub(super) struct Gates<'a> {
    pub z: &'a mut [f32],
    pub keep: &'a mut [f32],
    pub r: &'a [f32],
    pub h: &'a [f32],
    pub rh: &'a mut [f32],
}

impl WithSimd for Gates<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = |x| Vector::<S, f32>::new(simd, x);
        let (z, _) = S::as_mut_simd_f32s(self.z);
        let (keep, _) = S::as_mut_simd_f32s(self.keep);
        let (rh, _) = S::as_mut_simd_f32s(self.rh);
        let (r, _) = S::as_simd_f32s(self.r);
        let (h, _) = S::as_simd_f32s(self.h);
        for k in 0..z.len() {
            let (update, other) = lanes(z[k]).sigmoids();
            z[k] = update.lanes;
            keep[k] = other.lanes;
            rh[k] = (lanes(r[k]).sigmoids().0 * lanes(h[k])).lanes;
        }
    }
}

/// `h ← keep ∘ h + z ∘ tanh(c)`; all of one padded length.
pub(super) struct Blend<'a> {
    pub z: &'a [f32],
    pub keep: &'a [f32],
    pub c: &'a [f32],
    pub h: &'a mut [f32],
}

impl WithSimd for Blend<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = |x| Vector::<S, f32>::new(simd, x);
        let (h, _) = S::as_mut_simd_f32s(self.h);
        let (z, _) = S::as_simd_f32s(self.z);
        let (keep, _) = S::as_simd_f32s(self.keep);
        let (c, _) = S::as_simd_f32s(self.c);
        for k in 0..h.len() {
            let candidate = lanes(c[k]).tanh();
            h[k] = lanes(keep[k])
                .mul_add(lanes(h[k]), lanes(z[k]) * candidate)
                .lanes;
        }
    }
}

/// `e_i ← e^{s_i - most}`, and the sum of them; `most` is at least every `s_i`.
pub(super) struct Exponentials<'a> {
    pub s: &'a [f32],
    pub most: f32,
    pub e: &'a mut [f32],
}

impl WithSimd for Exponentials<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let most = Vector::<S, f32>::splat(simd, self.most);
        let (s, s_rest) = S::as_simd_f32s(self.s);
        let (e, e_rest) = S::as_mut_simd_f32s(self.e);
        let mut sum = simd.splat_f32s(0.0);
        for (s, e) in s.iter().zip(e) {
            *e = (most - Vector::new(simd, *s)).exp_decay().lanes;
            sum = simd.add_f32s(sum, *e);
        }
        let mut all = simd.reduce_sum_f32s(sum);
        let rest = (most - Vector::new(simd, simd.partial_load_f32s(s_rest))).exp_decay();
        simd.partial_store_f32s(e_rest, rest.lanes);
        for e in e_rest {
            all += *e;
        }
        all
    }
}

/// The largest. Whether a NaN is left out does not matter to [`Exponentials`], whose sum has it anyway.
pub(super) struct Largest<'a>(pub &'a [f32]);

impl WithSimd for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (lanes, rest) = S::as_simd_f32s(self.0);
        let mut most = simd.splat_f32s(f32::MIN);
        for x in lanes {
            most = simd.max_f32s(*x, most);
        }
        let most = simd.reduce_max_f32s(most);
        rest.iter().fold(most, |most, x| most.max(*x))
    }
}

/// `e_i ← e_i · inverse`, the probabilities, and `-Σ p_i ln p_i` over those of `least` and more, where `ln p_i` is
/// `s_i - most - log`.
pub(super) struct Entropy<'a> {
    pub e: &'a mut [f32],
    pub s: &'a [f32],
    pub most: f32,
    pub inverse: f32,
    pub log: f32,
    pub least: f32,
}

impl WithSimd for Entropy<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let splat = |x| Vector::<S, f32>::splat(simd, x);
        let (inverse, least) = (splat(self.inverse), splat(self.least));
        let (log, most, none) = (splat(self.log), splat(self.most), splat(0.0));
        // A NaN is not below anything, so it counts.
        let term = |p: Vector<S, f32>, s: Vector<S, f32>| {
            let counted = p * (log - (s - most));
            p.less(least).select(none, counted)
        };
        let (e, e_rest) = S::as_mut_simd_f32s(self.e);
        let (s, s_rest) = S::as_simd_f32s(self.s);
        let mut sum = none;
        for (e, s) in e.iter_mut().zip(s) {
            let p = Vector::new(simd, *e) * inverse;
            sum = sum + term(p, Vector::new(simd, *s));
            *e = p.lanes;
        }
        // Lanes past the end have no probability.
        let p = Vector::new(simd, simd.partial_load_f32s(e_rest)) * inverse;
        let rest = term(p, Vector::new(simd, simd.partial_load_f32s(s_rest)));
        simd.partial_store_f32s(e_rest, p.lanes);
        simd.reduce_sum_f32s((sum + rest).lanes)
    }
}

/// `Σ a_i b_i`.
pub(super) struct Dot<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
}

impl WithSimd for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut out = [0.0];
        add_rows::<S, 1>(simd, self.a, self.b, &mut out);
        out[0]
    }
}
