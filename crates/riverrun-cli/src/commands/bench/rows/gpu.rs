//! On a GPU, timed by the device's own clock around series of launches.

use std::time::Duration;

use cubecl::client::Client;
use cubecl::ir::{ElemType, IntKind};
use half::{bf16, f16};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::norm::{Kind, Spec};
use riverrun_kernels::{Element, cross_entropy, norm};
use riverrun_testkit::Case as _;
use riverrun_testkit::loss::Loss;
use riverrun_testkit::norm::{Norm, Options};

use super::{Form, Operation, add, right, shapes};
use crate::args::BenchRowsArgs;
use crate::commands::bench::bandwidth::Table;
use crate::commands::bench::device::{copy, device_time, noise};
use crate::commands::bench::setup::gpu_dtypes;
use crate::commands::bench::stats::Timing;
use crate::failure::Failure;
use crate::origin::Origin;

const NORMS: &[[usize; 2]] = &[
    [8192, 4096],
    [16_384, 256],
    [65_536, 512],
    [32_768, 1024],
    [8192, 4095],
];
const LOSSES: &[[usize; 2]] = &[
    [262_144, 65],
    [65_536, 1024],
    [8192, 32_000],
    [8192, 50_257],
];

/// A tuning on the command line.
type Numbers = [usize; 4];

fn norm_tuning([bytes, per_thread, cube, cubes]: Numbers) -> norm::gpu::Tuning {
    norm::gpu::Tuning {
        bytes,
        per_thread,
        cube,
        cubes,
    }
}

fn loss_tuning([bytes, ahead, per_thread, units]: Numbers) -> cross_entropy::gpu::Tuning {
    cross_entropy::gpu::Tuning {
        bytes,
        ahead,
        per_thread,
        units,
    }
}

pub(super) fn run(
    args: &BenchRowsArgs,
    operation: Operation,
    client: &Client,
    origin: Origin,
) -> Result<(), Failure> {
    let mut tunings = vec![("default".to_string(), None)];
    for text in &args.tunings {
        let parts: Option<Vec<usize>> = text.split(':').map(|part| part.parse().ok()).collect();
        let numbers: Option<Numbers> = parts.and_then(|parts| parts.try_into().ok());
        match numbers {
            Some(numbers) => tunings.push((text.clone(), Some(numbers))),
            None => return Err(Failure::User(format!("`{text}` is not four numbers"))),
        }
    }
    let default = match operation {
        Operation::Norm => NORMS,
        Operation::Loss => LOSSES,
    };
    let dtypes = gpu_dtypes(&args.dtypes, client)?;
    let mut table = Table::new(&origin, copy(client, &origin))?;
    for shape in shapes(args, default) {
        for &dtype in &dtypes {
            for &form in operation.forms() {
                for (name, tuning) in &tunings {
                    check(client, form, dtype, shape[1], *tuning)?;
                    let times = match form {
                        Form::Norm(kind, residual) => {
                            norms(client, dtype, shape, kind, residual, *tuning)?
                        }
                        Form::Loss => losses(client, dtype, shape, *tuning)?,
                    };
                    for (backward, time) in [false, true].into_iter().zip(times) {
                        let storage = (dtype.name(), dtype.size());
                        add(&mut table, form, backward, storage, shape, name, time)?;
                    }
                }
            }
        }
    }
    table.end(args.common.json.as_deref(), origin)
}

fn user(error: riverrun_kernels::Error) -> Failure {
    Failure::User(error.to_string())
}

