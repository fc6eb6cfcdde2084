//! The cells' formulas on two neighbouring hidden units, forward and backward, in `f32`. With `ptx`, by NVIDIA's instructions.

use cubecl::prelude::*;

use crate::gpu::math::{exp_of_negative, reciprocal, sigmoid};
pub(super) use crate::gpu::words::Pair;

/// The results of a forward step for a pair of hidden units; `saved_*` are the blocks that backward needs, in their order.
#[derive(CubeType)]
pub(super) struct Stepped {
    pub h: Pair,
    pub c: Pair,
    pub saved_0: Pair,
    pub saved_1: Pair,
    pub saved_2: Pair,
    pub saved_3: Pair,
}

#[cube]
pub(super) fn sigma(x: Pair, #[comptime] ptx: bool) -> Pair {
    sigmoid::<Const<2>>(x, ptx)
}

/// The upper end of the polynomial.
const SMALL: f32 = 0.625;

/// Within 4 units in the last place, near 0 too: a polynomial in `x²` below [`SMALL`] (that of the Cephes library, `tanhf`), `1
/// - 2 e^-2|x| / (1 + e^-2|x|)` above. `2 σ(2x) - 1` would be off by `2⁻²³` near 0, a large relative error.
#[cube]
pub(super) fn tanh(x: Pair, #[comptime] ptx: bool) -> Pair {
    let one = Pair::new(1.0f32);
    let two = Pair::new(2.0f32);
    let square = x * x;
    let mut p = Pair::new(-5.704_988_7e-3f32);
    p = p * square + Pair::new(2.063_908_9e-2f32);
    p = p * square + Pair::new(-5.373_971_6e-2f32);
    p = p * square + Pair::new(1.333_144_2e-1f32);
    p = p * square + Pair::new(-3.333_328e-1f32);
    let near = x + x * square * p;
    let mut size = x;
    #[unroll]
    for i in 0..2usize {
        size.insert(i, x.extract(i).abs());
    }
    let e = exp_of_negative::<Const<2>>(two * size, ptx);
    let far = one - two * e * reciprocal::<Const<2>>(one + e, ptx);
    let mut y = near;
    #[unroll]
    for i in 0..2usize {
        let value = x.extract(i);
        let far = select(value < 0.0f32, 0.0f32 - far.extract(i), far.extract(i));
        // NaN is not small, and passes through the exponential.
        y.insert(i, select(size.extract(i) < SMALL, near.extract(i), far));
    }
    y
}

#[cube]
pub(super) fn gru(
    x: &Array<Pair>,
    a: &Array<Pair>,
    h: Pair,
    c: Pair,
    #[comptime] ptx: bool,
) -> Stepped {
    let r = sigma(x[0] + a[0], ptx);
    let z = sigma(x[1] + a[1], ptx);
    let n = tanh(x[2] + r * a[2], ptx);
    Stepped {
        h: n + z * (h - n),
        c,
        saved_0: r,
        saved_1: z,
        saved_2: n,
        saved_3: a[2],
    }
}

/// The second half of a step of the GRU with the reset gate before the product; `a` is the product with `gated`, `r ∘ h`.
#[cube]
pub(super) fn gru_reset_before(
    x: &Array<Pair>,
    a: &Array<Pair>,
    r: Pair,
    z: Pair,
    gated: Pair,
    h: Pair,
    c: Pair,
    #[comptime] ptx: bool,
) -> Stepped {
    let n = tanh(x[2] + a[2], ptx);
    Stepped {
        h: n + z * (h - n),
        c,
        saved_0: r,
        saved_1: z,
        saved_2: n,
        saved_3: gated,
    }
}

#[cube]
pub(super) fn lstm(x: &Array<Pair>, a: &Array<Pair>, c: Pair, #[comptime] ptx: bool) -> Stepped {
    let i = sigma(x[0] + a[0], ptx);
    let f = sigma(x[1] + a[1], ptx);
    let g = tanh(x[2] + a[2], ptx);
    let o = sigma(x[3] + a[3], ptx);
    let c = f * c + i * g;
    Stepped {
        h: o * tanh(c, ptx),
        c,
        saved_0: i,
        saved_1: f,
        saved_2: g,
        saved_3: o,
    }
}

