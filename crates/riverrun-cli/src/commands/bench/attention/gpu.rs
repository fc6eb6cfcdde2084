//! On a GPU, timed by the device's own clock around series of launches.

use cubecl::client::Client;
use riverrun_kernels::Element;
use riverrun_kernels::attention::Problem;
use riverrun_kernels::attention::gpu::{Backward, Forward, backward, forward};
#[cfg(all(feature = "cuda", unix))]
use riverrun_kernels::attention::vendor::{Layout, Sums, Vendor};
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::attention::check::{Case, Outcome};
use riverrun_testkit::by_storage;

use super::{Args, AttentionShape, Routine, add, check, product, short};
use crate::commands::bench::gpu::{dtype_of, noise};
use crate::commands::bench::report::Report;
use crate::commands::bench::timing::Timing;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const SHAPES: [AttentionShape; 9] = [
    AttentionShape::new([2, 8, 512, 64]),
    AttentionShape::new([4, 12, 1024, 64]),
    AttentionShape::new([16, 12, 1024, 64]),
    AttentionShape::new([8, 16, 2048, 64]),
    AttentionShape::new([2, 16, 4096, 128]),
    AttentionShape::new([2, 16, 16_384, 128]),
    AttentionShape::grouped([2, 16, 16, 16_384, 128], Some(1024)),
    AttentionShape::grouped([4, 10, 1, 8192, 256], None),
    AttentionShape::grouped([4, 10, 1, 8192, 256], Some(2048)),
];

pub(super) fn run(args: &Args, client: &Client, report: &mut Report) -> Result<(), Failure> {
    let asked = match args.grid.dtypes.is_empty() {
        true if Dtype::Bf16.supported(client) => &[Storage::Bf16][..],
        true => &[Storage::F32],
        false => &args.grid.dtypes,
    };
    let routines = Implementation::all(args, client)?;
    for storage in report.dtypes(asked, &[])? {
        let product = product(report, storage)?;
        for shape in args.grid.or(&SHAPES) {
            for (name, routine) in &routines {
                let problem = (shape, args.full);
                match by_storage!(
                    storage,
                    times(report, client, storage, problem, name, routine)
                )? {
                    Ok(times) => add(report, problem, storage, product, name, times)?,
                    Err(reason) => {
                        let dtype = storage.name();
                        report.skip(format!("{dtype} {shape} {name}: {reason}"))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A routine that the device has.
enum Implementation {
    Tiles,
    #[cfg(all(feature = "cuda", unix))]
    Cudnn(std::sync::Arc<Vendor>, Option<Sums>),
}

impl Implementation {
    /// The requested ones with their names, or those that the device has.
    fn all(args: &Args, client: &Client) -> Result<Vec<(&'static str, Self)>, Failure> {
        let new = |routine: Routine| {
            let name = match routine {
                Routine::Tiles => "tiles",
                Routine::Cudnn => "cudnn",
                Routine::CudnnAtomic => "cudnn-atomic",
            };
            let refused = |reason| Failure::User(format!("no attention by {name}: {reason}"));
            Ok((name, Self::new(routine, client).map_err(refused)?))
        };
        if args.routines.is_empty() {
            let all = [Routine::Cudnn, Routine::CudnnAtomic, Routine::Tiles];
            return Ok(all
                .into_iter()
                .filter_map(|routine| new(routine).ok())
                .collect());
        }
        args.routines.iter().map(|&routine| new(routine)).collect()
    }

    fn new(routine: Routine, client: &Client) -> Result<Self, String> {
        match routine {
            Routine::Tiles => Ok(Self::Tiles),
            #[cfg(all(feature = "cuda", unix))]
            Routine::Cudnn => Ok(Self::Cudnn(Vendor::of(client)?, None)),
            #[cfg(all(feature = "cuda", unix))]
            Routine::CudnnAtomic => Ok(Self::Cudnn(Vendor::of(client)?, Some(Sums::Atomic))),
            #[cfg(not(all(feature = "cuda", unix)))]
            Routine::Cudnn | Routine::CudnnAtomic => {
                let _ = client;
                Err("this build is without it".into())
            }
        }
    }

    /// The results for a case.
    fn check(&self, case: &Case, client: &Client, dtype: Dtype) -> Result<Outcome, String> {
        match self {
            Self::Tiles => case
                .gpu(client, dtype, None)
                .map_err(|error| error.to_string()),
            #[cfg(all(feature = "cuda", unix))]
            Self::Cudnn(_, sums) => case.vendor(client, dtype, *sums, Layout::Separate),
        }
    }

    fn forward(
        &self,
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        args: &Forward,
    ) -> Result<(), String> {
        match self {
            Self::Tiles => {
                forward(client, problem, dtype, args, None).map_err(|error| error.to_string())
            }
            #[cfg(all(feature = "cuda", unix))]
            Self::Cudnn(vendor, _) => {
                vendor.forward(client, problem, dtype, args, Layout::Separate)
            }
        }
    }

    fn backward(
        &self,
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        args: &Backward,
    ) -> Result<(), String> {
        match self {
            Self::Tiles => {
                backward(client, problem, dtype, args, None).map_err(|error| error.to_string())
            }
            #[cfg(all(feature = "cuda", unix))]
            Self::Cudnn(vendor, sums) => {
                vendor.backward(client, problem, dtype, args, *sums, Layout::Separate)
            }
        }
    }
}

/// Device seconds of a forward and a backward pass, or the reason why the routine does not take the problem.
fn times<E: Element>(
    report: &Report,
    client: &Client,
    storage: Storage,
    (shape, full): (AttentionShape, bool),
    name: &str,
    routine: &Implementation,
) -> Result<Result<[Timing; 2], String>, Failure> {
    let (case, dtype) = (short::<E>(shape, full), dtype_of(storage));
    match routine.check(&case, client, dtype) {
        Ok(found) => check::<E>(&case, &found, name)?,
        Err(reason) => return Ok(Err(reason)),
    }
    let problem = shape.problem(full);
    let (queries, keys) = (shape.shape.query_elements(), shape.shape.key_elements());
    let some = |elements: usize| noise(client, dtype, elements);
    let (q, k, v) = (some(queries), some(keys), some(keys));
    let (o, lse) = (some(queries), noise(client, Dtype::F32, shape.shape.rows()));
    let there = Forward {
        q: q.clone(),
        k: k.clone(),
        v: v.clone(),
        reset: None,
        o: o.clone(),
        lse: lse.clone(),
    };
    let there = || routine.forward(client, &problem, dtype, &there);
    if let Err(reason) = there() {
        return Ok(Err(reason));
    }
    let first = report.device_time(client, 0.3, there)?;
    let back = Backward {
        q,
        k,
        v,
        reset: None,
        o,
        lse,
        d_o: some(queries),
        d_q: some(queries),
        d_k: some(keys),
        d_v: some(keys),
    };
    let back = || routine.backward(client, &problem, dtype, &back);
    if let Err(reason) = back() {
        return Ok(Err(reason));
    }
    Ok(Ok([first, report.device_time(client, 0.3, back)?]))
}
