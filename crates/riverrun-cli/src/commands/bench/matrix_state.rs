//! `riverrun bench matrix-state`: recurrences with a matrix for a state, forward and backward. Every form is checked before it is
//! timed.

use std::str::FromStr;

use riverrun_kernels::matrix_state::cpu::{backward, forward};
use riverrun_kernels::matrix_state::{Erase, Gate, Gradients, Inputs, Problem, Shape};
use riverrun_testkit::matrix_state::{Form, Options, States};
use riverrun_testkit::{Case, Storage};

use super::Grid;
use super::cpu::noise;
use super::report::{Report, bug, right};
use super::row::Row;
use super::timing::Timing;
use crate::failure::Failure;

/// The forms by the name of a model that has them.
const FORMS: [(&str, Gate, Erase); 7] = [
    ("linear", Gate::None, Erase::None),
    ("mamba2", Gate::Head, Erase::None),
    ("gla", Gate::Row, Erase::None),
    ("delta", Gate::None, Erase::Key),
    ("gdn", Gate::Head, Erase::Key),
    ("kda", Gate::Row, Erase::Key),
    ("rwkv7", Gate::Row, Erase::Separate),
];

const CPU: [&str; 3] = [
    "gdn:1x1024x8/8x128x128",
    "mamba2:1x1024x8/8x128x64",
    "rwkv7:1x1024x8/8x64x64",
];

/// A form and its sizes.
#[derive(Debug, Clone)]
struct Problems {
    name: &'static str,
    problem: Problem,
}

impl FromStr for Problems {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let wrong = || format!("`{word}` is not FORM:BxTxH/JxKxV");
        let (form, sizes) = word.split_once(':').ok_or_else(wrong)?;
        let known = FORMS.iter().find(|(name, ..)| *name == form);
        let &(name, gate, erase) = known.ok_or_else(|| {
            let names = FORMS.map(|(name, ..)| name);
            format!("`{form}` is none of {}", names.join(", "))
        })?;
        let sizes: Result<Vec<usize>, _> = sizes.split(['x', '/']).map(str::parse).collect();
        let sizes: [usize; 6] = sizes
            .ok()
            .and_then(|n| n.try_into().ok())
            .ok_or_else(wrong)?;
        let [batch, steps, heads, key_heads, key, value] = sizes;
        let problem = Problem {
            shape: Shape {
                batch,
                steps,
                key_heads,
                heads,
                key,
                value,
            },
            gate,
            erase,
            bonus: false,
        };
        problem
            .check(&problem.lengths())
            .map_err(|error| error.to_string())?;
        Ok(Self { name, problem })
    }
}

/// Options of `riverrun bench matrix-state`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are FORM:BxTxH/JxKxV: H heads of values and of the state, J of queries and keys, states of K x V.\n\
    Forms: linear, mamba2, gla, delta, gdn, kda, rwkv7.\n\
    Example:\n  riverrun bench matrix-state --device cuda:0 --dtypes bf16 --shapes gdn:1x8192x32/16x128x128"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Problems>,
}

/// The default problems.
fn known(words: &[&str]) -> Vec<Problems> {
    let parsed = words.iter().map(|word| word.parse());
    parsed
        .collect::<Result<_, _>>()
        .expect("words of this file")
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        return gpu::run(args, &client, report);
    }
    report.f32_on_cpu(&args.grid.dtypes)?;
    let problems = args.grid.or(&known(&CPU));
    for Problems { name, problem } in &problems {
        report.fits_memory(*name, 8 * bytes(problem, 4, true))?;
    }
    report.measure_copy()?;
    for problem in problems {
        let case = case(&problem.problem, 37).rounded::<f32>();
        let found = case.cpu::<f32>().map_err(bug)?;
        right(problem.name, &case.compared::<f32>(&found))?;
        let times = times(report, &problem.problem)?;
        add(report, &problem, Storage::F32, "cpu", times)?;
    }
    Ok(())
}

