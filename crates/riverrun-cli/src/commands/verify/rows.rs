//! Operations on the rows of a matrix, forward and every gradient: the norms and the cross-entropy; and the optimizer.

use half::{bf16, f16};
#[cfg(feature = "gpu")]
use riverrun::device;
use riverrun::device::DeviceInfo;
use riverrun_kernels::norm::Kind;
use riverrun_kernels::norm::check::Options;
use riverrun_kernels::{Element, Error, adamw, cross_entropy, norm};

use super::table::{Row, Table};
use super::wanted;
use crate::args::VerifyArgs;
use crate::failure::Failure;

/// RMSNorm and LayerNorm, with and without residual and offset.
pub(super) fn norms(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    each_dtype(args, info, table, Operation::Norm)
}

/// The cross-entropy.
pub(super) fn loss(args: &VerifyArgs, info: &DeviceInfo, table: &mut Table) -> Result<(), Failure> {
    each_dtype(args, info, table, Operation::Loss)
}

/// AdamW and the sum of squares, with gradients in each storage type.
pub(super) fn optimizer(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = device::client(&info.device) {
        use riverrun_kernels::gpu::Dtype;
        for dtype in Dtype::ALL {
            if !wanted(args, dtype.name()) || !dtype.supported(&client) {
                continue;
            }
            let run = |case: &adamw::check::Case| case.gpu(&client, dtype);
            match dtype {
                Dtype::F32 => optimizer_row::<f32>(args, info, table, "gpu", run)?,
                Dtype::F16 => optimizer_row::<f16>(args, info, table, "gpu", run)?,
                Dtype::Bf16 => optimizer_row::<bf16>(args, info, table, "gpu", run)?,
            }
        }
        let mut row = Row::default();
        for scaled in [false, true] {
            let case = adamw::check::ClipCase::new(scaled);
            row.case(&case.compare(&case.gpu(&client), &case.oracle()), true);
        }
        table.row(&info.spec, "clip", "f32", "gpu", row)?;
        return Ok(());
    }
    if wanted(args, "f32") {
        optimizer_row::<f32>(args, info, table, "cpu", |case| case.cpu::<f32>())?;
    }
    if wanted(args, "f16") {
        optimizer_row::<f16>(args, info, table, "cpu", |case| case.cpu::<f16>())?;
    }
    if wanted(args, "bf16") {
        optimizer_row::<bf16>(args, info, table, "cpu", |case| case.cpu::<bf16>())?;
    }
    Ok(())
}

fn optimizer_row<E: Element>(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
    routine: &str,
    run: impl Fn(&adamw::check::Case) -> Result<adamw::check::Outcome, Error>,
) -> Result<(), Failure> {
    let mut row = Row::default();
    let many: Vec<usize> = (0..40).map(|n| 1 + 13 * n).collect();
    let mut sets = vec![vec![0, 1, 3, 64, 5001], many];
    if args.long {
        sets.push(vec![1 << 22, 1 << 20, 4096, 12_345]);
    }
    for (n, sizes) in sets.iter().enumerate() {
        let case = adamw::check::Case::random(sizes, 17 + n as u64).rounded::<E>();
        let (found, again) = (run(&case).map_err(bug)?, run(&case).map_err(bug)?);
        row.case(
            &case.compare::<E>(&found, &case.oracle()),
            found.same_bits(&again),
        );
    }
    table.row(&info.spec, "adamw", E::NAME, routine, row)
}

#[derive(Clone, Copy)]
enum Operation {
    Norm,
    Loss,
}

/// Where the kernels run: none for the CPU.
#[cfg(feature = "gpu")]
type Gpu<'a> = Option<(&'a cubecl::client::Client, riverrun_kernels::gpu::Dtype)>;
#[cfg(not(feature = "gpu"))]
type Gpu<'a> = Option<&'a std::convert::Infallible>;

