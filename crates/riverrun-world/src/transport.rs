//! The collective operations of a training program.

use crate::Result;

/// Collective operations on buffers of one transport: `f32` of the host for [`Ring`](crate::Ring), device memory for NCCL.
///
/// All ranks call the same operations in the same order with the same lengths. Reductions are sums; divide afterwards. A
/// transport whose operation has failed is not to be used again: the world has failed with it.
///
/// # Errors
///
/// Of every operation: [`Error::Failed`](crate::Error::Failed) with the first cause once the world has failed, and
/// [`Error::Argument`](crate::Error::Argument) for lengths and ranks that cannot be; then nothing was sent.
pub trait Transport {
    /// A buffer that is read.
    type Input<'a>;
    /// A buffer that is written.
    type Output<'a>;

    /// The number of this process.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// Replaces every element by its sum over the ranks, on all of them.
    fn all_reduce(&mut self, buffer: Self::Output<'_>) -> Result<()>;

    /// Sums `input`, which has a part for every rank, and leaves the sum of this rank's part in `output`.
    fn reduce_scatter(&mut self, input: Self::Input<'_>, output: Self::Output<'_>) -> Result<()>;

    /// Puts the ranks' `input`s one after another, in the order of the ranks, into `output` on all of them.
    fn all_gather(&mut self, input: Self::Input<'_>, output: Self::Output<'_>) -> Result<()>;

    /// Copies `buffer` of rank `root` to all others.
    fn broadcast(&mut self, buffer: Self::Output<'_>, root: usize) -> Result<()>;

    /// Sends to a rank, which must receive as much. May wait until it does: two ranks that both send first wait for
    /// each other.
    fn send(&mut self, input: Self::Input<'_>, to: usize) -> Result<()>;

    /// Receives what a rank sends.
    fn recv(&mut self, output: Self::Output<'_>, from: usize) -> Result<()>;

    /// Waits until all ranks have come here.
    fn barrier(&mut self) -> Result<()>;
}
