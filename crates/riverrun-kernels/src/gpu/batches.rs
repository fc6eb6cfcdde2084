//! Launches over many tensors: which of them go into one launch, and which of its cubes take which tensor.

use cubecl::client::Client;

use crate::gpu::{Dtype, vector_width};

/// Vectors that a thread takes.
pub(crate) const SHARE: usize = 4;
/// Threads of a cube.
pub(crate) const UNITS: usize = 256;

/// Tensors of one vector width that go into one launch.
pub(crate) struct Batch {
    pub width: usize,
    tensors: Vec<usize>,
    /// Launches of one width bind as many tensors each, so that they are one kernel: it is compiled once. Where there are
    /// too few for the last, tensors without elements stand in for them.
    slots: usize,
}

impl Batch {
    /// The tensors of the batch and how many elements of each, and after them, as often as slots are left, the first with
    /// none.
    pub fn slots<'a, T>(&self, tensors: &'a [T], len: impl Fn(&T) -> usize) -> Vec<(&'a T, usize)> {
        let taken = self
            .tensors
            .iter()
            .map(|&i| (&tensors[i], len(&tensors[i])));
        let first = self.tensors.first().map(|&i| (&tensors[i], 0));
        let empty = first.into_iter().cycle();
        taken.chain(empty).take(self.slots).collect()
    }
}

/// The tensors that have elements, by vector width, and no more than a kernel may bind.
pub(crate) fn batches(
    client: &Client,
    dtype: Dtype,
    lengths: &[usize],
    bindings: (usize, usize),
) -> Vec<Batch> {
    let (each, others) = bindings;
    let room = client.properties().hardware.max_bindings as usize;
    let most = (room.saturating_sub(others) / each).clamp(1, 16);
    let mut widths: Vec<(usize, Vec<usize>)> = Vec::new();
    for (i, &len) in lengths.iter().enumerate().filter(|(_, len)| **len > 0) {
        let width = vector_width(client, dtype, 4 * dtype.size(), len);
        match widths.iter_mut().find(|(of, _)| *of == width) {
            Some((_, tensors)) => tensors.push(i),
            None => widths.push((width, vec![i])),
        }
    }
    let split = |(width, tensors): (usize, Vec<usize>)| {
        let slots = tensors.len().div_ceil(tensors.len().div_ceil(most));
        let batch = |tensors: &[usize]| Batch {
            width,
            tensors: tensors.to_vec(),
            slots,
        };
        tensors.chunks(slots).map(batch).collect::<Vec<_>>()
    };
    widths.into_iter().flat_map(split).collect()
}

/// The first cube of each tensor, then the number of cubes.
pub(crate) fn first_cubes(lengths: impl Iterator<Item = usize>, cube: usize) -> Vec<usize> {
    let mut firsts = vec![0];
    for len in lengths {
        let last = firsts[firsts.len() - 1];
        firsts.push(last + len.div_ceil(cube));
    }
    firsts
}
