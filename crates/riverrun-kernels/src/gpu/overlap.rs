//! Launches of a recording that begin while the launch before them ends: programmatic dependent launch. Compute capability 9.0 and
//! later.
//!
//! A launch costs a GPU one to two microseconds from the end of the one before it to its first loads: as long as a step of a small
//! layer takes. A kernel that may overlap reads first what no launch shortly before it writes, its weights and its state; then it
//! waits ([`launch_before`]) for the end of the launch before, and reads the rest.
//!
//! What other launches have written it reads by [`late`] then: a compiler reads a buffer that the kernel does not write as if it were
//! constant while the kernel runs.
//!
//! It lets the next launch begin when it has waited, or already before. Then more than two launches run at once: each of them waits
//! for the one before it, so that their results are in order, but what the next ones read early must not be what any of them writes.
//! Kernels that come before one with a state wait first.
//!
//! [`may_overlap`] makes the next launch of a recording overlap the one before it, if that is so, and if the one before is of such a
//! kernel too. Everywhere else the wait ends at once.

use std::ops::Range;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::address::address;

/// Waits until the launch before this one has ended. The next one may begin then, or, if it is `let_first`, before the wait.
#[cube]
pub(crate) fn launch_before(#[comptime] overlaps: bool, #[comptime] let_first: bool) {
    if comptime!(overlaps) {
        if comptime!(let_first) {
            gpu_asm!("griddepcontrol.launch_dependents;");
        }
        gpu_asm!("griddepcontrol.wait;");
        if comptime!(!let_first) {
            gpu_asm!("griddepcontrol.launch_dependents;");
        }
    }
}

/// Sixteen bytes, by a load that stays before [`launch_before`]: one of a buffer that the kernel does not write may be moved after it.
#[cube]
pub(crate) fn early<S: Numeric, W: Size>(buffer: &[Vector<S, W>], index: usize) -> Vector<S, W> {
    let words: Vector<u32, Const<4>>;
    let at = address::<Vector<S, W>>(buffer) + u64::cast_from(index * 16);
    gpu_asm!("ld.global.L1::no_allocate.v4.u32 {}, [{}];", out(_) words, in(_) at);
    let mut vector = Vector::<S, W>::new(S::from_int(0));
    #[unroll]
    for i in 0..4usize {
        vector.insert(i, S::reinterpret(words.extract(i)));
    }
    vector
}

/// A number that a launch before has written, read after [`launch_before`]. Of a buffer that the kernel does not write, a compiler
/// would read it by the path for data that is constant while the kernel runs, which such a number is not, and before the wait too.
#[cube]
pub(crate) fn late<F: Numeric>(buffer: &[F], index: usize, #[comptime] overlaps: bool) -> F {
    if comptime!(overlaps) {
        number_at::<F>(address::<F>(buffer), index)
    } else {
        buffer[index]
    }
}

/// A vector, as [`late`].
#[cube]
pub(crate) fn late_vector<S: Numeric, W: Size>(
    buffer: &[Vector<S, W>],
    index: usize,
    #[comptime] overlaps: bool,
) -> Vector<S, W> {
    if comptime!(overlaps) {
        let at = address::<Vector<S, W>>(buffer);
        let (bits, width) = (S::size_bits(), W::value());
        let mut vector = Vector::<S, W>::new(S::from_int(0));
        if comptime!(bits == 32 && width == 4) {
            let words: Vector<u32, Const<4>>;
            let at = at + u64::cast_from(index * 16);
            gpu_asm!("ld.global.v4.u32 {}, [{}];", out(_) words, in(_) at);
            #[unroll]
            for i in 0..4usize {
                vector.insert(i, S::reinterpret(words.extract(i)));
            }
        } else {
            #[unroll]
            for i in 0..width {
                vector.insert(i, number_at::<S>(at, index * width + i));
            }
        }
        vector
    } else {
        buffer[index]
    }
}

