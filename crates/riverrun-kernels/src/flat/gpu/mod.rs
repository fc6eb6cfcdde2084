//! On GPUs: one launch for several tensors, as in [AdamW](crate::adamw). A cube takes a piece of one of them, found from the
//! cube's index. Nothing is read back.

mod add;
mod take;

pub use add::{add, put};
pub use take::take;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Place;
use crate::Error;
use crate::gpu::batches::{Batch, SHARE, UNITS, batches, first_cubes};
use crate::gpu::{Dtype, expect};

/// A tensor: its place, and its contiguous buffer.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Its place in vectors.
    pub place: Place,
    /// Its elements.
    pub p: Handle,
}

/// Checks the buffers of tensors, and that their places lie in vectors of `total` elements.
fn check(dtype: Dtype, tensors: &[Buffer], vectors: &[Handle], total: usize) -> Result<(), Error> {
    let size = dtype.size();
    for Buffer { place, p } in tensors {
        place.check("a vector", total)?;
        expect(size, [("a tensor", Some(p), place.len)])?;
    }
    expect(size, vectors.iter().map(|v| ("a vector", Some(v), total)))
}

/// A launch: its tensors with their elements, the first cube of each and the count of all cubes, and the places in vectors of
/// the launch's width.
struct Launch<'a> {
    width: usize,
    units: usize,
    slots: Vec<(&'a Buffer, usize)>,
    firsts: Vec<usize>,
    starts: Vec<usize>,
}

/// The launches for some tensors, with `others` bindings beside one for each tensor. Tensors and their places are read in
/// vectors, so both the length and the start must be whole ones.
fn launches<'a>(
    client: &Client,
    dtype: Dtype,
    tensors: &'a [Buffer],
    others: usize,
) -> Vec<Launch<'a>> {
    let units = UNITS.min(client.properties().hardware.max_units_per_cube as usize);
    // A length of 0 leaves a tensor out; any other keeps its power of two, as far as the start has it too.
    let runs: Vec<usize> = tensors
        .iter()
        .map(|Buffer { place, .. }| match place.len {
            0 => 0,
            len => 1 << (len | place.start).trailing_zeros(),
        })
        .collect();
    let launch = |batch: &Batch| {
        let slots = batch.slots(tensors, |tensor| tensor.place.len);
        let width = batch.width;
        let firsts = first_cubes(slots.iter().map(|(_, len)| *len), units * SHARE * width);
        let starts = slots.iter().map(|(tensor, _)| tensor.place.start / width);
        Launch {
            width,
            units,
            starts: starts.collect(),
            firsts,
            slots,
        }
    };
    let batches = batches(client, dtype, &runs, (1, others));
    batches.iter().map(launch).collect()
}
