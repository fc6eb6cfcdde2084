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
