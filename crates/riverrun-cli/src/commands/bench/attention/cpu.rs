//! On the CPU.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use riverrun_kernels::CpuElement;
use riverrun_kernels::attention::cpu::{Backward, Forward, backward, forward};

use super::{Table, right, shapes, short};
use crate::args::{AttentionShape, BenchAttentionArgs, Storage};
use crate::commands::bench::setup::{Setup, fits_memory};
use crate::commands::bench::stats::{Timing, repeat};
use crate::failure::Failure;

const SHAPES: [AttentionShape; 6] = [
    AttentionShape::new([2, 8, 512, 64]),
    AttentionShape::new([4, 8, 512, 64]),
    AttentionShape::new([4, 12, 1024, 64]),
    AttentionShape::new([1, 8, 2048, 64]),
    AttentionShape::grouped([1, 8, 8, 2048, 64], Some(256)),
    AttentionShape::new([8, 16, 2048, 64]),
];

pub(super) fn run(
    args: &BenchAttentionArgs,
    setup: &Setup,
    table: &mut Table,
) -> Result<(), Failure> {
    if !args.routines.is_empty() {
        let reason = "the routines are for GPUs; the CPU has one of its own";
        return Err(Failure::User(reason.into()));
    }
    let shapes = shapes(args, &SHAPES);
    for shape in &shapes {
        let elements = 4 * shape.shape.query_elements() + 4 * shape.shape.key_elements();
        fits_memory(&shape.to_string(), 8 * elements)?;
    }
    let storages = match args.dtypes.is_empty() {
        true => vec![Storage::F32],
        false => args.dtypes.clone(),
    };
    for storage in storages {
        table.begin(storage, setup)?;
        for &shape in &shapes {
            let times = match storage {
                Storage::F32 => times::<f32>(args, shape),
                Storage::F16 => times::<f16>(args, shape),
                Storage::Bf16 => times::<bf16>(args, shape),
                Storage::F64 => times::<f64>(args, shape),
            };
            table.add(shape, storage, "cpu", times?)?;
        }
    }
    Ok(())
}

/// Seconds of a forward and a backward pass.
fn times<E: CpuElement>(
    args: &BenchAttentionArgs,
    shape: AttentionShape,
) -> Result<[Timing; 2], Failure> {
    let bug = |error: riverrun_kernels::Error| Failure::Bug(error.to_string());
    let case = short::<E>(shape, args.full);
    right::<E>(&case, &case.cpu::<E>().map_err(bug)?, "cpu")?;

    let problem = shape.problem(args.full);
    let noise = |n: usize| -> Vec<E> {
        let number = |i: usize| (i as u32).wrapping_mul(2_654_435_761) as f64 / 4.3e9;
        (0..n).map(|i| E::from_f64(number(i))).collect()
    };
    let (queries, keys) = (shape.shape.query_elements(), shape.shape.key_elements());
    let (q, k, v, d_o) = (noise(queries), noise(keys), noise(keys), noise(queries));
    let mut o = noise(queries);
    let mut lse = vec![E::from_f64(0.0).widen(); shape.shape.rows()];
    let mut there = || {
        let args = Forward {
            q: &q,
            k: &k,
            v: &v,
            reset: None,
            o: &mut o,
            lse: &mut lse,
        };
        forward(&problem, args)
    };
    there().map_err(bug)?;
    let budget = Duration::from_secs_f64(args.budget);
    let seconds = |call: &mut dyn FnMut() -> Result<(), riverrun_kernels::Error>| {
        repeat(budget, || {
            let start = Instant::now();
            call().expect("worked before");
            start.elapsed().as_secs_f64()
        })
    };
    let first = seconds(&mut there);
    let (mut d_q, mut d_k, mut d_v) = (noise(queries), noise(keys), noise(keys));
    let mut back = || {
        let args = Backward {
            q: &q,
            k: &k,
            v: &v,
            reset: None,
            o: &o,
            lse: &lse,
            d_o: &d_o,
            d_q: &mut d_q,
            d_k: &mut d_k,
            d_v: &mut d_v,
        };
        backward(&problem, args)
    };
    back().map_err(bug)?;
    Ok([first, seconds(&mut back)])
}
