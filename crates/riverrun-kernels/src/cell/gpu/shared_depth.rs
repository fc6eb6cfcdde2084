//! The depth of a product shared by the cubes of a cluster. Compute capability 9.0 and later.
//!
//! **What it saves.** A cube that holds all the weights of its hidden units reads the whole state of its sequences at every step,
//! `rows · depth` numbers, and all cubes together `cubes · rows · depth`: at `H` = 2048 and 16 sequences in 16 bits 8 MB a step
//! forward and, where the depth is four gates, 34 MB a step backward, of an L2 cache that delivers some 5 MB a microsecond. The
//! `C` cubes of a cluster hold the same weights in another cut: each has a `C`-th of the depth of the units of all of them. So
//! each reads, and waits for, a `C`-th of the state. Sums cross instead: each cube adds up its part of the depth, sends the
//! sums of the others' units into their shared memory, and runs the cell on its own `units / C`. What crosses is small: in that
//! backward pass, with `C` = 4, a cube reads 65 kB of gradients instead of 262 and sends 6 kB of sums. See
//! [`super::estimate`].
//!
//! **The order of a sum** is fixed: the own planes' parts in their order, then those of the cubes after this one, round the
//! cluster. It is not that of a cube alone, so the two forms differ in the last places of `f32`, and are equal where the sums
//! are exact.
//!
//! **Hand-over.** A sum travels as one word with the round that it belongs to ([`crate::gpu::cluster`]), so it is its own
//! flag. Every thread that sends waits for as many, whether or not they are units and sequences of the problem. Rounds take two
//! places in turn: who sends a round has received the one before from everyone, and they have sent that after they had
//! received the one before it, whose places are written now. The wait has no bound of its own: every cube of the cluster runs,
//! and comes to its own sums, since its waits for other clusters are bounded.

use cubecl::prelude::*;

use super::gates::Pair;
use super::plan::Config;
use super::product::{Part, Product, total};
use crate::gpu::cluster::{address_here, address_in, meet, number_of, receive, send, step_of};

/// The number of the product's round of the `s`-th step, or of the second product's; not 0.
#[cube]
pub(super) fn round(s: usize, #[comptime] second: bool, #[comptime] config: Config) -> u32 {
    let rounds = comptime!(if config.two_products() { 2 } else { 1 });
    (s * rounds) as u32 + comptime!(if second { 2u32 } else { 1u32 })
}

/// Where sums arrive, in this cube's shared memory; no thread of the cluster is behind this.
#[cube]
pub(super) fn join(#[comptime] config: Config) -> u64 {
    if comptime!(config.product.cluster > 1) {
        let mut words = Shared::<[u64]>::new_slice(comptime!(config.exchanged()));
        let mut i = UNIT_POS as usize;
        while i < comptime!(config.exchanged()) {
            words[i] = 0u64;
            i += comptime!(32 * config.product.planes);
        }
        meet();
        address_here(&mut words, 0usize)
    } else {
        0u64.runtime()
    }
}

/// A cube that has ended cannot be written to.
#[cube]
pub(super) fn leave(#[comptime] config: Config) {
    if comptime!(config.product.cluster > 1) {
        meet();
    }
}

/// The sums over the whole depth for the thread's items, gate after gate, from the planes' partial sums and from what the
/// others of the cluster send to `arrivals`.
#[cube]
pub(super) fn collect(
    sums: &mut Array<Pair>,
    partial: &[f32],
    arrivals: u64,
    round: u32,
    part: &Part,
    #[comptime] product: Product,
    #[comptime] config: Config,
) {
    let cluster = comptime!(product.cluster);
    let gates = comptime!(product.gates);
    let pairs = comptime!(product.pairs());
    let items = comptime!(product.items());
    let threads = comptime!(32 * product.planes);
    let others = comptime!(cluster - 1);
    let half = comptime!(product.own_units() / 2);
    let place = (round % 2) as usize * comptime!(config.exchanged() / 2);
    // One after the other, of all others.
    #[unroll]
    for n in 0..comptime!((others * pairs).div_ceil(threads)) {
        let i = UNIT_POS as usize + comptime!(n * threads);
        if i < comptime!(others * pairs) {
            let from = i / pairs;
            let to = (part.rank + from + 1) % cluster;
            let own = i % pairs;
            let pair = to * comptime!(product.own_units()) + own % half * 2;
            #[unroll]
            for gate in 0..gates {
                let sum = total(partial, gate, pair, own / half, product);
                let index = place + from * comptime!(2 * gates * pairs) + own;
                let there = address_in(arrivals, to as u32, index + comptime!(2 * gate * pairs));
                send(there, sum.extract(0usize), round);
                let next = there + comptime!(8 * pairs as u64);
                send(next, sum.extract(1usize), round);
            }
        }
    }
    #[unroll]
    for o in 0..items {
        let i = UNIT_POS as usize + comptime!(o * threads);
        #[unroll]
        for gate in 0..gates {
            sums[comptime!(o * gates + gate)] = Pair::new(0.0f32);
        }
        if i < pairs {
            #[unroll]
            for gate in 0..gates {
                let pair = part.rank * comptime!(product.own_units()) + i % half * 2;
                sums[comptime!(o * gates + gate)] = total(partial, gate, pair, i / half, product);
            }
            let here = arrivals + u64::cast_from((place + i) * 8);
            #[unroll]
            for from in 0..others {
                // The cube after this one calls it its last.
                let slot = comptime!(others - 1 - from);
                let at = here + comptime!((slot * 2 * gates * pairs * 8) as u64);
                await_sums(sums, at, round, o, product);
            }
        }
    }
}

/// Adds what one other cube sends for an item.
#[cube]
fn await_sums(
    sums: &mut Array<Pair>,
    at: u64,
    round: u32,
    #[comptime] o: usize,
    #[comptime] product: Product,
) {
    let gates = comptime!(product.gates);
    let step = comptime!((product.pairs() * 8) as u64);
    let mut words = Array::<u64>::new(comptime!(2 * gates));
    let mut waiting = true;
    while waiting {
        waiting = false;
        #[unroll]
        for n in 0..comptime!(2 * gates) {
            words[n] = receive(at + comptime!(n as u64 * step));
            waiting = waiting || step_of(words[n]) != round;
        }
    }
    #[unroll]
    for gate in 0..gates {
        let mut term = Pair::new(0.0f32);
        term.insert(0usize, number_of(words[comptime!(2 * gate)]));
        term.insert(1usize, number_of(words[comptime!(2 * gate + 1)]));
        sums[comptime!(o * gates + gate)] += term;
    }
}

/// The sum for a gate of the thread's `o`-th item, whoever has added it up.
#[cube]
pub(super) fn summed(
    sums: &Array<Pair>,
    partial: &[f32],
    #[comptime] gate: usize,
    #[comptime] o: usize,
    pair: usize,
    sequence: usize,
    #[comptime] product: Product,
) -> Pair {
    if comptime!(product.cluster > 1) {
        sums[comptime!(o * product.gates + gate)]
    } else {
        total(partial, gate, pair, sequence, product)
    }
}
