//! The parts of an RSSM's step.

use half::{bf16, f16};
use riverrun_kernels::CpuElement;
use riverrun_testkit::rssm::{Blocks, Draw, cpu, oracle};

use super::{assert_close, data, rounded};
use crate::shared::assert_slopes;

/// A few numbers, rows that do not fill a register, one block, no states.
const SIZES: [(usize, usize, usize); 6] = [
    (3, 2, 5),
    (2, 8, 33),
    (16, 1, 7),
    (1, 4, 64),
    (0, 2, 3),
    (5, 3, 1),
];

fn blocks((batch, blocks, width): (usize, usize, usize)) -> Blocks {
    Blocks {
        batch,
        blocks,
        width,
    }
}

fn draws() -> Vec<Draw> {
    [(5, 4, 0.01), (1, 1, 0.5), (0, 3, 0.01), (40, 33, 0.0)]
        .map(|(rows, classes, unimix)| Draw {
            rows,
            classes,
            unimix,
        })
        .to_vec()
}

/// Noise from the Gumbel distribution.
fn noise(n: usize, seed: u64) -> Vec<f64> {
    let gumbel = |x: &f64| -(-(x.abs() % 3.0 / 3.0).clamp(1e-3, 0.999).ln()).ln();
    data(n, seed).iter().map(gumbel).collect()
}

/// Asserts that each row of a sample has one 1, at a class whose score is the highest but for rounding.
fn assert_drawn(draw: Draw, sample: &[f64], scores: &[f64]) {
    for (sample, scores) in sample.chunks(draw.classes).zip(scores.chunks(draw.classes)) {
        let chosen: Vec<usize> = (0..draw.classes).filter(|c| sample[*c] == 1.0).collect();
        assert!(chosen.len() == 1 && sample.iter().all(|x| *x == 0.0 || *x == 1.0));
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let gap = highest - scores[chosen[0]];
        assert!(gap <= 1e-5 * (1.0 + highest.abs()), "{gap}");
    }
}

/// The results of all operations of a problem: `y`, `d_x`, `d'`, `d_a`, `d_before`.
type Found = [Vec<f64>; 5];

/// `x` and `d_y`, the gates, the states, `d_next`.
fn given(blocks: Blocks) -> [Vec<f64>; 5] {
    let n = blocks.numbers();
    [(n, 1), (n, 2), (3 * n, 3), (n, 4), (n, 5)].map(|(n, seed)| data(n, seed))
}

fn expected(blocks: Blocks, [x, d_y, gates, before, d_next]: &[Vec<f64>; 5]) -> Found {
    let (d_gates, d_before) = oracle::step_backward(blocks, gates, before, d_next);
    [
        oracle::activate(blocks, x),
        oracle::activate_backward(blocks, x, d_y),
        oracle::step(blocks, gates, before),
        d_gates,
        d_before,
    ]
}

const NAMES: [&str; 5] = ["y", "d_x", "next", "d_gates", "d_before"];

/// The size of the terms that a result is the sum of; the inputs are as large as 20, and some gradients are products of three.
const TERMS: [f64; 5] = [20.0, 400.0, 20.0, 400.0, 20.0];

fn right_on_the_cpu<E: CpuElement>() {
    for sizes in SIZES {
        let blocks = blocks(sizes);
        let given = given(blocks).map(|x| rounded::<E>(&x));
        let [x, d_y, gates, before, d_next] = given.each_ref().map(|(narrow, _)| narrow);
        let nan = |n: usize| vec![E::from_f64(f64::NAN); n];
        let n = blocks.numbers();
        let (mut y, mut d_x, mut next) = (nan(n), nan(n), nan(n));
        let (mut d_gates, mut d_before) = (nan(3 * n), nan(n));
        cpu::activate(blocks, x, &mut y).unwrap();
        cpu::activate_backward(blocks, x, d_y, &mut d_x).unwrap();
        cpu::step(blocks, gates, before, &mut next).unwrap();
        let (to_gates, to_before) = (&mut d_gates, &mut d_before);
        cpu::step_backward(blocks, gates, before, d_next, to_gates, to_before).unwrap();
        let found = [y, d_x, next, d_gates, d_before];
        let truth = expected(blocks, &given.each_ref().map(|(_, wide)| wide.clone()));
        for n in 0..5 {
            assert_close(NAMES[n], &found[n], &truth[n], 16.0, TERMS[n]);
        }
    }
    for draw in draws() {
        let n = draw.numbers();
        let (logits, wide) = rounded::<E>(&data(n, 6));
        let (d_sample, d_wide) = rounded::<E>(&data(n, 7));
        let (noise, noise_wide) = rounded::<f32>(&noise(n, 8));
        let mut sample = vec![E::from_f64(f64::NAN); n];
        cpu::draw(draw, &logits, &noise, &mut sample).unwrap();
        let sample: Vec<f64> = sample.iter().map(|x| x.to_f64()).collect();
        assert_drawn(draw, &sample, &oracle::scores(draw, &wide, &noise_wide));
        let mut d_logits = vec![E::from_f64(f64::NAN); n];
        cpu::draw_backward(draw, &logits, &d_sample, &mut d_logits).unwrap();
        let truth = oracle::draw_backward(draw, &wide, &d_wide);
        assert_close("d_logits", &d_logits, &truth, 16.0, 20.0);
    }
}

