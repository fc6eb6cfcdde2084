//! On GPUs: the parts of a row are summed up by cubes of their own, then a cube chooses the part and the symbol in it. Tokens, their
//! log and the counts stay in the device's memory, so a recorded step draws by itself.

mod kernel;

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::Rule;
use crate::Error;
use crate::gpu::buffer::expect;
use crate::gpu::group::Group;
use crate::gpu::overlap::{may_overlap, overlaps};
use crate::gpu::{Dtype, address, buffer, grid, ptx};
use kernel::{Config, SizesLaunch, choose, summarize, threshold};

/// Threads of a cube that sums up a part, or chooses.
const UNITS: usize = 256;

/// Symbols of a part: a cube that chooses takes no fewer.
const PART: usize = 4096;

/// Symbols at most: their numbers are exact in `f32`.
pub const SYMBOLS: usize = 1 << 24;

/// The draws of some rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Rows of logits.
    pub rows: usize,
    /// Symbols to draw from, the first of a row, at most [`SYMBOLS`].
    pub symbols: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Draws that the log has room for.
    pub slots: usize,
    /// How they are drawn.
    pub rule: Rule,
}

/// Buffers, all contiguous.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `[rows, stride]`.
    pub logits: Handle,
    /// `[slots, rows]`, `f32`: the uniform numbers of the draws.
    pub uniforms: Handle,
    /// The type of all integers.
    pub index: ElemType,
    /// `[rows]`, written: the draws; 0 where a logit is not finite.
    pub tokens: Handle,
    /// `[slots, rows]`: draw `n` is written to slot `n mod slots`; where logit `i` is the first that is not finite, `-1 - i`.
    pub log: Handle,
    /// `[rows]`: the draws before, counted up.
    pub counts: Handle,
    /// `[1]`: counted up too.
    pub position: Handle,
}

/// Draws a symbol of each row.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; [`Error::Routine`] for no symbols, more than [`SYMBOLS`] or than a row has, no slots, a
/// temperature below 0; nothing has been launched then.
pub fn run(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    buffers: &Buffers,
) -> Result<(), Error> {
    dtype.check(client)?;
    let &Problem {
        rows,
        symbols,
        stride,
        slots,
        rule,
    } = problem;
    let known = (1..=SYMBOLS.min(stride)).contains(&symbols);
    if !(known && slots > 0 && rule.temperature >= 0.0) {
        return Err(Error::Routine {
            routine: "draw",
            reason: format!(
                "{symbols} of {stride} symbols, {slots} slots, a temperature of {}",
                rule.temperature
            ),
        });
    }
    let (all, log) = (rows * stride, slots * rows);
    expect(dtype.size(), [("logits", Some(&buffers.logits), all)])?;
    expect(4, [("uniforms", Some(&buffers.uniforms), log)])?;
    expect(
        buffers.index.size(),
        [
            ("tokens", Some(&buffers.tokens), rows),
            ("log", Some(&buffers.log), log),
            ("counts", Some(&buffers.counts), rows),
            ("position", Some(&buffers.position), 1),
        ],
    )?;
    if rows == 0 {
        return Ok(());
    }
    let parts = symbols.div_ceil(PART).min(UNITS);
    let per_part = symbols.div_ceil(parts);
    let kept = rule.top_k.filter(|&k| k < symbols);
    let greedy = rule.temperature == 0.0;
    let config = |units: usize| Config {
        group: Group {
            rows: 1,
            ..Group::choose(client, units, 1, units)
        },
        greedy,
        limited: kept.is_some() && !greedy,
        alone: parts == 1,
        // Those that a number of the type has, with its sign.
        bits: match dtype {
            Dtype::F32 => 32,
            Dtype::F16 => 19,
            Dtype::Bf16 => 16,
        },
        ptx: ptx(client),
        overlaps: overlaps(client),
    };
    let sizes = || {
        SizesLaunch::new(
            rows,
            symbols,
            stride,
            parts,
            per_part,
            slots,
            if greedy {
                0.0
            } else {
                (1.0 / rule.temperature) as f32
            },
        )
    };
    let (limits, summaries) = (client.empty(rows * 4), client.empty(rows * parts * 16));
    let logits = || buffer(&buffers.logits, all, 1);
    let at = address(all.max(log), dtype);
    // SAFETY: the buffers have been checked or made for the problem, slots are remainders, and cubes past the last end at once.
    unsafe {
        if let Some(k) = kept.filter(|_| !greedy) {
            let config = config(4 * UNITS);
            may_overlap(client, &[], &[&limits], true);
            threshold::launch_unchecked(
                client,
                grid(client, rows),
                config.group.dim(),
                at,
                logits(),
                buffer(&limits, rows, 1),
                k.max(1) as f32,
                sizes(),
                config,
                dtype.elem(),
            );
        }
        let config = config(UNITS);
        if parts > 1 {
            may_overlap(client, &[], &[&summaries], true);
            summarize::launch_unchecked(
                client,
                grid(client, rows * parts),
                config.group.dim(),
                at,
                logits(),
                buffer(&limits, rows, 1),
                buffer(&summaries, rows * parts * 4, 1),
                sizes(),
                config,
                dtype.elem(),
            );
        }
        let written = [
            &buffers.tokens,
            &buffers.log,
            &buffers.counts,
            &buffers.position,
        ];
        may_overlap(client, &[], &written, true);
        choose::launch_unchecked(
            client,
            grid(client, rows),
            config.group.dim(),
            at,
            logits(),
            buffer(&limits, rows, 1),
            buffer(&summaries, rows * parts * 4, 1),
            buffer(&buffers.uniforms, log, 1),
            buffer(&buffers.tokens, rows, 1),
            buffer(&buffers.log, log, 1),
            buffer(&buffers.counts, rows, 1),
            buffer(&buffers.position, 1, 1),
            sizes(),
            config,
            dtype.elem(),
            buffers.index,
        );
    }
    Ok(())
}
