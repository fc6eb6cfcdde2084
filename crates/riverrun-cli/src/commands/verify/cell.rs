//! GRU, LSTM and Elman: every cell and storage type, forward and every gradient.

use half::{bf16, f16};
use riverrun::device::{self, DeviceInfo};
use riverrun_kernels::Element;
use riverrun_kernels::cell::check::{Case, Options, Results, compare};
use riverrun_kernels::cell::{Cell, Problem, cpu};

use super::table::{Row, Table};
use super::wanted;
use crate::args::VerifyArgs;
use crate::failure::Failure;

/// Checks every cell and storage type: on the CPU its kernels, on a GPU the persistent routine and the layer.
pub(super) fn verify(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = device::client(&info.device) {
        return gpu::verify(args, info, &client, table);
    }
    #[cfg(not(feature = "gpu"))]
    let _ = device::list;
    on_cpu::<f32>(args, info, table)?;
    on_cpu::<f16>(args, info, table)?;
    on_cpu::<bf16>(args, info, table)
}

/// Batch, steps, hidden; that differ in what they exercise.
const SHAPES: [(usize, usize, usize); 6] = [
    (1, 1, 8),
    (1, 40, 64),
    (3, 7, 40),
    (9, 12, 96),
    (17, 9, 128),
    (33, 6, 48),
];
const LONG: [(usize, usize, usize); 3] = [(2, 600, 64), (20, 24, 512), (9, 12, 1024)];

/// Batch, steps, units of a head, heads: on GPUs.
#[cfg(feature = "gpu")]
const HEADS: [(usize, usize, usize, usize); 3] = [(1, 9, 16, 2), (11, 7, 32, 3), (3, 5, 64, 4)];

/// The problems of a cell, of one head each.
fn problems(cell: Cell, long: bool) -> Vec<Problem> {
    let long: &[_] = if long { &LONG } else { &[] };
    let shapes = SHAPES.iter().chain(long);
    shapes
        .map(|&(batch, steps, hidden)| Problem::new(cell, batch, steps, hidden))
        .collect()
}

/// Those of several heads.
#[cfg(feature = "gpu")]
fn with_heads(cell: Cell) -> impl Iterator<Item = Problem> {
    HEADS.into_iter().map(move |(batch, steps, own, heads)| {
        Problem::new(cell, batch, steps, own * heads).with_heads(heads)
    })
}

/// Runs a case of each problem; the worst verdict is the row.
fn check<E: Element>(
    problems: impl IntoIterator<Item = Problem>,
    run: impl Fn(&Case<E>) -> Result<Results<E>, riverrun_kernels::Error>,
) -> Result<Row, Failure> {
    let mut row = Row::default();
    for (n, problem) in problems.into_iter().enumerate() {
        let problem = problem.reversed(n % 2 == 1);
        let options = if n % 3 == 0 {
            Options::NONE
        } else {
            Options::ALL
        };
        let case = Case::<E>::random(problem, options, 5 + n as u64);
        let bug = |error: riverrun_kernels::Error| Failure::Bug(error.to_string());
        let found = run(&case).map_err(bug)?;
        let again = run(&case).map_err(bug)?;
        let verdicts = compare(&case, &found).map_err(bug)?;
        row.case(&verdicts, found.bits() == again.bits());
    }
    Ok(row)
}

fn on_cpu<E: Element>(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    if !wanted(args, E::NAME) {
        return Ok(());
    }
    for cell in Cell::all() {
        let row = check::<E>(problems(cell, args.long), |case| {
            Ok(case.run(cpu::Routine::default()))
        })?;
        table.row(&info.spec, cell.name(), E::NAME, "cpu", row)?;
    }
    Ok(())
}

#[cfg(feature = "gpu")]
mod gpu {
    use burn::tensor::{DType, Device, Tensor, TensorData};
    use bytemuck::Pod;
    use cubecl::client::Client;
    use riverrun::ops::{CellRun, CellWeights, cell_layer};
    use riverrun_kernels::cell::gpu::{handover_fault, missing};
    use riverrun_kernels::gpu::Dtype;

    use super::*;

    pub(super) fn verify(
        args: &VerifyArgs,
        info: &DeviceInfo,
        client: &Client,
        table: &mut Table,
    ) -> Result<(), Failure> {
        for dtype in Dtype::ALL {
            if !wanted(args, dtype.name()) {
                continue;
            }
            match dtype {
                Dtype::F32 => rows::<f32>(args, info, client, dtype, table)?,
                Dtype::F16 => rows::<f16>(args, info, client, dtype, table)?,
                Dtype::Bf16 => rows::<bf16>(args, info, client, dtype, table)?,
            }
        }
        if handover_fault(client) {
            return Err(Failure::Bug(format!(
                "{}: a wait between cubes gave up",
                info.spec
            )));
        }
        Ok(())
    }