#[test]
fn steps_are_right_in_every_type() {
    right_on_the_cpu::<f32>();
    right_on_the_cpu::<f64>();
    right_on_the_cpu::<f16>();
    right_on_the_cpu::<bf16>();
}

#[test]
fn the_oracle_has_the_slopes_of_its_functions() {
    let blocks = blocks((2, 2, 3));
    let [x, d_y, gates, before, d_next] = given(blocks);
    assert_slopes(
        &x,
        &d_y,
        |x| oracle::activate(blocks, x),
        &oracle::activate_backward(blocks, &x, &d_y),
    );
    let (d_gates, d_before) = oracle::step_backward(blocks, &gates, &before, &d_next);
    let of_gates = |gates: &[f64]| oracle::step(blocks, gates, &before);
    assert_slopes(&gates, &d_next, of_gates, &d_gates);
    let of_before = |before: &[f64]| oracle::step(blocks, &gates, before);
    assert_slopes(&before, &d_next, of_before, &d_before);
    let draw = Draw {
        rows: 2,
        classes: 5,
        unimix: 0.25,
    };
    let (logits, d_sample) = (data(10, 1), data(10, 2));
    // Without noise the exponential of a score is the probability.
    let p = |logits: &[f64]| -> Vec<f64> {
        let scores = oracle::scores(draw, logits, &[0.0; 10]);
        scores.into_iter().map(f64::exp).collect()
    };
    let slopes = oracle::draw_backward(draw, &logits, &d_sample);
    assert_slopes(&logits, &d_sample, p, &slopes);
}

#[test]
fn a_nan_stays_in_its_place() {
    let blocks = blocks((2, 2, 3));
    let mut gates = vec![0.5_f32; 36];
    gates[1] = f32::NAN;
    let mut next = vec![7.0; 12];
    cpu::step(blocks, &gates, &[0.25; 12], &mut next).unwrap();
    assert_eq!(next.iter().filter(|x| x.is_nan()).count(), 1);
    assert!(next[1].is_nan());
    let draw = Draw {
        rows: 2,
        classes: 3,
        unimix: 0.01,
    };
    let logits = [0.0, f32::NAN, 1.0, 0.0, 1.0, 2.0];
    let mut sample = [7.0; 6];
    cpu::draw(draw, &logits, &[0.0; 6], &mut sample).unwrap();
    assert!(sample[..3].iter().all(|x| x.is_nan()));
    assert_eq!(sample[3..], [0.0, 0.0, 1.0]);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let blocks = blocks((2, 2, 3));
    let mut out = [0.0_f32; 12];
    assert!(cpu::activate(blocks, &[0.0; 11], &mut out).is_err());
    assert!(cpu::step(blocks, &[0.0; 35], &[0.0; 12], &mut out).is_err());
    let draw = Draw {
        rows: 4,
        classes: 3,
        unimix: 0.0,
    };
    assert!(cpu::draw(draw, &[0.0; 12], &[0.0; 11], &mut out).is_err());
    assert!(cpu::draw_backward(draw, &[0.0; 12], &[0.0; 12], &mut out[..11]).is_err());
}

#[cfg(feature = "gpu")]
mod on_a_gpu {
    use cubecl::client::Client;
    use riverrun_kernels::gpu::Dtype;
    use riverrun_testkit::check::transfer::{download, poison, upload};
    use riverrun_testkit::rssm::gpu;

    use super::*;
    use crate::device::client;

    /// The numbers as they are stored.
    fn stored(dtype: Dtype, x: &[f64]) -> Vec<f64> {
        match dtype {
            Dtype::F32 => rounded::<f32>(x).1,
            Dtype::F16 => rounded::<f16>(x).1,
            Dtype::Bf16 => rounded::<bf16>(x).1,
        }
    }

