//! How cubes that run at once learn each other's results, step by step.
//!
//! **The word is the message.** What a step makes is written once, to its own place in the result `[B, T, ..]`, in
//! 32-bit words of two numbers; whoever needs it reads that place until it is there. A place that is not yet written
//! holds [`ABSENT`], put there by [`poison`] before the launch: two NaNs of a form that no conversion makes. So there
//! are no flags, no fences and no barrier: a word is read and written whole, no word says anything of another one, and
//! no place is used twice. A step costs one trip through the L2 cache instead of the two of a barrier.
//!
//! **Only one at a time.** A launch whose cubes wait for each other must have them all on the device. [`acquire`] is
//! launched before it, in the same stream: one unit that waits until no other such launch runs on the device, whatever
//! its stream. Large cubes are launched only then, so two such launches never hold half of the device each.
//!
//! **Bound.** Each wait ends after `spins` polls. The words are then what they are, NaN, and the fault is raised; no
//! later wait of that cube waits again. So no launch can hang, and no wrong number can pass for a right one.

use cubecl::prelude::*;

/// What a place holds before it is written.
pub(super) const ABSENT: u32 = u32::MAX;

/// Control words of a device: the lock, the count of cubes that are done, the fault.
pub(super) const CONTROL_WORDS: usize = 3;
const LOCK: usize = 0;
const DONE: usize = 1;
const FAULT: usize = 2;

/// Where a buffer starts.
#[cube]
pub(super) fn address<T: CubePrimitive>(buffer: &[T]) -> u64 {
    let at: u64;
    let start = buffer.as_ptr();
    gpu_asm!("mov.u64 {}, {};", out(_) at, in(_) start, options(pure, nomem));
    at
}

/// The same, of a buffer that is written.
#[cube]
pub(super) fn address_mut<T: CubePrimitive>(buffer: &mut [T]) -> u64 {
    let at: u64;
    let start = buffer.as_mut_ptr();
    gpu_asm!("mov.u64 {}, {};", out(_) at, in(_) start, options(pure, nomem));
    at
}

/// Four words, whichever cube wrote them; each whole, in no order.
#[cube]
pub(super) fn read_shared(at: u64) -> Vector<u32, Const<4>> {
    let words: Vector<u32, Const<4>>;
    gpu_asm!("ld.relaxed.gpu.global.v4.u32 {}, [{}];", out(_) words, in(_) at);
    words
}

/// A word for other cubes to read.
#[cube]
pub(super) fn write_shared(at: u64, word: u32) {
    gpu_asm!("st.relaxed.gpu.global.u32 [{}], {};", in(_) at, in(_) word);
}

/// Starts to bring the line of `at` into the L2 cache.
#[cube]
pub(super) fn prefetch(at: u64) {
    gpu_asm!("prefetch.global.L2 [{}];", in(_) at);
}

/// Whether one of the words is not there yet.
#[cube]
pub(super) fn absent(words: Vector<u32, Const<4>>) -> bool {
    let a = words.extract(0usize).max(words.extract(1usize));
    let b = words.extract(2usize).max(words.extract(3usize));
    a.max(b) == ABSENT
}

#[cube]
pub(super) fn raise_fault(control: &mut [Atomic<u32>]) {
    control[FAULT].store(1u32);
}

/// Fills `words` with [`ABSENT`].
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn poison(words: &mut [Vector<u32, Const<4>>]) {
    let mut at = ABSOLUTE_POS;
    let step = CUBE_COUNT * CUBE_DIM as usize;
    while at < words.len() {
        words[at] = Vector::<u32, Const<4>>::new(ABSENT);
        at += step;
    }
}

/// Waits for the device's lock and takes it. After `spins` polls it goes on without, and raises the fault.
#[cube(launch_unchecked)]
pub(super) fn acquire(control: &mut [Atomic<u32>], spins: u32) {
    if UNIT_POS == 0 {
        let mut polls = 0u32;
        let mut waiting = true;
        while waiting {
            waiting = control[LOCK].exchange(1u32) != 0u32;
            polls += 1;
            if waiting && polls >= spins {
                control[FAULT].store(1u32);
                waiting = false;
            }
        }
    }
}

/// To be called by every unit at the end: the last cube of the launch gives the lock back.
#[cube]
pub(super) fn release(control: &mut [Atomic<u32>]) {
    sync_cube();
    if UNIT_POS == 0 {
        let done = control[DONE].fetch_add(1u32) + 1u32;
        if done as usize == CUBE_COUNT {
            control[DONE].store(0u32);
            control[LOCK].store(0u32);
        }
    }
}
