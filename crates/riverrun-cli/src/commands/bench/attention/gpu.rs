//! On a GPU, timed by the device's own clock around series of launches.

use std::time::Duration;

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::attention::Problem;
use riverrun_kernels::attention::gpu::{Backward, Forward, backward, forward};
#[cfg(all(feature = "cuda", unix))]
use riverrun_kernels::attention::vendor::{Layout, Sums, Vendor};
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::attention::check::{Case, Outcome};

use super::{Table, right, shapes, short};
use crate::args::{AttentionRoutine, AttentionShape, BenchAttentionArgs, Storage};
use crate::commands::bench::device::{device_time, noise};
use crate::commands::bench::setup::{Setup, gpu_dtypes};
use crate::commands::bench::stats::Timing;
use crate::failure::Failure;

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

pub(super) fn run(
    args: &BenchAttentionArgs,
    client: &Client,
    setup: &Setup,
    table: &mut Table,
) -> Result<(), Failure> {
    let asked = match args.dtypes.is_empty() {
        true if Dtype::Bf16.supported(client) => vec![Storage::Bf16],
        true => vec![Storage::F32],
        false => args.dtypes.clone(),
    };
    let dtypes = gpu_dtypes(&asked, client)?;
    let routines = Routine::all(args, client)?;
    for (storage, dtype) in asked.into_iter().zip(dtypes) {
        table.begin(storage, setup)?;
        for shape in shapes(args, &SHAPES) {
            for routine in &routines {
                let times = match dtype {
                    Dtype::F32 => times::<f32>(args, client, dtype, shape, routine),
                    Dtype::F16 => times::<f16>(args, client, dtype, shape, routine),
                    Dtype::Bf16 => times::<bf16>(args, client, dtype, shape, routine),
                };
                match times? {
                    Ok(times) => table.add(shape, storage, routine.name(), times)?,
                    Err(reason) => table.skip(shape, storage, routine.name(), reason)?,
                }
            }
        }
    }
    Ok(())
}

/// The implementations to time.
enum Routine {
    Tiles,
    #[cfg(all(feature = "cuda", unix))]
    Cudnn(std::sync::Arc<Vendor>, Option<Sums>),
}

impl Routine {
    /// The requested ones, or those that the device has.
    fn all(args: &BenchAttentionArgs, client: &Client) -> Result<Vec<Self>, Failure> {
        if args.routines.is_empty() {
            let all = [
                AttentionRoutine::Cudnn,
                AttentionRoutine::CudnnAtomic,
                AttentionRoutine::Tiles,
            ];
            let there = all
                .into_iter()
                .filter_map(|name| Self::new(name, client).ok());
            return Ok(there.collect());
        }
        let new = |&routine: &AttentionRoutine| {
            let refused = |reason: String| {
                Failure::User(format!("no attention by {}: {reason}", routine.name()))
            };
            Self::new(routine, client).map_err(refused)
        };
        args.routines.iter().map(new).collect()
    }

    fn new(routine: AttentionRoutine, client: &Client) -> Result<Self, String> {
        match routine {
            AttentionRoutine::Tiles => Ok(Self::Tiles),
            #[cfg(all(feature = "cuda", unix))]
            AttentionRoutine::Cudnn => Ok(Self::Cudnn(Vendor::of(client)?, None)),
            #[cfg(all(feature = "cuda", unix))]
            AttentionRoutine::CudnnAtomic => {
                Ok(Self::Cudnn(Vendor::of(client)?, Some(Sums::Atomic)))
            }
            #[cfg(not(all(feature = "cuda", unix)))]
            AttentionRoutine::Cudnn | AttentionRoutine::CudnnAtomic => {
                let _ = client;
                Err("this build is without it".into())
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Tiles => AttentionRoutine::Tiles.name(),
            #[cfg(all(feature = "cuda", unix))]
            Self::Cudnn(_, None) => AttentionRoutine::Cudnn.name(),
            #[cfg(all(feature = "cuda", unix))]
            Self::Cudnn(_, Some(_)) => AttentionRoutine::CudnnAtomic.name(),
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
    args: &BenchAttentionArgs,
    client: &Client,
    dtype: Dtype,
    shape: AttentionShape,
    routine: &Routine,
) -> Result<Result<[Timing; 2], String>, Failure> {
    let case = short::<E>(shape, args.full);
    match routine.check(&case, client, dtype) {
        Ok(found) => right::<E>(&case, &found, routine.name())?,
        Err(reason) => return Ok(Err(reason)),
    }

    let problem = shape.problem(args.full);
    let budget = Duration::from_secs_f64(args.budget);
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
    if let Err(reason) = routine.forward(client, &problem, dtype, &there) {
        return Ok(Err(reason));
    }
    let first = device_time(client, budget, || {
        let done = routine.forward(client, &problem, dtype, &there);
        done.expect("worked before");
    });
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
    if let Err(reason) = routine.backward(client, &problem, dtype, &back) {
        return Ok(Err(reason));
    }
    let second = device_time(client, budget, || {
        let done = routine.backward(client, &problem, dtype, &back);
        done.expect("worked before");
    });
    Ok(Ok([first, second]))
}
