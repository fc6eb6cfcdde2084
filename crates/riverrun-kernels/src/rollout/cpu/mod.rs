//! The CPU form: the weights of a member stay in the cache of its core.
//!
//! Threads take whole members while there is one for each; the remaining members are divided by units, with two barriers a
//! step. All features but the first are constant, so their products are computed once a member, not once a step. Weights whose
//! rows start within cache lines are copied once a member.

mod aligned;
mod member;
mod product;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Arguments, Outcome, Problem};
use crate::Error;
use crate::cell::cpu::barrier::run_together;
use crate::simd::level::Level;
use crate::threads::parallel_map;
use member::{Finished, Member, Part};

/// Below this many multiplications, waking other threads costs more than they save.
const WORTH_WAKING: usize = 1 << 21;
/// A barrier costs about as much as this many multiplications.
const WORTH_MEETING: usize = 1 << 14;
/// Units are divided in multiples of this.
const GRAIN: usize = 16;

/// Runs every member on the threads of rayon's pool.
///
/// # Errors
/// [`Error::Rollout`] for sizes and [`Error::Length`] for arrays that do not fit; then nothing has run.
pub fn run(problem: &Problem, arguments: Arguments<'_, f32>) -> Result<Outcome<f32>, Error> {
    let level = Level::available()[0];
    run_with(problem, arguments, level, rayon::current_num_threads())
}

/// [`run`] with the instruction set and the number of threads given.
#[doc(hidden)]
pub fn run_with(
    problem: &Problem,
    arguments: Arguments<'_, f32>,
    level: Level,
    threads: usize,
) -> Result<Outcome<f32>, Error> {
    arguments.check(problem)?;
    let step = 3 * problem.hidden * problem.hidden;
    let threads = match step * problem.members * problem.steps {
        work if work < WORTH_WAKING => 1,
        _ => threads.max(1),
    };
    let whole = problem.members / threads * threads;
    let rest = problem.members - whole;
    let parts = match rest {
        0 => 1,
        rest => (threads / rest)
            .min(problem.hidden.div_ceil(GRAIN))
            .min(step / WORTH_MEETING)
            .max(1),
    };
    let one = |m: usize, parts: usize| run_member(problem, arguments, level, m, parts);
    let finished: Vec<Finished> = if threads == 1 {
        (0..problem.members).map(|m| one(m, 1)).collect()
    } else {
        let mut finished = parallel_map(whole, |m| one(m, 1));
        finished.extend(parallel_map(rest, |m| one(whole + m, parts)));
        finished
    };
    let mut all = Outcome::filled(problem, 0.0);
    for (m, one) in finished.into_iter().enumerate() {
        let put = |to: &mut [f32], from: &[f32]| {
            to[m * from.len()..(m + 1) * from.len()].copy_from_slice(from)
        };
        put(&mut all.trajectory, &one.trajectory);
        put(&mut all.state, &one.state);
        put(&mut all.entropy, &[one.entropy]);
        put(&mut all.norm, &one.norm);
        put(&mut all.delta, &one.delta);
    }
    Ok(all)
}

/// The units of part `index` of `parts`, in multiples of [`GRAIN`].
fn units(hidden: usize, parts: usize, index: usize) -> Range<usize> {
    let grains = hidden.div_ceil(GRAIN);
    let at = |index: usize| (grains * index / parts * GRAIN).min(hidden);
    at(index)..at(index + 1)
}

/// A vector that the threads of a member share: each writes its own units and reads the others' after a barrier.
struct Shared(Vec<AtomicU32>);

impl Shared {
    fn new(length: usize) -> Self {
        Self((0..length).map(|_| AtomicU32::new(0)).collect())
    }

    fn write(&self, from: usize, x: &[f32]) {
        for (to, x) in self.0[from..].iter().zip(x) {
            to.store(x.to_bits(), Ordering::Relaxed);
        }
    }

    fn read(&self, x: &mut [f32]) {
        for (x, from) in x.iter_mut().zip(&self.0) {
            *x = f32::from_bits(from.load(Ordering::Relaxed));
        }
    }
}

/// Runs a member on `parts` threads, or on this one where the others are busy.
fn run_member(
    problem: &Problem,
    arguments: Arguments<'_, f32>,
    level: Level,
    m: usize,
    parts: usize,
) -> Finished {
    let member = Member::new(problem, arguments, m, level);
    if parts > 1 {
        let (h, rh) = (Shared::new(problem.hidden), Shared::new(problem.hidden));
        let found = Mutex::new(None);
        let done = run_together(
            parts,
            2 * problem.steps,
            |index| Part::new(&member, units(problem.hidden, parts, index)),
            |part: &mut Part, stage| {
                if stage % 2 == 0 {
                    if stage > 0 {
                        h.read(part.h_mut());
                        part.decode(&member);
                    }
                    part.gates(&member);
                    rh.write(part.units().start, part.own_rh());
                } else {
                    rh.read(part.rh_mut());
                    part.candidate(&member);
                    h.write(part.units().start, part.own_h());
                }
            },
            |part: &mut Part| {
                if part.units().start == 0 {
                    h.read(part.h_mut());
                    part.decode(&member);
                    let mut found = found
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner());
                    *found = Some(part.finish(&member));
                }
            },
        );
        let found = found
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let (true, Some(found)) = (done, found) {
            return found;
        }
    }
    let mut part = Part::new(&member, 0..problem.hidden);
    for _ in 0..problem.steps {
        part.gates(&member);
        part.candidate(&member);
        part.decode(&member);
    }
    part.finish(&member)
}
