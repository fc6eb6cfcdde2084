//! On a GPU, timed by the device's own clock around series of launches.

use std::time::Duration;

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::attention::gpu::{Backward, Forward, backward, forward};
use riverrun_kernels::gpu::Dtype;

use super::{Table, right, shapes, short};
use crate::args::{AttentionShape, BenchAttentionArgs, Storage};
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
    for (storage, dtype) in asked.into_iter().zip(dtypes) {
        table.begin(storage, setup)?;
        for shape in shapes(args, &SHAPES) {
            let times = match dtype {
                Dtype::F32 => times::<f32>(args, client, dtype, shape),
                Dtype::F16 => times::<f16>(args, client, dtype, shape),
                Dtype::Bf16 => times::<bf16>(args, client, dtype, shape),
            };
            table.add(shape, storage, "tiles", times?)?;
        }
    }
    Ok(())
}

/// Device seconds of a forward and a backward pass.
fn times<E: Element>(
    args: &BenchAttentionArgs,
    client: &Client,
    dtype: Dtype,
    shape: AttentionShape,
) -> Result<[Timing; 2], Failure> {
    let user = |error: riverrun_kernels::Error| Failure::User(error.to_string());
    let case = short::<E>(shape, args.full);
    let found = case.gpu(client, dtype, None).map_err(user)?;
    right::<E>(&case, &found, "tiles")?;

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
    forward(client, &problem, dtype, &there, None).map_err(user)?;
    let first = device_time(client, budget, || {
        forward(client, &problem, dtype, &there, None).expect("worked before");
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
    backward(client, &problem, dtype, &back, None).map_err(user)?;
    let second = device_time(client, budget, || {
        backward(client, &problem, dtype, &back, None).expect("worked before");
    });
    Ok([first, second])
}