/// A short problem of the same form and sizes of a head.
fn case(problem: &Problem, steps: usize) -> States {
    let shape = problem.shape;
    let form = Form {
        gate: problem.gate,
        erase: problem.erase,
        bonus: problem.bonus,
    };
    let options = Options {
        initial: true,
        reset: true,
        d_last: true,
        correlated: false,
        weak: false,
    };
    let sizes = [1, steps, 1, shape.group(), shape.key, shape.value];
    States::random(sizes, form, options, 3)
}

/// The inputs and outputs of a pass, once; backward, the inputs, their gradients and that of the output.
fn bytes(problem: &Problem, size: usize, backward: bool) -> usize {
    let lengths = problem.lengths();
    let given = [lengths.g, lengths.beta, lengths.erase, lengths.write];
    let inputs: usize = lengths.q + lengths.k + lengths.v + given.iter().flatten().sum::<usize>();
    match backward {
        false => (inputs + lengths.v) * size,
        true => (2 * inputs + lengths.v) * size,
    }
}

fn add(
    report: &mut Report,
    problem: &Problems,
    storage: Storage,
    routine: &str,
    times: [Timing; 2],
) -> Result<(), Failure> {
    let shape = problem.problem.shape;
    let row = Row::new()
        .wide("form", 8, problem.name)
        .text("dtype", storage.name())
        .counts(
            ["batch", "steps", "heads", "key_heads", "key", "value"],
            [
                shape.batch,
                shape.steps,
                shape.heads,
                shape.key_heads,
                shape.key,
                shape.value,
            ],
        )
        .wide("routine", 8, routine);
    let size = storage.dtype().size();
    let bytes = |backward| bytes(&problem.problem, size, backward);
    report.add_passes(row, times, [bytes(false), bytes(true)])
}

fn times(report: &Report, problem: &Problem) -> Result<[Timing; 2], Failure> {
    let lengths = problem.lengths();
    let scaled = |n: usize, low: f32, high: f32| -> Vec<f32> {
        noise(n).map(|x| low + (high - low) * x).collect()
    };
    let unit = (3.0 / problem.shape.key as f32).sqrt();
    let (q, k) = (
        scaled(lengths.q, -unit, unit),
        scaled(lengths.k, -unit, unit),
    );
    let v = scaled(lengths.v, -1.0, 1.0);
    let g = lengths.g.map(|n| scaled(n, -0.1, 0.0));
    let beta = lengths.beta.map(|n| scaled(n, 0.0, 1.0));
    let erase = lengths.erase.map(|n| scaled(n, -unit, unit));
    let write = erase
        .as_ref()
        .map(|a| a.iter().map(|a| -0.5 * a).collect::<Vec<f32>>());
    let inputs = Inputs {
        q: &q[..],
        k: &k[..],
        v: &v[..],
        g: g.as_deref(),
        beta: beta.as_deref(),
        erase: erase.as_deref(),
        write: write.as_deref().filter(|_| lengths.write.is_some()),
        bonus: None,
        initial: None,
        reset: None,
    };
    let zeros = |n: usize| vec![0.0_f32; n];
    let (mut o, mut last) = (zeros(lengths.v), zeros(problem.shape.state()));
    let there = report.time_call(0.4, || forward(problem, &inputs, &mut o, &mut last))?;
    let mut d = Gradients {
        q: zeros(lengths.q),
        k: zeros(lengths.k),
        v: zeros(lengths.v),
        g: lengths.g.map(zeros),
        beta: lengths.beta.map(zeros),
        erase: lengths.erase.map(zeros),
        write: lengths.write.map(zeros),
        bonus: None,
        initial: last,
    };
    let back = report.time_call(0.4, || {
        let to = Gradients {
            q: &mut d.q[..],
            k: &mut d.k[..],
            v: &mut d.v[..],
            g: d.g.as_deref_mut(),
            beta: d.beta.as_deref_mut(),
            erase: d.erase.as_deref_mut(),
            write: d.write.as_deref_mut(),
            bonus: None,
            initial: &mut d.initial[..],
        };
        backward(problem, &inputs, &v, None, to)
    })?;
    Ok([there, back])
}

