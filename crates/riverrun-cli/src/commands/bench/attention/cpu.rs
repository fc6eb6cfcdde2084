//! On the CPU.

use riverrun_kernels::CpuElement;
use riverrun_kernels::attention::cpu::{Backward, Forward, backward, forward};
use riverrun_testkit::by_storage;

use super::{Args, AttentionShape, add, check, product, short};
use crate::commands::bench::cpu;
use crate::commands::bench::report::{Report, bug};
use crate::commands::bench::timing::Timing;
use crate::failure::Failure;

const SHAPES: [AttentionShape; 6] = [
    AttentionShape::new([2, 8, 512, 64]),
    AttentionShape::new([4, 8, 512, 64]),
    AttentionShape::new([4, 12, 1024, 64]),
    AttentionShape::new([1, 8, 2048, 64]),
    AttentionShape::grouped([1, 8, 8, 2048, 64], Some(256)),
    AttentionShape::new([8, 16, 2048, 64]),
];

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if !args.routines.is_empty() {
        let reason = "the routines are for GPUs; the CPU has one of its own";
        return Err(Failure::User(reason.into()));
    }
    let shapes = args.grid.or(&SHAPES);
    for shape in &shapes {
        let elements = 4 * shape.shape.query_elements() + 4 * shape.shape.key_elements();
        report.fits_memory(shape, 8 * elements)?;
    }
    for storage in report.dtypes(&args.grid.dtypes, &[])? {
        let product = product(report, storage)?;
        for &shape in &shapes {
            let problem = (shape, args.full);
            let times = by_storage!(storage, times(report, problem))?;
            add(report, problem, storage, product, "cpu", times)?;
        }
    }
    Ok(())
}

/// Seconds of a forward and a backward pass.
fn times<E: CpuElement>(
    report: &Report,
    (shape, full): (AttentionShape, bool),
) -> Result<[Timing; 2], Failure> {
    let case = short::<E>(shape, full);
    check::<E>(&case, &case.cpu::<E>().map_err(bug)?, "cpu")?;

    let problem = shape.problem(full);
    let noise = |n: usize| -> Vec<E> {
        let numbers = cpu::noise(n);
        numbers.map(|x| E::from_f64(f64::from(x))).collect()
    };
    let (queries, keys) = (shape.shape.query_elements(), shape.shape.key_elements());
    let (q, k, v, d_o) = (noise(queries), noise(keys), noise(keys), noise(queries));
    let mut o = noise(queries);
    let mut lse = vec![E::from_f64(0.0).widen(); shape.shape.rows()];
    let there = report.time_call(0.3, || {
        let args = Forward {
            q: &q,
            k: &k,
            v: &v,
            reset: None,
            o: &mut o,
            lse: &mut lse,
        };
        forward(&problem, args)
    })?;
    let (mut d_q, mut d_k, mut d_v) = (noise(queries), noise(keys), noise(keys));
    let back = report.time_call(0.3, || {
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
    })?;
    Ok([there, back])
}
