//! Properties that hold between runs of the CPU form.

use proptest::prelude::*;
use rayon::prelude::*;
use riverrun_kernels::cell::check::{Case, Options, Results, routines};
use riverrun_kernels::cell::{Cell, Problem, cpu};

/// Steps `range` of a case, with the given state before them.
fn part(case: &Case<f32>, range: std::ops::Range<usize>, state: (Vec<f32>, Vec<f32>)) -> Case<f32> {
    let p = case.problem;
    let cut = |slice: &[f32], width: usize| -> Vec<f32> {
        (0..p.batch)
            .flat_map(|b| {
                slice[(b * p.steps + range.start) * width..][..range.len() * width].to_vec()
            })
            .collect()
    };
    Case {
        problem: Problem {
            steps: range.len(),
            ..p
        },
        xg: cut(&case.xg, p.gate_width()),
        d_h: case.d_h.as_ref().map(|d| cut(d, p.hidden)),
        reset: case.reset.as_ref().map(|r| {
            (0..p.batch)
                .flat_map(|b| r[b * p.steps + range.start..][..range.len()].to_vec())
                .collect()
        }),
        h0: Some(state.0),
        c0: (p.cell == Cell::Lstm).then_some(state.1),
        ..case.clone()
    }
}

/// Cuts the case into chunks in running order, carries the state forward and its gradient back, and puts `h` and `d_xg`
/// together again.
fn chunked(case: &Case<f32>, size: usize, routine: cpu::Routine) -> (Results<f32>, Results<f32>) {
    let p = case.problem;
    let whole = case.run(routine);
    let mut ranges: Vec<_> = (0..p.steps)
        .step_by(size.max(1))
        .map(|s| s..(s + size).min(p.steps))
        .collect();
    if p.reverse {
        ranges.reverse();
    }
    let zeros = |n: usize| vec![0.0f32; n];
    let mut state = (
        case.h0.clone().unwrap_or(zeros(p.state())),
        case.c0.clone().unwrap_or(zeros(p.cell_state())),
    );
    let mut parts = Vec::new();
    for range in &ranges {
        let mut chunk = part(case, range.clone(), state);
        chunk.d_h_last = None;
        chunk.d_c_last = None;
        let done = chunk.run(routine);
        state = (done.h_last, done.c_last);
        parts.push(chunk);
    }
    let mut joined = whole.clone();
    joined.h.fill(f32::NAN);
    joined.d_xg.fill(f32::NAN);
    (joined.h_last, joined.c_last) = state;
    let (mut d_h_last, mut d_c_last) = (case.d_h_last.clone(), case.d_c_last.clone());
    joined.d_bias.fill(0.0);
    for (range, chunk) in ranges.iter().zip(&mut parts).rev() {
        chunk.d_h_last = d_h_last;
        chunk.d_c_last = d_c_last;
        let done = chunk.run(routine);
        for b in 0..p.batch {
            for (to, from, width) in [
                (&mut joined.h, &done.h, p.hidden),
                (&mut joined.d_xg, &done.d_xg, p.gate_width()),
            ] {
                let n = range.len() * width;
                to[(b * p.steps + range.start) * width..][..n].copy_from_slice(&from[b * n..][..n]);
            }
        }
        joined
            .d_bias
            .iter_mut()
            .zip(&done.d_bias)
            .for_each(|(sum, x)| *sum += x);
        d_h_last = Some(done.d_h0);
        d_c_last = (p.cell == Cell::Lstm).then_some(done.d_c0);
    }
    joined.d_h0 = d_h_last.unwrap_or(zeros(p.state()));
    joined.d_c0 = d_c_last.unwrap_or(zeros(p.cell_state()));
    (whole, joined)
}

fn assert_same_but_sums(whole: &Results<f32>, other: &Results<f32>) {
    for ((name, a), (_, b)) in whole.named().iter().zip(&other.named()) {
        match *name {
            // Sums over steps, added in another order.
            "d_u" => {}
            "d_bias" => {
                let scale = a.iter().fold(1.0, |s: f64, x| s.max(x.abs()));
                assert!(
                    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * scale),
                    "{name}"
                );
            }
            _ => assert_eq!(a, b, "{name}"),
        }
    }
}