/// The number of 16 or 32 bits in a place of the buffer that begins at an address.
#[cube]
fn number_at<F: Numeric>(buffer: u64, index: usize) -> F {
    let bits = F::size_bits();
    let at = buffer + u64::cast_from(index * comptime!(bits / 8));
    if comptime!(bits == 16) {
        let word: u16;
        gpu_asm!("ld.global.u16 {}, [{}];", out(_) word, in(_) at);
        F::reinterpret(word)
    } else {
        let word: u32;
        gpu_asm!("ld.global.u32 {}, [{}];", out(_) word, in(_) at);
        F::reinterpret(word)
    }
}

/// Whether a device's launches may overlap.
pub(crate) fn overlaps(client: &Client) -> bool {
    super::capability(client).is_some_and(|capability| capability >= 90)
}

/// Lets the next launch, of a kernel that calls [`launch_before`] with this `let_first`, overlap the one before it where both are
/// recorded. It reads the buffers of `early` before it waits, and writes those of `writes`, at least one.
pub(crate) fn may_overlap(client: &Client, early: &[&Handle], writes: &[&Handle], let_first: bool) {
    #[cfg(feature = "cuda")]
    if overlaps(client)
        && let Ok(device) = super::cuda::Device::of(client)
    {
        let cloned = |handles: &[&Handle]| handles.iter().map(|&handle| handle.clone()).collect();
        device.may_overlap(cloned(early), cloned(writes), let_first);
    }
    #[cfg(not(feature = "cuda"))]
    let _ = (client, early, writes, let_first);
}

/// The last launches of a recording that may overlap.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// The recording, which has a number of its own, and its nodes before the last launch.
    last: Option<(u64, usize)>,
    /// Addresses that launches write which may still run when the next one begins.
    writes: Vec<Range<u64>>,
}

impl Chain {
    /// Adds a launch to a recording that has so many nodes. Whether it may overlap the launch before it: if that one was added here,
    /// and nothing that may still run writes what this one reads early.
    pub fn add(
        &mut self,
        recording: u64,
        nodes: usize,
        early: &[Range<u64>],
        writes: Vec<Range<u64>>,
        let_first: bool,
    ) -> bool {
        let follows = nodes > 0 && self.last == Some((recording, nodes - 1));
        let apart = |read: &Range<u64>| {
            let mut written = self.writes.iter();
            written.all(|write| read.end <= write.start || write.end <= read.start)
        };
        let overlaps = follows && early.iter().all(apart);
        // Those before it have ended when it has waited, and when it may not overlap.
        if !(overlaps && let_first) {
            self.writes.clear();
        }
        self.writes.extend(writes);
        self.last = Some((recording, nodes));
        overlaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, end: u64) -> Range<u64> {
        Range { start, end }
    }

    #[test]
    fn a_launch_that_follows_another_overlaps_it() {
        let mut chain = Chain::default();
        assert!(!chain.add(1, 0, &[], vec![at(0, 4)], false));
        assert!(chain.add(1, 1, &[at(4, 8)], vec![at(8, 12)], false));
        // Another launch came between.
        assert!(!chain.add(1, 3, &[], vec![at(0, 4)], false));
        // Another recording.
        assert!(!chain.add(2, 4, &[], vec![at(0, 4)], false));
    }

    #[test]
    fn nothing_is_read_before_it_is_written() {
        let mut chain = Chain::default();
        chain.add(1, 0, &[], vec![at(0, 4)], false);
        assert!(!chain.add(1, 1, &[at(3, 5)], vec![], false));
        // That launch waited for all before it.
        assert!(chain.add(1, 2, &[at(3, 5)], vec![], false));
    }

    #[test]
    fn launches_that_let_the_next_one_first_may_all_still_run() {
        let mut chain = Chain::default();
        chain.add(1, 0, &[], vec![at(0, 4)], true);
        assert!(chain.add(1, 1, &[], vec![at(4, 8)], true));
        assert!(!chain.add(1, 2, &[at(0, 4)], vec![at(8, 12)], true));
        assert!(chain.add(1, 3, &[at(0, 4)], vec![at(12, 16)], true));
        // The one that waits first ends what was before the last.
        assert!(chain.add(1, 4, &[], vec![at(16, 20)], false));
        assert!(chain.add(1, 5, &[at(8, 16)], vec![at(20, 24)], true));
        assert!(!chain.add(1, 6, &[at(16, 20)], vec![], true));
    }
}
