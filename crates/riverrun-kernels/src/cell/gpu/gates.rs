//! The cells' formulas on two neighbouring units, forward and backward, in `f32`.

use cubecl::prelude::*;

use crate::gpu::math::sigmoid;

/// Two neighbouring units.
pub(super) type Pair = Vector<f32, Const<2>>;

/// What a forward step makes of a pair of units; `kept` are the blocks that backward needs, in their order.
#[derive(CubeType)]
pub(super) struct Stepped {
    pub h: Pair,
    pub c: Pair,
    pub kept_0: Pair,
    pub kept_1: Pair,
    pub kept_2: Pair,
    pub kept_3: Pair,
}

#[cube]
pub(super) fn sigma(x: Pair) -> Pair {
    sigmoid::<Const<2>>(x, true)
}

/// `2 σ(2x) - 1`: within `2⁻²³` of the truth.
#[cube]
pub(super) fn tanh(x: Pair) -> Pair {
    let two = Pair::new(2.0f32);
    two * sigma(two * x) - Pair::new(1.0f32)
}

#[cube]
pub(super) fn gru(x: &Array<Pair>, a: &Array<Pair>, h: Pair, c: Pair) -> Stepped {
    let r = sigma(x[0] + a[0]);
    let z = sigma(x[1] + a[1]);
    let n = tanh(x[2] + r * a[2]);
    Stepped {
        h: n + z * (h - n),
        c,
        kept_0: r,
        kept_1: z,
        kept_2: n,
        kept_3: a[2],
    }
}

#[cube]
pub(super) fn lstm(x: &Array<Pair>, a: &Array<Pair>, c: Pair) -> Stepped {
    let i = sigma(x[0] + a[0]);
    let f = sigma(x[1] + a[1]);
    let g = tanh(x[2] + a[2]);
    let o = sigma(x[3] + a[3]);
    let c = f * c + i * g;
    Stepped {
        h: o * tanh(c),
        c,
        kept_0: i,
        kept_1: f,
        kept_2: g,
        kept_3: o,
    }
}

/// What a step's gradient becomes: of the pre-activations from the input (`x`) and from the state (`a`; only the
/// third differs, and only in the GRU), of the cell state before, and the part of the state's that passes by the
/// product.
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

#[cube]
fn tanh_slope(y: Pair) -> Pair {
    Pair::new(1.0f32) - y * y
}

#[cube]
pub(super) fn gru_back(kept: &Array<Pair>, before: Pair, d: Pair, d_c: Pair) -> SteppedBack {
    let (r, z, n, last) = (kept[0], kept[1], kept[2], kept[3]);
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

#[cube]
pub(super) fn lstm_back(kept: &Array<Pair>, c_before: Pair, d: Pair, d_c: Pair) -> SteppedBack {
    let (i, f, g, o) = (kept[0], kept[1], kept[2], kept[3]);
    let t = tanh(kept[4]);
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
pub(super) fn elman(x: &Array<Pair>, a: &Array<Pair>, c: Pair, #[comptime] relu: bool) -> Stepped {
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
        h = tanh(sum);
    }
    Stepped {
        h,
        c,
        kept_0: h,
        kept_1: h,
        kept_2: h,
        kept_3: h,
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