    fn close(dtype: Dtype, what: &str, found: &[f64], truth: &[f64], size: f64) {
        fn check<E: CpuElement>(what: &str, found: &[f64], truth: &[f64], size: f64) {
            let found: Vec<E> = found.iter().map(|x| E::from_f64(*x)).collect();
            // Functions of a shading language are right to more ulp than those of a CPU.
            assert_close(what, &found, truth, 64.0, size);
        }
        match dtype {
            Dtype::F32 => check::<f32>(what, found, truth, size),
            Dtype::F16 => check::<f16>(what, found, truth, size),
            Dtype::Bf16 => check::<bf16>(what, found, truth, size),
        }
    }

    fn run(client: &Client, dtype: Dtype, blocks: Blocks, given: &[Vec<f64>; 5]) -> Found {
        let n = blocks.numbers();
        let handles = given.each_ref().map(|x| upload(client, dtype, x));
        let [x, d_y, gates, before, d_next] = &handles;
        let sizes = [n, n, n, 3 * n, n];
        let found = sizes.map(|n| poison(client, dtype, n));
        let [y, d_x, next, d_gates, d_before] = &found;
        gpu::activate(client, dtype, blocks, x, y).unwrap();
        gpu::activate_backward(client, dtype, blocks, [x, d_y], d_x).unwrap();
        let gates_of = gpu::Gates::in_blocks(gates, blocks);
        gpu::step(client, dtype, blocks, gates_of, before, next).unwrap();
        let back = [gates, before, d_next];
        gpu::step_backward(client, dtype, blocks, back, [d_gates, d_before]).unwrap();
        let read = |n: usize| download(client, dtype, found[n].clone(), sizes[n]);
        [0, 1, 2, 3, 4].map(read)
    }

    #[test]
    fn steps_are_right() {
        let Some(client) = client() else { return };
        for dtype in Dtype::ALL.into_iter().filter(|d| d.supported(&client)) {
            for sizes in SIZES {
                let blocks = blocks(sizes);
                let given = given(blocks).map(|x| stored(dtype, &x));
                let found = run(&client, dtype, blocks, &given);
                let truth = expected(blocks, &given);
                for n in 0..5 {
                    close(dtype, NAMES[n], &found[n], &truth[n], TERMS[n]);
                }
                assert_eq!(found, run(&client, dtype, blocks, &given));
            }
        }
    }

    #[test]
    fn draws_are_right() {
        let Some(client) = client() else { return };
        for dtype in Dtype::ALL.into_iter().filter(|d| d.supported(&client)) {
            for draw in draws() {
                let n = draw.numbers();
                let logits = stored(dtype, &data(n, 6));
                let d_sample = stored(dtype, &data(n, 7));
                // The second of two steps' noise.
                let noise = stored(Dtype::F32, &noise(2 * n, 8));
                let up = |x: &[f64]| upload(&client, dtype, x);
                let (on_logits, on_d) = (up(&logits), up(&d_sample));
                let on_noise = upload(&client, Dtype::F32, &noise);
                let sample = poison(&client, dtype, n);
                gpu::draw(&client, dtype, draw, &on_logits, (&on_noise, 1), &sample).unwrap();
                let sample = download(&client, dtype, sample, n);
                assert_drawn(draw, &sample, &oracle::scores(draw, &logits, &noise[n..]));
                let d_logits = poison(&client, dtype, n);
                gpu::draw_backward(&client, dtype, draw, [&on_logits, &on_d], &d_logits).unwrap();
                let found = download(&client, dtype, d_logits, n);
                let truth = oracle::draw_backward(draw, &logits, &d_sample);
                close(dtype, "d_logits", &found, &truth, 20.0);
            }
        }
    }

    #[test]
    fn what_does_not_fit_or_is_no_number() {
        let Some(client) = client() else { return };
        let dtype = Dtype::F32;
        let up = |x: &[f64]| upload(&client, dtype, x);
        let draw = Draw {
            rows: 2,
            classes: 3,
            unimix: 0.01,
        };
        let logits = up(&[0.0, f64::NAN, 1.0, 0.0, 1.0, 2.0]);
        let (noise, sample) = (up(&[0.0; 6]), poison(&client, dtype, 6));
        assert!(gpu::draw(&client, dtype, draw, &logits, (&noise, 1), &sample).is_err());
        gpu::draw(&client, dtype, draw, &logits, (&noise, 0), &sample).unwrap();
        let sample = download(&client, dtype, sample, 6);
        assert!(sample[..3].iter().all(|x| x.is_nan()));
        assert_eq!(sample[3..], [0.0, 0.0, 1.0]);
        let short = up(&[0.0; 11]);
        let y = poison(&client, dtype, 12);
        assert!(gpu::activate(&client, dtype, blocks((2, 2, 3)), &short, &y).is_err());
    }
}