/// Checks rows of the same width and tuning, fewer of them.
fn check(
    client: &Client,
    form: Form,
    dtype: Dtype,
    width: usize,
    tuning: Option<Numbers>,
) -> Result<(), Failure> {
    fn of<E: Element>(
        client: &Client,
        form: Form,
        dtype: Dtype,
        width: usize,
        tuning: Option<Numbers>,
    ) -> Result<(), Failure> {
        match form {
            Form::Norm(kind, residual) => {
                let options = Options {
                    residual,
                    ..Options::default()
                };
                let rows = (1 << 18) / width.max(256);
                let case = Norm::random(kind, [rows, width], options, 5);
                let case = case.rounded::<E>();
                let tunings = [tuning.map(norm_tuning); 2];
                let found = case.tuned(client, dtype, tunings).map_err(user)?;
                right(form, E::NAME, &case.compared::<E>(&found))
            }
            Form::Loss => {
                let case = Loss::random([8, width], 5).rounded::<E>();
                let tunings = [tuning.map(loss_tuning); 2];
                let found = case.tuned(client, dtype, tunings).map_err(user)?;
                right(form, E::NAME, &case.compared::<E>(&found))
            }
        }
    }
    match dtype {
        Dtype::F32 => of::<f32>(client, form, dtype, width, tuning),
        Dtype::F16 => of::<f16>(client, form, dtype, width, tuning),
        Dtype::Bf16 => of::<bf16>(client, form, dtype, width, tuning),
    }
}

/// Device seconds of a call, after it has succeeded once.
fn time(
    client: &Client,
    call: impl Fn() -> Result<(), riverrun_kernels::Error> + Send + Sync,
) -> Result<Timing, Failure> {
    call().map_err(user)?;
    Ok(device_time(client, Duration::from_millis(40), || {
        call().expect("worked before");
    }))
}

fn norms(
    client: &Client,
    dtype: Dtype,
    shape: [usize; 2],
    kind: Kind,
    residual: bool,
    tuning: Option<Numbers>,
) -> Result<[Timing; 2], Failure> {
    use norm::gpu::{Backward, Forward, backward, forward};
    let [rows, dim] = shape;
    let some = |n: usize| noise(client, dtype, n);
    let spec = Spec {
        kind,
        epsilon: 1e-5,
    };
    let (x, more, gamma) = (some(rows * dim), some(rows * dim), some(dim));
    let beta = (kind == Kind::Layer).then(|| some(dim));
    let (sum, y) = (some(rows * dim), some(rows * dim));
    let tuning = tuning.map(norm_tuning);
    let args = Forward {
        x: x.clone(),
        residual: residual.then(|| (more.clone(), sum.clone())),
        gamma: gamma.clone(),
        beta: beta.clone(),
        y: y.clone(),
    };
    let there = time(client, || {
        forward(client, &spec, dtype, shape, &args, tuning)
    })?;
    let args = Backward {
        x,
        gamma,
        d_y: more,
        d_sum: residual.then_some(sum),
        d_x: y,
        d_gamma: some(dim),
        d_beta: beta,
    };
    let back = time(client, || {
        backward(client, &spec, dtype, shape, &args, tuning)
    })?;
    Ok([there, back])
}

fn losses(
    client: &Client,
    dtype: Dtype,
    shape: [usize; 2],
    tuning: Option<Numbers>,
) -> Result<[Timing; 2], Failure> {
    use cross_entropy::gpu::{Backward, Forward, backward, forward};
    let [rows, vocab] = shape;
    let targets: Vec<i32> = (0..rows).map(|n| (n * 7 % vocab) as i32).collect();
    let targets = client.create_from_slice(bytemuck::cast_slice(&targets));
    let index = ElemType::Int(IntKind::I32);
    let x = noise(client, dtype, rows * vocab);
    let number = |n: usize| noise(client, Dtype::F32, n);
    let (loss, lse, weight) = (number(1), number(rows), number(1));
    let tuning = tuning.map(loss_tuning);
    let args = Forward {
        x: x.clone(),
        targets: targets.clone(),
        index,
        loss,
        lse: lse.clone(),
        weight: weight.clone(),
    };
    let there = time(client, || forward(client, dtype, shape, &args, tuning))?;
    let args = Backward {
        x,
        targets,
        index,
        lse,
        weight,
        d_loss: number(1),
        d_x: client.empty(rows * vocab * dtype.size()),
    };
    let back = time(client, || backward(client, dtype, shape, &args, tuning))?;
    Ok([there, back])
}
