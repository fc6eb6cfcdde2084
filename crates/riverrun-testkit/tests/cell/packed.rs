//! A packed layer gives the bits of the layer that is packed anew.

use riverrun_kernels::Error;
use riverrun_kernels::cell::check::Random;
use riverrun_kernels::cell::cpu::{Level, PackedLayer, Routine, State};
use riverrun_kernels::cell::{Cell, Inputs, Layer, Outputs, Problem, cpu};

struct Data {
    x: Vec<f32>,
    w: Vec<f32>,
    u: Vec<f32>,
    bias: [Vec<f32>; 2],
    h0: Vec<f32>,
    c0: Vec<f32>,
}

fn data(problem: &Problem, width: usize) -> Data {
    let mut rng = Random::new(problem.hidden as u64 + 7);
    let mut vec = |len: usize, scale: f64| -> Vec<f32> {
        rng.vec(len, scale).into_iter().map(|x| x as f32).collect()
    };
    let gates = problem.gate_width();
    let scale = 1.0 / (problem.hidden as f64).sqrt();
    Data {
        x: vec(problem.batch * problem.steps * width, 1.0),
        w: vec(gates * width, scale),
        u: vec(gates * problem.hidden, scale),
        bias: [vec(gates, 0.5), vec(gates, 0.5)],
        h0: vec(problem.state(), 1.0),
        c0: vec(problem.cell_state(), 1.0),
    }
}

/// `h`, `h_last` and `c_last`.
type States = [Vec<f32>; 3];

fn poisoned(problem: &Problem) -> States {
    [problem.outputs(), problem.state(), problem.cell_state()].map(|n| vec![f32::NAN; n])
}

fn outputs([h, h_last, c_last]: &mut States) -> Outputs<'_, f32, f32> {
    Outputs {
        h,
        h_last,
        c_last: Some(c_last),
        saved: None,
    }
}

#[test]
fn packed_weights_change_no_bit() {
    let sizes = [
        (1, 9, 5, 3),
        (2, 4, 33, 16),
        (1, 3, 100, 64),
        (5, 6, 17, 0),
        (3, 0, 8, 2),
    ];
    for cell in Cell::all() {
        for (batch, steps, hidden, width) in sizes {
            let problem = Problem::new(cell, batch, steps, hidden);
            let data = data(&problem, width);
            let lstm = cell == Cell::Lstm;
            for &level in Level::available() {
                let routine = Routine {
                    level: Some(level),
                    ..Routine::default()
                };
                let mut expected = poisoned(&problem);
                let inputs = Inputs {
                    bias: Some(&data.bias[1]),
                    h0: Some(&data.h0),
                    c0: lstm.then_some(&data.c0),
                    ..Inputs::new(&[], &data.u)
                };
                let layer = Layer {
                    x: &data.x,
                    width,
                    w: &data.w,
                    bias: Some(&data.bias[0]),
                };
                cpu::forward_layer(&problem, &layer, &inputs, outputs(&mut expected), routine)
                    .unwrap();

                let weights = [&data.w[..], &data.u];
                let biases = [Some(&data.bias[0][..]), Some(&data.bias[1][..])];
                // Packed for another number of sequences, too.
                for packed_for in [1, batch] {
                    let sizes = [packed_for, width, hidden];
                    let packed = PackedLayer::new(cell, sizes, weights, biases, routine).unwrap();
                    let start = State {
                        h0: Some(&data.h0),
                        c0: lstm.then_some(&data.c0),
                        reset: None,
                        lengths: None,
                    };
                    let mut found = poisoned(&problem);
                    packed
                        .forward([batch, steps], &data.x, start, outputs(&mut found))
                        .unwrap();
                    assert_eq!(
                        found, expected,
                        "{cell:?} {batch} {steps} {hidden} {level:?}"
                    );
                    // One step at a time.
                    let one = Problem::new(cell, batch, 1, hidden);
                    let (mut h, mut c) = (data.h0.clone(), data.c0.clone());
                    for t in 0..steps {
                        let row = |b: usize| &data.x[(b * steps + t) * width..][..width];
                        let x: Vec<f32> = (0..batch).flat_map(row).copied().collect();
                        let start = State {
                            h0: Some(&h),
                            c0: lstm.then_some(&c),
                            reset: None,
                            lengths: None,
                        };
                        let mut found = poisoned(&one);
                        packed
                            .forward([batch, 1], &x, start, outputs(&mut found))
                            .unwrap();
                        [_, h, c] = found;
                    }
                    assert_eq!([&h, &c], [&expected[1], &expected[2]], "{cell:?} steps");
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let zeros = [0.0f32; 24];
    let new = |w: usize, hidden: usize| {
        let weights = [&zeros[..w], &zeros[..16]];
        PackedLayer::new(
            Cell::Lstm,
            [1, 3, hidden],
            weights,
            [None, None],
            Routine::default(),
        )
    };
    assert!(matches!(new(23, 2), Err(Error::Length { what: "w", .. })));
    assert!(matches!(new(24, 0), Err(Error::NoChannels)));
    let packed = new(24, 2).unwrap();
    let mut found = poisoned(&Problem::new(Cell::Lstm, 1, 1, 2));
    let refused = packed.forward([1, 1], &zeros[..2], State::default(), outputs(&mut found));
    assert!(matches!(refused, Err(Error::Length { what: "x", .. })));
    assert!(
        found[0].iter().all(|h| h.is_nan()),
        "written in spite of an error"
    );
}
