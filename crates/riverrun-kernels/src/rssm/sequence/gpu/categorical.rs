//! The categoricals of a group of logits: their samples, and the gradient of the logits.

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::buffers::Span;
use super::draw;
use super::parts::item;
use super::plan::Config;
use super::product::{Part, total};
use crate::gpu::words::{Pair, fetch, pack, publish, put, unpack};

/// Logits and samples of a group, from the sums in `partial`.
#[cube]
pub(super) fn draw_group(
    bias: &[u32],
    noise: &[f32],
    states: &mut [u32],
    states_at: u64,
    partial: &[f32],
    scores: &mut [f32],
    exponentials: &mut [f32],
    part: &Part,
    group: usize,
    s: usize,
    span: &Span,
    #[comptime] config: Config,
) {
    let storage = comptime!(config.storage);
    let draws = comptime!(config.draws());
    let items = comptime!(config.items());
    let product = comptime!(config.products.logits);
    let (deter, logits) = comptime!((config.deter, config.logits));
    let first = group * draws;
    let mut own_exponentials = Array::<Pair>::new(items);
    let mut sums = Array::<f32>::new(items);
    #[unroll]
    for o in 0..items {
        own_exponentials[o] = Pair::new(0.0f32);
        sums[o] = 0.0f32;
        let own = item(part, o, draws, config);
        if own.inside {
            let unit = first + own.unit;
            let l = unpack(fetch(bias, unit, storage), storage)
                + total(
                    partial,
                    own.unit,
                    own.sequence,
                    comptime!(config.stride()),
                    product,
                );
            let words = pack(l, storage);
            let row = (own.row * span.steps + s) * comptime!(config.row());
            put(
                states,
                row + comptime!(deter + logits) + unit,
                words,
                storage,
            );
            let l = unpack(words, storage);
            let place = draw::place(own.sequence, own.unit, config);
            scores[place.own] = l.extract(0usize);
            scores[place.own + 1] = l.extract(1usize);
        }
    }
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(part, o, draws, config);
        if own.inside {
            let place = draw::place(own.sequence, own.unit, config);
            let e = draw::exponentials(&*scores, &place, config);
            exponentials[place.own] = e.extract(0usize);
            exponentials[place.own + 1] = e.extract(1usize);
            own_exponentials[o] = e;
        }
    }
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(part, o, draws, config);
        if own.inside {
            let place = draw::place(own.sequence, own.unit, config);
            sums[o] = draw::sum(&*exponentials, &place, config);
            let at = (s * part.batch + own.row) * logits + first + own.unit;
            let mut gumbel = Pair::new(0.0f32);
            gumbel.insert(0usize, noise[at]);
            gumbel.insert(1usize, noise[at + 1]);
            let found = draw::scores(own_exponentials[o], sums[o], gumbel, span.unimix, config);
            scores[place.own] = found.extract(0usize);
            scores[place.own + 1] = found.extract(1usize);
        }
    }
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(part, o, draws, config);
        if own.inside {
            let place = draw::place(own.sequence, own.unit, config);
            let sample = draw::sample(&*scores, &place, sums[o], config);
            let row = (own.row * span.steps + s) * comptime!(config.row());
            publish(
                states_at,
                row + deter + first + own.unit,
                pack(sample, storage),
                storage,
            );
        }
    }
}

/// The gradient of the logits of a group, from that of the samples, whose part from the step after is in `partial`.
#[cube]
pub(super) fn logits_group(
    states: &[u32],
    d_states: &[u32],
    logits_at: u64,
    partial: &[f32],
    scores: &mut [f32],
    exponentials: &mut [f32],
    part: &Part,
    group: usize,
    t: usize,
    span: &Span,
    #[comptime] config: Config,
) {
    let storage = comptime!(config.storage);
    let draws = comptime!(config.draws());
    let items = comptime!(config.items());
    let (deter, logits) = comptime!((config.deter, config.logits));
    let first = group * draws;
    let mut d_samples = Array::<Pair>::new(items);
    let mut p = Array::<Pair>::new(items);
    #[unroll]
    for o in 0..items {
        d_samples[o] = Pair::new(0.0f32);
        p[o] = Pair::new(0.0f32);
        let own = item(part, o, draws, config);
        if own.inside {
            let row = (own.row * span.steps + t) * comptime!(config.row()) + deter;
            let unit = first + own.unit;
            d_samples[o] = unpack(fetch(d_states, row + unit, storage), storage)
                + total(
                    partial,
                    own.unit,
                    own.sequence,
                    comptime!(config.stride()),
                    comptime!(config.products.stoch),
                );
            let l = unpack(fetch(states, row + logits + unit, storage), storage);
            let place = draw::place(own.sequence, own.unit, config);
            scores[place.own] = l.extract(0usize);
            scores[place.own + 1] = l.extract(1usize);
        }
    }
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(part, o, draws, config);
        if own.inside {
            let place = draw::place(own.sequence, own.unit, config);
            p[o] = draw::exponentials(&*scores, &place, config);
            exponentials[place.own] = p[o].extract(0usize);
            exponentials[place.own + 1] = p[o].extract(1usize);
        }
    }
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(part, o, draws, config);
        if own.inside {
            let place = draw::place(own.sequence, own.unit, config);
            let sum = draw::sum(&*exponentials, &place, config);
            p[o] /= Pair::new(sum);
            let terms = p[o] * d_samples[o];
            scores[place.own] = terms.extract(0usize);
            scores[place.own + 1] = terms.extract(1usize);
        }
    }
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(part, o, draws, config);
        if own.inside {
            let place = draw::place(own.sequence, own.unit, config);
            let mean = draw::sum(&*scores, &place, config);
            let row = own.row * span.steps + t;
            let unit = first + own.unit;
            let at = row * comptime!(config.row()) + comptime!(deter + logits) + unit;
            let of_sample =
                Pair::new(1.0f32 - span.unimix) * p[o] * (d_samples[o] - Pair::new(mean));
            let d_l = unpack(fetch(d_states, at, storage), storage) + of_sample;
            publish(logits_at, row * logits + unit, pack(d_l, storage), storage);
        }
    }
}