/// The gradients of a step: of the pre-activations from the input (`x`) and from the state (`a`; only the third differs,
/// and only in the GRU with the reset gate after the product), of the cell state before, and the part of the state's
/// gradient that does not go through the product.
#[derive(CubeType)]
pub(super) struct SteppedBack {
    pub x_0: Pair,
    pub x_1: Pair,
    pub x_2: Pair,
    pub x_3: Pair,
    pub a_2: Pair,
    pub direct: Pair,
    pub c: Pair,
}

#[cube]
fn sigma_slope(y: Pair) -> Pair {
    y * (Pair::new(1.0f32) - y)
}

/// `1 - y²`, without cancellation near 1.
#[cube]
fn tanh_slope(y: Pair) -> Pair {
    let one = Pair::new(1.0f32);
    (one - y) * (one + y)
}

#[cube]
pub(super) fn gru_back(saved: &Array<Pair>, before: Pair, d: Pair, d_c: Pair) -> SteppedBack {
    let (r, z, n, last) = (saved[0], saved[1], saved[2], saved[3]);
    let d_n = d * (Pair::new(1.0f32) - z) * tanh_slope(n);
    let d_z = d * (before - n) * sigma_slope(z);
    let d_r = d_n * last * sigma_slope(r);
    SteppedBack {
        x_0: d_r,
        x_1: d_z,
        x_2: d_n,
        x_3: d_n,
        a_2: d_n * r,
        direct: d * z,
        c: d_c,
    }
}

/// The first half of a backward step of the GRU with the reset gate before the product: all but `x_0`, which needs `U_nᵀ x_2`.
#[cube]
pub(super) fn gru_reset_before_back(
    saved: &Array<Pair>,
    before: Pair,
    d: Pair,
    d_c: Pair,
) -> SteppedBack {
    let (z, n) = (saved[1], saved[2]);
    let d_n = d * (Pair::new(1.0f32) - z) * tanh_slope(n);
    SteppedBack {
        x_0: d_n,
        x_1: d * (before - n) * sigma_slope(z),
        x_2: d_n,
        x_3: d_n,
        a_2: d_n,
        direct: d * z,
        c: d_c,
    }
}

/// The gradient of the reset gate's pre-activation from that of `r ∘ h`.
#[cube]
pub(super) fn reset_gate_back(r: Pair, before: Pair, d_gated: Pair) -> Pair {
    d_gated * before * sigma_slope(r)
}

#[cube]
pub(super) fn lstm_back(saved: &Array<Pair>, c_before: Pair, d: Pair, d_c: Pair) -> SteppedBack {
    let (i, f, g, o) = (saved[0], saved[1], saved[2], saved[3]);
    let t = tanh(saved[4], true);
    let d_c = d_c + d * o * tanh_slope(t);
    let d_g = d_c * i * tanh_slope(g);
    SteppedBack {
        x_0: d_c * g * sigma_slope(i),
        x_1: d_c * c_before * sigma_slope(f),
        x_2: d_g,
        x_3: d * t * sigma_slope(o),
        a_2: d_g,
        direct: Pair::new(0.0f32),
        c: d_c * f,
    }
}

#[cube]
pub(super) fn elman(
    x: &Array<Pair>,
    a: &Array<Pair>,
    c: Pair,
    #[comptime] relu: bool,
    #[comptime] ptx: bool,
) -> Stepped {
    let sum = x[0] + a[0];
    let mut h = sum;
    if comptime!(relu) {
        #[unroll]
        for e in 0..2usize {
            // Written so that NaN stays NaN.
            let value = sum.extract(e);
            h.insert(e, select(value < 0.0f32, 0.0f32, value));
        }
    } else {
        h = tanh(sum, ptx);
    }
    Stepped {
        h,
        c,
        saved_0: h,
        saved_1: h,
        saved_2: h,
        saved_3: h,
    }
}

#[cube]
pub(super) fn elman_back(h: Pair, d: Pair, d_c: Pair, #[comptime] relu: bool) -> SteppedBack {
    let mut d_a = d;
    if comptime!(relu) {
        #[unroll]
        for e in 0..2usize {
            d_a.insert(e, select(h.extract(e) > 0.0f32, d.extract(e), 0.0f32));
        }
    } else {
        d_a = d * tanh_slope(h);
    }
    SteppedBack {
        x_0: d_a,
        x_1: d_a,
        x_2: d_a,
        x_3: d_a,
        a_2: d_a,
        direct: Pair::new(0.0f32),
        c: d_c,
    }
}
