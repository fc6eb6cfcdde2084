//! On the CPU, `f32`.

use std::time::{Duration, Instant};

use riverrun_kernels::norm::Spec;
use riverrun_kernels::{cross_entropy, norm};
use riverrun_testkit::Case as _;
use riverrun_testkit::loss::Loss;
use riverrun_testkit::norm::{Norm, Options};

use super::{Form, Operation, add, right, shapes};
use crate::args::BenchRowsArgs;
use crate::commands::bench::bandwidth::Table;
use crate::commands::bench::host::copy;
use crate::commands::bench::setup::fits_memory;
use crate::commands::bench::stats::{Timing, repeat};
use crate::failure::Failure;
use crate::origin::Origin;

const NORMS: &[[usize; 2]] = &[[16_384, 256], [8192, 1024]];
const LOSSES: &[[usize; 2]] = &[[65_536, 65], [512, 50_257]];

pub(super) fn run(
    args: &BenchRowsArgs,
    operation: Operation,
    origin: Origin,
) -> Result<(), Failure> {
    let default = match operation {
        Operation::Norm => NORMS,
        Operation::Loss => LOSSES,
    };
    let shapes = shapes(args, default);
    for [rows, width] in &shapes {
        fits_memory(&format!("{rows}x{width}"), 16 * rows * width)?;
    }
    let mut table = Table::new(&origin, copy())?;
    for shape in shapes {
        for &form in operation.forms() {
            let (forward, backward) = match form {
                Form::Norm(kind, residual) => {
                    let options = Options {
                        residual,
                        ..Options::default()
                    };
                    let case = Norm::random(kind, [70, shape[1]], options, 5);
                    let case = case.rounded::<f32>();
                    let found = case.cpu::<f32>().map_err(bug)?;
                    right(form, "f32", &case.compared::<f32>(&found))?;
                    norms(&case.spec, shape, residual)?
                }
                Form::Loss => {
                    let case = Loss::random([7, shape[1]], 5);
                    let case = case.rounded::<f32>();
                    let found = case.cpu::<f32>().map_err(bug)?;
                    right(form, "f32", &case.compared::<f32>(&found))?;
                    losses(shape)?
                }
            };
            for (pass, time) in [(false, forward), (true, backward)] {
                add(&mut table, form, pass, ("f32", 4), shape, "cpu", time)?;
            }
        }
    }
    table.end(args.common.json.as_deref(), origin)
}

fn bug(error: riverrun_kernels::Error) -> Failure {
    Failure::Bug(error.to_string())
}

fn noise(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761) as f32 / 4.3e9)
        .collect()
}

/// Seconds of a call, after it has succeeded once.
fn time(mut call: impl FnMut() -> Result<(), riverrun_kernels::Error>) -> Result<Timing, Failure> {
    call().map_err(bug)?;
    Ok(repeat(Duration::from_millis(400), || {
        let start = Instant::now();
        call().expect("worked before");
        start.elapsed().as_secs_f64()
    }))
}

fn norms(
    spec: &Spec,
    [rows, dim]: [usize; 2],
    residual: bool,
) -> Result<(Timing, Timing), Failure> {
    use norm::cpu::{Backward, Forward, backward, forward};
    let (x, more, gamma) = (noise(rows * dim), noise(rows * dim), noise(dim));
    let (mut y, mut sum) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let there = time(|| {
        let args = Forward {
            x: &x,
            residual: residual.then_some((&more[..], &mut sum[..])),
            gamma: &gamma,
            beta: None,
            y: &mut y,
        };
        forward(spec, args)
    })?;
    let mut d_gamma = vec![0.0; dim];
    let back = time(|| {
        let args = Backward {
            x: &x,
            gamma: &gamma,
            d_y: &more,
            d_sum: residual.then_some(&sum[..]),
            d_x: &mut y,
            d_gamma: &mut d_gamma,
            d_beta: None,
        };
        backward(spec, args)
    })?;
    Ok((there, back))
}

fn losses([rows, vocab]: [usize; 2]) -> Result<(Timing, Timing), Failure> {
    use cross_entropy::cpu::{backward, forward};
    let x = noise(rows * vocab);
    let targets: Vec<i64> = (0..rows).map(|n| (n * 7 % vocab) as i64).collect();
    let mut lse = vec![0.0; rows];
    let there = time(|| forward(&x, vocab, &targets, &mut lse).map(|_| ()))?;
    let mut d_x = vec![0.0; x.len()];
    let back = time(|| backward(&x, vocab, &targets, &lse, 1.0, &mut d_x))?;
    Ok((there, back))
}