fn each_dtype(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
    operation: Operation,
) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = device::client(&info.device) {
        use riverrun_kernels::gpu::Dtype;
        for dtype in Dtype::ALL {
            if !wanted(args, dtype.name()) {
                continue;
            }
            if !dtype.supported(&client) {
                let reason = "the device does not support this storage type";
                table.skip(&info.spec, dtype.name(), reason)?;
                continue;
            }
            let gpu = Some((&client, dtype));
            match dtype {
                Dtype::F32 => rows::<f32>(args, info, table, operation, gpu)?,
                Dtype::F16 => rows::<f16>(args, info, table, operation, gpu)?,
                Dtype::Bf16 => rows::<bf16>(args, info, table, operation, gpu)?,
            }
        }
        return Ok(());
    }
    if wanted(args, "f32") {
        rows::<f32>(args, info, table, operation, None)?;
    }
    if wanted(args, "f16") {
        rows::<f16>(args, info, table, operation, None)?;
    }
    if wanted(args, "bf16") {
        rows::<bf16>(args, info, table, operation, None)?;
    }
    if wanted(args, "f64") {
        rows::<f64>(args, info, table, operation, None)?;
    }
    Ok(())
}

fn rows<E: Element>(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
    operation: Operation,
    gpu: Gpu<'_>,
) -> Result<(), Failure> {
    let routine = if gpu.is_some() { "gpu" } else { "cpu" };
    match operation {
        Operation::Norm => {
            for kind in Kind::ALL {
                let row = norm_row::<E>(kind, args.long, gpu)?;
                table.row(&info.spec, kind.name(), E::NAME, routine, row)?;
            }
            Ok(())
        }
        Operation::Loss => {
            let row = loss_row::<E>(args.long, gpu)?;
            table.row(&info.spec, "cross-entropy", E::NAME, routine, row)
        }
    }
}

fn bug(error: Error) -> Failure {
    Failure::Bug(error.to_string())
}

fn norm_row<E: Element>(kind: Kind, long: bool, gpu: Gpu<'_>) -> Result<Row, Failure> {
    let mut shapes = vec![
        [1, 1],
        [3, 2],
        [5, 31],
        [300, 64],
        [70, 100],
        [33, 255],
        [40, 768],
        [9, 1000],
        [5, 5119],
    ];
    if long {
        shapes.extend([[2000, 512], [300, 4096], [3, 65_536], [4, 50_257]]);
    }
    let mut row = Row::default();
    for (n, shape) in shapes.into_iter().enumerate() {
        for options in [n, n + 3, n + 5].map(Options::nth) {
            let case = norm::check::Case::random(kind, shape, options, 17 + n as u64);
            let case = case.rounded::<E>();
            let run = || match gpu {
                #[cfg(feature = "gpu")]
                Some((client, dtype)) => case.gpu(client, dtype, [None; 2]),
                _ => case.cpu::<E>(),
            };
            let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
            let verdicts = case.compare::<E>(&found, &case.oracle::<E>());
            row.case(&verdicts, found.same_bits(&again));
        }
    }
    Ok(row)
}

fn loss_row<E: Element>(long: bool, gpu: Gpu<'_>) -> Result<Row, Failure> {
    let mut shapes = vec![
        [1, 1],
        [9, 2],
        [5, 31],
        [64, 65],
        [100, 256],
        [8, 1003],
        [7, 5000],
        [2, 50_257],
    ];
    if long {
        shapes.extend([[2000, 65], [64, 50_257], [1, 262_144]]);
    }
    let mut row = Row::default();
    for (n, shape) in shapes.into_iter().enumerate() {
        let case = cross_entropy::check::Case::random(shape, 17 + n as u64).rounded::<E>();
        let run = || match gpu {
            #[cfg(feature = "gpu")]
            Some((client, dtype)) => case.gpu(client, dtype, [None; 2]),
            _ => case.cpu::<E>(),
        };
        let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
        row.case(
            &case.compare::<E>(&found, &case.oracle()),
            found.same_bits(&again),
        );
    }
    Ok(row)
}