#[cfg(feature = "gpu")]
mod gpu {
    use cubecl::client::Client;
    use cubecl::server::Handle;
    use riverrun_kernels::Element;
    use riverrun_kernels::gpu::Dtype;
    use riverrun_kernels::matrix_state::gpu::{Buffers, backward, forward, tensor_cores};
    use riverrun_testkit::by_storage;

    use super::*;
    use crate::commands::bench::gpu::{dtype_of, noise_within};
    use crate::commands::bench::report::user;

    const SHAPES: [&str; 6] = [
        "gdn:1x8192x32/16x128x128",
        "gdn:1x32768x8/2x128x128",
        "gdn:4x8192x32/16x128x128",
        "kda:2x8192x64/64x128x128",
        "mamba2:4x8192x64/64x128x64",
        "rwkv7:4x4096x32/32x64x64",
    ];

    pub fn run(args: &Args, client: &Client, report: &mut Report) -> Result<(), Failure> {
        let dtypes = report.dtypes(&args.grid.dtypes, &Storage::ALL)?;
        report.measure_copy()?;
        for problem in args.grid.or(&known(&SHAPES)) {
            for &storage in &dtypes {
                by_storage!(storage, check(client, &problem, storage))?;
                let times = times(report, client, &problem.problem, dtype_of(storage))?;
                let tensor = tensor_cores(client, &problem.problem, dtype_of(storage));
                let routine = if tensor { "tensor" } else { "gpu" };
                add(report, &problem, storage, routine, times)?;
            }
        }
        Ok(())
    }

    fn check<E: Element>(
        client: &Client,
        problem: &Problems,
        storage: Storage,
    ) -> Result<(), Failure> {
        let dtype = dtype_of(storage);
        let mut cases = vec![case(&problem.problem, 37)];
        if tensor_cores(client, &problem.problem, dtype) {
            let mut whole = case(&problem.problem, 130);
            whole.inputs.reset = None;
            whole.coarse = whole.on_tensor_cores(client, dtype);
            cases.push(whole);
        }
        for case in cases {
            let case = case.in_chunks(true).rounded::<E>();
            let found = case.gpu(client, dtype).map_err(user)?;
            right(
                format!("{} {}", problem.name, E::NAME),
                &case.compared::<E>(&found),
            )?;
        }
        Ok(())
    }

    fn times(
        report: &Report,
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
    ) -> Result<[Timing; 2], Failure> {
        let lengths = problem.lengths();
        let scaled = |n: usize, low: f32, high: f32| noise_within(client, dtype, n, [low, high]);
        let unit = (3.0 / problem.shape.key as f32).sqrt();
        let some = |n: Option<usize>, low: f32, high: f32| n.map(|n| scaled(n, low, high));
        let inputs = Buffers {
            q: scaled(lengths.q, -unit, unit),
            k: scaled(lengths.k, -unit, unit),
            v: scaled(lengths.v, -1.0, 1.0),
            g: some(lengths.g, -0.1, 0.0),
            beta: some(lengths.beta, 0.0, 1.0),
            erase: some(lengths.erase, -unit, unit),
            write: some(lengths.write, 0.5 * unit, -0.5 * unit),
            bonus: None,
            initial: None,
            reset: None,
        };
        let new = |n: usize| client.empty(n.max(1) * dtype.size());
        let state = || client.empty(problem.shape.state() * 4);
        let (o, last) = (new(lengths.v), state());
        let there = report.device_time(client, 0.04, || {
            forward(client, problem, dtype, &inputs, &o, &last)
        })?;
        let out: Gradients<Handle, Handle> = Gradients {
            q: new(lengths.q),
            k: new(lengths.k),
            v: new(lengths.v),
            g: lengths.g.map(new),
            beta: lengths.beta.map(new),
            erase: lengths.erase.map(new),
            write: lengths.write.map(new),
            bonus: None,
            initial: state(),
        };
        let d_o = inputs.v.clone();
        let back = report.device_time(client, 0.04, || {
            backward(client, problem, dtype, &inputs, &d_o, None, &out)
        })?;
        Ok([there, back])
    }
}
