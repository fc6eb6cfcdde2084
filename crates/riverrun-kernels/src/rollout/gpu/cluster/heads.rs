//! The heads: from a state to the loss that is fed back, and to the entropy of the categorical. Every plane computes them of the
//! whole state.

use cubecl::prelude::*;

use super::Config;
use super::plane::{largest, scattered_sums};
use crate::gpu::full_plane::shuffle;
use crate::gpu::math::exp_of_negative_number;
use crate::rollout::LINEAR_ENTROPY;
use crate::rollout::gpu::cube::{entropy_of, loss_of};

/// The outputs of the heads for a state.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Decoded {
    pub loss: f32,
    pub norm: f32,
    /// The maximum of the logits or more, and the sum of the exponentials.
    pub top: f32,
    pub sum: f32,
}

/// A lane's share of the heads.
#[derive(CubeType)]
pub(super) struct Heads {
    /// The loss head, of its columns.
    pub direct: Array<f32>,
    /// And of the classes whose logits they are.
    pub classes: Array<f32>,
    /// The columns that are logits, a bit for each.
    pub logits: u32,
    /// An upper bound of the logits, where it is small enough to stand for their maximum.
    pub top: f32,
    pub fixed: bool,
}

/// The class of a column, or `S` if it has none.
#[cube]
pub(super) fn class(j: usize, #[comptime] config: Config) -> usize {
    let hidden = comptime!(config.hidden);
    let stochastic = comptime!(config.stochastic);
    // The first class whose logit is at this column or after it.
    let i = (j * stochastic + comptime!(hidden - 1)) / hidden;
    let own = i < stochastic && i * hidden / stochastic == j;
    select(own, i, stochastic)
}

/// Whether the `k`-th column is a logit.
#[cube]
pub(super) fn is_logit(heads: &Heads, #[comptime] k: usize) -> bool {
    (heads.logits >> comptime!(k as u32)) & 1u32 == 1u32
}

#[cube]
pub(super) fn decode(h: &Array<f32>, heads: &Heads, #[comptime] config: Config) -> Decoded {
    let columns = comptime!(config.columns());
    let mut top = heads.top;
    if comptime!(!config.linear) {
        if !heads.fixed {
            top = f32::cast_from(f32::MIN);
            #[unroll]
            for k in 0..columns {
                top = select(is_logit(heads, k), top.max(h[k]), top);
            }
            top = largest(top);
        }
    }
    let mut sums = Array::<f32>::new(4usize);
    #[unroll]
    for n in 0..4usize {
        sums[n] = 0.0f32;
    }
    #[unroll]
    for k in 0..columns {
        let mut e = h[k];
        if comptime!(!config.linear) {
            e = exp_of_negative_number(top - h[k], true);
        }
        e = select(is_logit(heads, k), e, 0.0f32);
        sums[0] = fma(heads.direct[k], h[k], sums[0]);
        sums[1] = fma(heads.classes[k], e, sums[1]);
        sums[2] += e;
        sums[3] = fma(h[k], h[k], sums[3]);
    }
    let own = scattered_sums(&mut sums, 4usize);
    let direct = shuffle(own, 0u32);
    let weighted = shuffle(own, 8u32);
    let sum = shuffle(own, 16u32);
    let square = shuffle(own, 24u32);
    let loss = if comptime!(config.linear) {
        direct + weighted
    } else {
        loss_of(direct + weighted / sum)
    };
    Decoded {
        loss,
        norm: square.sqrt(),
        top,
        sum,
    }
}

/// The contribution of the lane's classes to the entropy of a step.
#[cube]
pub(super) fn entropy(
    h: &Array<f32>,
    heads: &Heads,
    decoded: &Decoded,
    #[comptime] config: Config,
) -> f32 {
    let mut entropy = 0.0f32;
    if comptime!(config.linear) {
        let step = comptime!(LINEAR_ENTROPY as f32);
        entropy = select(UNIT_POS_X == 0, f32::cast_from(step), 0.0f32);
    } else {
        let log = decoded.sum.ln();
        let inverse = 1.0f32 / decoded.sum;
        #[unroll]
        for k in 0..comptime!(config.columns()) {
            let below = h[k] - decoded.top;
            let p = exp_of_negative_number(0.0f32 - below, true) * inverse;
            entropy += select(is_logit(heads, k), entropy_of(p, log, below), 0.0f32);
        }
    }
    entropy
}