    fn rows<E: Element + Pod>(
        args: &VerifyArgs,
        info: &DeviceInfo,
        client: &Client,
        dtype: Dtype,
        table: &mut Table,
    ) -> Result<(), Failure> {
        if !dtype.supported(client) {
            let reason = "the device does not support this storage type";
            return table.skip(&info.spec, dtype.name(), reason);
        }
        for cell in Cell::all() {
            match missing(client, &Problem::new(cell, 1, 1, 8), dtype) {
                Some(reason) => {
                    let what = format!("{} {} persistent", cell.name(), E::NAME);
                    table.skip(&info.spec, &what, &reason)?;
                }
                None => {
                    let problems = problems(cell, args.long).into_iter();
                    let row = check::<E>(problems.chain(with_heads(cell)), |case| {
                        case.gpu(client, dtype, None)
                    })?;
                    table.row(&info.spec, cell.name(), E::NAME, "persistent", row)?;
                }
            }
            let problems = problems(cell, false).into_iter().chain(with_heads(cell));
            let row = check::<E>(problems, |case| Ok(layer(case, &info.device, dtype)))?;
            table.row(&info.spec, cell.name(), E::NAME, "layer", row)?;
        }
        Ok(())
    }

    /// By the layer's operation and its differentiation, whatever runs it on this device. The input weights are the
    /// identity, so that the input is `xg` and its gradient that of `xg`.
    fn layer<E: Element + Pod>(case: &Case<E>, device: &Device, dtype: Dtype) -> Results<E> {
        let problem = case.problem;
        let (batch, steps, hidden) = (problem.batch, problem.steps, problem.hidden);
        let width = problem.gate_width();
        let device = device.clone().autodiff();
        let dtype = match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::Bf16 => DType::BF16,
        };
        let tensor = |numbers: Vec<f64>| {
            let numbers: Vec<f32> = numbers.into_iter().map(|x| x as f32).collect();
            let length = numbers.len();
            Tensor::<1>::from_data(TensorData::new(numbers, [length]), &device).cast(dtype)
        };
        let wide = |x: &[E]| tensor(x.iter().map(|x| x.to_f64()).collect());
        let state = |x: &Option<Vec<E>>| {
            x.as_ref()
                .map(|x| wide(x).reshape([batch, hidden]).require_grad())
        };
        let identity = (0..width * width).map(|i| f64::from(u8::from(i % (width + 1) == 0)));
        let x = wide(&case.xg).reshape([batch, steps, width]).require_grad();
        let weights = CellWeights {
            weight_ih: tensor(identity.collect()).reshape([width, width]),
            weight_hh: wide(&case.u)
                .reshape([width, problem.depth()])
                .require_grad(),
            bias_ih: None,
            bias_hh: case.bias.as_ref().map(|bias| wide(bias).require_grad()),
        };
        let (u, bias) = (weights.weight_hh.clone(), weights.bias_hh.clone());
        let (h0, c0) = (state(&case.h0), state(&case.c0));
        let run = CellRun {
            h0: h0.clone(),
            c0: c0.clone(),
            reset: case.reset.as_ref().map(|reset| {
                let numbers = reset.iter().map(|&x| f64::from(u8::from(x))).collect();
                tensor(numbers).reshape([batch, steps]).greater_elem(0.5)
            }),
            reverse: problem.reverse,
        };
        let output = cell_layer(x.clone(), weights, problem.cell, run);
        let mut loss = output.h.clone().sum() * 0.0;
        if let Some(d) = &case.d_h {
            loss = loss + (output.h.clone() * wide(d).reshape([batch, steps, hidden])).sum();
        }
        if let Some(d) = &case.d_h_last {
            loss = loss + (output.h_last.clone() * wide(d).reshape([batch, hidden])).sum();
        }
        if let (Some(d), Some(c)) = (&case.d_c_last, &output.c_last) {
            loss = loss + (c.clone() * wide(d).reshape([batch, hidden])).sum();
        }
        let gradients = loss.backward();
        let numbers = |data: TensorData| data.iter::<f64>().map(E::from_f64).collect::<Vec<E>>();
        macro_rules! gradient {
            ($tensor:expr) => {
                $tensor
                    .as_ref()
                    .and_then(|tensor| tensor.grad(&gradients))
                    .map(|gradient| numbers(gradient.into_data()))
            };
        }
        // What was not given has no gradient to compare.
        let truth = case.to::<f64>().oracle().expect("a problem that fits");
        let rounded = |x: Vec<f64>| x.into_iter().map(E::from_f64).collect::<Vec<E>>();
        Results {
            h: numbers(output.h.into_data()),
            h_last: numbers(output.h_last.into_data()),
            c_last: output.c_last.map_or(Vec::new(), |c| numbers(c.into_data())),
            d_xg: gradient!(Some(&x)).expect("a gradient of the input"),
            d_u: gradient!(Some(&u)).expect("a gradient of the weights"),
            d_bias: gradient!(bias).unwrap_or_else(|| rounded(truth.d_bias)),
            d_h0: gradient!(h0).unwrap_or_else(|| rounded(truth.d_h0)),
            d_c0: gradient!(c0).unwrap_or_else(|| rounded(truth.d_c0)),
        }
    }
}