fn cell() -> impl Strategy<Value = Cell> {
    (0..5usize).prop_map(|i| Cell::all()[i])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn chunks_equal_the_whole_bit_for_bit(
        cell in cell(), batch in 1..6usize, steps in 1..40usize, hidden in 1..70usize, size in 1..20usize, reverse: bool,
        reset: bool, routine in 0..12usize, seed in 0..1000u64,
    ) {
        let problem = Problem::new(cell, batch, steps, hidden).reversed(reverse);
        let case = Case::random(problem, Options { reset, ..Options::ALL }, seed);
        let all = routines();
        let (whole, joined) = chunked(&case, size, all[routine % all.len()]);
        assert_same_but_sums(&whole, &joined);
    }

    #[test]
    fn step_by_step_equals_the_whole_bit_for_bit(cell in cell(), batch in 1..4usize, hidden in 1..40usize, seed in 0..1000u64) {
        let case = Case::random(Problem::new(cell, batch, 12, hidden), Options::ALL, seed);
        let (whole, joined) = chunked(&case, 1, cpu::Routine::default());
        assert_same_but_sums(&whole, &joined);
    }

    /// Neither the division among threads nor the other sequences change a sequence's numbers.
    #[test]
    fn batch_permutation(cell in cell(), batch in 2..20usize, steps in 1..12usize, hidden in 1..50usize, seed in 0..1000u64) {
        let case = Case::<f32>::random(Problem::new(cell, batch, steps, hidden), Options::ALL, seed);
        let turn = |slice: &[f32]| {
            let mut turned = slice.to_vec();
            turned.rotate_left(slice.len() / batch);
            turned
        };
        let mut turned = case.clone();
        turned.xg = turn(&case.xg);
        turned.h0 = case.h0.as_deref().map(turn);
        turned.c0 = case.c0.as_deref().map(turn);
        turned.d_h = case.d_h.as_deref().map(turn);
        turned.d_h_last = case.d_h_last.as_deref().map(turn);
        turned.d_c_last = case.d_c_last.as_deref().map(turn);
        if let Some(reset) = &mut turned.reset {
            reset.rotate_left(steps);
        }
        let (a, b) = (case.run(cpu::Routine::default()), turned.run(cpu::Routine::default()));
        prop_assert_eq!(turn(&a.h), b.h);
        prop_assert_eq!(turn(&a.h_last), b.h_last);
        prop_assert_eq!(turn(&a.d_xg), b.d_xg);
        prop_assert_eq!(turn(&a.d_h0), b.d_h0);
    }

    /// Sequences packed one after another with resets are the same as one by one.
    #[test]
    fn packed_with_resets(cell in cell(), first in 1..20usize, second in 1..20usize, hidden in 1..40usize, seed in 0..1000u64) {
        let steps = first + second;
        let mut case = Case::<f32>::random(Problem::new(cell, 1, steps, hidden), Options { reset: true, ..Options::NONE }, seed);
        let reset = case.reset.as_mut().unwrap();
        reset.fill(false);
        reset[first] = true;
        let packed = case.run(cpu::Routine::default());
        let zero = || (vec![0.0; hidden], vec![0.0; hidden]);
        let a = part(&case, 0..first, zero()).run(cpu::Routine::default());
        let b = part(&case, first..steps, zero()).run(cpu::Routine::default());
        prop_assert_eq!(packed.h, [a.h, b.h].concat());
        prop_assert_eq!(packed.d_xg, [a.d_xg, b.d_xg].concat());
        prop_assert_eq!(packed.d_h0, a.d_h0);
    }

    #[test]
    fn reverse_is_flip(cell in cell(), batch in 1..5usize, steps in 1..20usize, hidden in 1..40usize, seed in 0..1000u64) {
        let case = Case::<f32>::random(Problem::new(cell, batch, steps, hidden), Options::ALL, seed);
        let flip = |slice: &[f32]| -> Vec<f32> {
            let width = slice.len() / (batch * steps);
            slice.chunks_exact(steps * width).flat_map(|s| s.chunks_exact(width).rev().flatten().copied()).collect()
        };
        let mut flipped = case.clone();
        flipped.problem.reverse = true;
        flipped.xg = flip(&case.xg);
        flipped.d_h = case.d_h.as_deref().map(flip);
        flipped.reset = case.reset.as_ref().map(|r| r.chunks_exact(steps).flat_map(|r| r.iter().rev().copied()).collect());
        let (a, b) = (case.run(cpu::Routine::default()), flipped.run(cpu::Routine::default()));
        prop_assert_eq!(flip(&a.h), b.h);
        prop_assert_eq!(flip(&a.d_xg), b.d_xg);
        prop_assert_eq!((a.h_last, a.d_h0, a.d_c0), (b.h_last, b.d_h0, b.d_c0));
    }
}

#[test]
fn every_division_gives_the_same_bits_every_time() {
    for cell in Cell::all() {
        for (batch, steps, hidden) in [(1, 40, 100), (2, 20, 256), (9, 12, 64)] {
            let case =
                Case::<f32>::random(Problem::new(cell, batch, steps, hidden), Options::ALL, 4);
            for level in cpu::Level::available() {
                let bits: Vec<_> = routines()
                    .into_iter()
                    .filter(|routine| routine.level == Some(*level))
                    .flat_map(|routine| [case.run(routine).bits(), case.run(routine).bits()])
                    .collect();
                assert!(
                    bits.windows(2).all(|pair| pair[0] == pair[1]),
                    "{} {level:?}",
                    cell.name()
                );
            }
        }
    }
}

/// A team that cannot come together, or not at once, gives the same result.
#[test]
fn busy_pools() {
    let case = Case::<f32>::random(Problem::new(Cell::Lstm, 1, 60, 96), Options::ALL, 4);
    let expected = case.run(cpu::Routine {
        split: cpu::Split::None,
        ..Default::default()
    });
    let routine = cpu::Routine {
        split: cpu::Split::Units,
        threads: Some(3),
        level: None,
    };
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        assert_eq!(pool.install(|| case.run(routine)).bits(), expected.bits());
        // Many at once, some of whose threads must wait for others' calls to end.
        let all: Vec<_> = pool.install(|| {
            (0..12)
                .into_par_iter()
                .map(|_| case.run(routine).bits())
                .collect()
        });
        assert!(all.iter().all(|bits| *bits == expected.bits()));
    }
}
