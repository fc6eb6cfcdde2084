//! How cubes that run at once read each other's results, step by step.
//!
//! **The data is its own flag.** A step's result is written once, to its own place in the result `[B, T, ..]`, in 32-bit
//! words of one f32 or two 16-bit numbers; a reader polls that place until the value is there. A place that has not been
//! written holds [`ABSENT`], stored by [`poison`] before the launch: a NaN that no conversion and no sum produces. So there are
//! no flags, no fences and no barriers: a word is read and written whole, no word implies anything about another, and no
//! place is used twice. A step costs one trip through the L2 cache instead of the two of a barrier.
//!
//! **Looks.** A look at states that are not there yet reads them for nothing, and where all cubes together read megabytes a step it
//! keeps the L2 cache from the words that are on their way. A thread may therefore send a scout, one read for each of the parts
//! it takes, and read everything when that is there; and the cubes of a cluster may read a part each (`cell::gpu::shared_depth`).
//! The sizes of a problem decide (`cell::gpu::plan`).
//!
//! **Bound.** A wait that sees no result for [`PATIENCE`](super::fault::PATIENCE) gives up: it raises the device's fault
//! word, and no later wait of that cube waits. The words are then used as they are, NaN. So no launch can hang, no wrong number
//! can pass for a right one, and a sequence may be of any length: the clock restarts with every step.

use cubecl::prelude::*;

pub(crate) use super::address::{address, address_mut};
use super::fault::nanoseconds;

/// The content of a place before it is written.
pub(crate) const ABSENT: u32 = u32::MAX;

/// Polls between two looks at the clock.
const POLLS: u32 = 256;

/// Four words, whichever cube wrote them; each whole, in no order.
#[cube]
pub(crate) fn read_shared(at: u64) -> Vector<u32, Const<4>> {
    let words: Vector<u32, Const<4>>;
    gpu_asm!("ld.relaxed.gpu.global.v4.u32 {}, [{}];", out(_) words, in(_) at);
    words
}

/// A word for other cubes to read.
#[cube]
pub(crate) fn write_shared(at: u64, word: u32) {
    gpu_asm!("st.relaxed.gpu.global.u32 [{}], {};", in(_) at, in(_) word);
}

/// A word, whichever cube wrote it.
#[cube]
pub(crate) fn read_word(at: u64) -> u32 {
    let word: u32;
    gpu_asm!("ld.relaxed.gpu.global.u32 {}, [{}];", out(_) word, in(_) at);
    word
}

/// Adds to a word; its value before.
#[cube]
pub(crate) fn add_word(at: u64, term: u32) -> u32 {
    let before: u32;
    gpu_asm!("atom.relaxed.gpu.global.add.u32 {}, [{}], {};", out(_) before, in(_) at, in(_) term);
    before
}

/// Replaces a word if it has the value `expected`; its value before.
#[cube]
pub(crate) fn replace_word(at: u64, expected: u32, word: u32) -> u32 {
    let before: u32;
    gpu_asm!("atom.relaxed.gpu.global.cas.b32 {}, [{}], {}, {};", out(_) before, in(_) at, in(_) expected, in(_) word);
    before
}

/// Starts to bring the line of `at` into the L2 cache.
#[cube]
pub(crate) fn prefetch(at: u64) {
    gpu_asm!("prefetch.global.L2 [{}];", in(_) at);
}

/// Whether one of the words has not been written yet.
#[cube]
pub(crate) fn absent(words: Vector<u32, Const<4>>) -> bool {
    let a = words.extract(0usize).max(words.extract(1usize));
    let b = words.extract(2usize).max(words.extract(3usize));
    a.max(b) == ABSENT
}

/// How long a thread has waited.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Wait {
    polls: u32,
    since: u64,
}

/// A wait that begins.
#[cube]
pub(crate) fn wait() -> Wait {
    Wait {
        polls: 0u32,
        since: 0u64,
    }
}

#[cube]
pub(crate) fn restart(wait: &mut Wait) {
    wait.polls = 0u32;
    wait.since = 0u64;
}

/// Counts a failed poll; returns whether the wait has lasted longer than `limit`.
#[cube]
pub(crate) fn expired(wait: &mut Wait, #[comptime] limit: u64) -> bool {
    let mut over = false;
    wait.polls += 1;
    if wait.polls % POLLS == 0 {
        let time = nanoseconds();
        if wait.since == 0u64 {
            wait.since = time;
        }
        over = time - wait.since > limit;
    }
    over
}

/// Fills `words` with [`ABSENT`].
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn poison(words: &mut [Vector<u32, Const<4>>]) {
    let mut at = ABSOLUTE_POS;
    let step = CUBE_COUNT * CUBE_DIM as usize;
    while at < words.len() {
        words[at] = Vector::<u32, Const<4>>::new(ABSENT);
        at += step;
    }
}
