//! `riverrun bench rollout`: an ensemble's forecast, beside the same formulas as a plain scalar program in the same run, and the
//! memory that it takes.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::{Problem, memory, oracle};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::args::BenchRolloutArgs;
use crate::failure::Failure;
use crate::origin::Origin;

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row {
    members: usize,
    steps: usize,
    hidden: usize,
    stochastic: usize,
    features: usize,
    routine: &'static str,
    /// The time of a call.
    time: Timing,
    /// The scalar program on one core of the same machine.
    scalar: Option<Timing>,
    /// The formulas' multiplications and additions per second.
    gflops: f64,
    /// Steps of members per second.
    steps_per_second: f64,
    /// Bytes a second, the weights read at every step, and their part of the copy bandwidth: above 1 where the weights stay in
    /// registers or a cache.
    gb_per_s: f64,
    of_copy: f64,
    /// Bytes of weights and heads, and of the other arrays of a rollout, by formula.
    ensemble_bytes: usize,
    rollout_bytes: usize,
    /// Bytes allocated for both.
    allocated_bytes: usize,
}

/// Bytes of one size.
#[derive(Debug, Serialize)]
struct Size {
    hidden: usize,
    cell_bytes: usize,
    shared_bytes: usize,
    ensembles: Vec<(usize, usize)>,
    /// Seconds to send a cell's weights to the device.
    upload: Option<Timing>,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
    rows: Vec<Row>,
    sizes: Vec<Size>,
    refused: &'a [String],
}

fn bug(error: riverrun_kernels::Error) -> Failure {
    Failure::Bug(error.to_string())
}

fn seconds(mut call: impl FnMut()) -> Timing {
    repeat(Duration::from_millis(400), || {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64()
    })
}

/// Measures and prints.
pub fn run(args: &BenchRolloutArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let copy = setup.copy()?;
    let mut out = stdout();
    writeln!(
        out,
        "{}: {}; copy {:.0} GB/s; GB/s: with the weights read at every step",
        setup.origin.device,
        setup.origin.name,
        copy / 1e9
    )?;
    writeln!(
        out,
        "{:>7} {:>5} {:>6}  {:<7} {:>10} {:>6}  {:>10} {:>7}  {:>8} {:>9} {:>8} {:>7} {:>10} {:>10}",
        "members",
        "steps",
        "hidden",
        "routine",
        "ms",
        "±",
        "scalar ms",
        "times",
        "GFLOP/s",
        "M steps/s",
        "GB/s",
        "of copy",
        "MB",
        "allocated"
    )?;
    let mut shapes: Vec<[usize; 2]> = Vec::new();
    // Every horizon with the first ensemble, then every other ensemble at the middle horizon.
    let first = args.members.first().copied().unwrap_or(5);
    shapes.extend(args.steps.iter().map(|steps| [first, *steps]));
    let middle = args.steps.get(args.steps.len() / 2).copied().unwrap_or(50);
    shapes.extend(
        args.members
            .iter()
            .skip(1)
            .map(|members| [*members, middle]),
    );
    let mut refused = Refused::default();
    let mut rows = Vec::new();
    for [members, steps] in shapes {
        let problem = Problem::new(members, args.hidden, steps)
            .with_stochastic(args.stochastic.unwrap_or(args.hidden))
            .with_features(args.features);
        problem
            .check()
            .map_err(|error| Failure::User(error.to_string()))?;
        let case = Case::random(problem, 1);
        let (time, routine, allocated) = measure(&setup, &case)?;
        let scalar = (members <= 16).then(|| {
            seconds(|| {
                oracle::run(&problem, case.arguments()).expect("checked before");
            })
        });
        let name = || format!("{members} x {steps}");
        if !refused.admits(name, &time) {
            continue;
        }
        let (ensemble, rollout) = (memory::ensemble(&problem), memory::rollout(&problem));
        if members > 0 && allocated != ensemble + rollout {
            return Err(Failure::Bug(format!(
                "{problem:?} takes {allocated} bytes, by the formula {}",
                ensemble + rollout
            )));
        }
        let steps_per_second = (members * steps) as f64 / time.median;
        let rate = (steps * ensemble + rollout) as f64 / time.median;
        let gflops = problem.flops() as f64 / time.median / 1e9;
        let text = |x: Option<f64>, digits: usize| match x {
            Some(x) => format!("{x:.digits$}"),
            None => "-".into(),
        };
        writeln!(
            out,
            "{members:>7} {steps:>5} {:>6}  {routine:<7} {:>10.4} {:>5.1}%  {:>10} {:>7}  {gflops:>8.1} {:>9.3} {:>8.0} {:>6.1}% {:>10.3} {:>10.3}",
            args.hidden,
            time.median * 1e3,
            time.spread() * 100.0,
            text(scalar.map(|scalar| scalar.median * 1e3), 3),
            text(scalar.map(|scalar| scalar.median / time.median), 1),
            steps_per_second / 1e6,
            rate / 1e9,
            rate / copy * 100.0,
            (ensemble + rollout) as f64 / 1e6,
            allocated as f64 / 1e6
        )?;
        rows.push(Row {
            members,
            steps,
            hidden: args.hidden,
            stochastic: problem.stochastic,
            features: args.features,
            routine,
            time,
            scalar,
            gflops,
            steps_per_second,
            gb_per_s: rate / 1e9,
            of_copy: rate / copy,
            ensemble_bytes: ensemble,
            rollout_bytes: rollout,
            allocated_bytes: allocated,
        });
    }
    let sizes = sizes(&setup, args.features, &mut out)?;
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
        copy_gb_per_s: copy / 1e9,
        rows,
        sizes,
        refused: refused.names(),
    };
    super::write_json(path, &report)
}

/// Memory of a cell by its hidden units, and of ensembles of it.
fn sizes(setup: &Setup, features: usize, out: &mut impl Write) -> Result<Vec<Size>, Failure> {
    writeln!(
        out,
        "{:>6} {:>10} {:>10}  {:>10}  ensemble MB of 1, 3, 5, 7, 10 members (S = H)",
        "hidden", "cell MB", "shared kB", "upload ms"
    )?;
    let mut sizes = Vec::new();
    for hidden in [64, 128, 256, 512, 1024] {
        let ensembles: Vec<(usize, usize)> = [1, 3, 5, 7, 10]
            .into_iter()
            .map(|members| {
                let problem = Problem::new(members, hidden, 50)
                    .with_stochastic(hidden)
                    .with_features(features);
                (members, memory::ensemble(&problem))
            })
            .collect();
        let cell = memory::cell(hidden, features);
        let upload = upload(setup, cell)?;
        let listed: Vec<String> = ensembles
            .iter()
            .map(|(_, bytes)| format!("{:.2}", *bytes as f64 / 1e6))
            .collect();
        writeln!(
            out,
            "{hidden:>6} {:>10.3} {:>10.2}  {:>10}  {}",
            cell as f64 / 1e6,
            memory::shared(hidden) as f64 / 1e3,
            upload.map_or("-".into(), |time| format!("{:.3}", time.median * 1e3)),
            listed.join(" ")
        )?;
        sizes.push(Size {
            hidden,
            cell_bytes: cell,
            shared_bytes: memory::shared(hidden),
            ensembles,
            upload,
        });
    }
    Ok(sizes)
}

#[cfg(feature = "gpu")]
fn upload(setup: &Setup, bytes: usize) -> Result<Option<Timing>, Failure> {
    use cubecl::future::block_on;
    let Some(client) = setup.client()? else {
        return Ok(None);
    };
    let data = vec![0_u8; bytes];
    Ok(Some(seconds(|| {
        let handle = client.create_from_slice(&data);
        block_on(client.sync()).expect("a device that answers");
        drop(handle);
    })))
}

#[cfg(not(feature = "gpu"))]
fn upload(_: &Setup, _: usize) -> Result<Option<Timing>, Failure> {
    Ok(None)
}

/// The time of a call, its routine, and the bytes of its arrays. A wrong result is not timed.
fn measure(setup: &Setup, case: &Case) -> Result<(Timing, &'static str, usize), Failure> {
    let right = |found: &riverrun_kernels::rollout::Outcome<f32>| -> Result<(), Failure> {
        for comparison in case.compare(found).map_err(bug)? {
            if !comparison.passes() {
                let problem = case.problem;
                return Err(Failure::Bug(format!(
                    "{problem:?} is wrong: {comparison:?}"
                )));
            }
        }
        Ok(())
    };
    #[cfg(feature = "gpu")]
    if let Some(client) = setup.client()? {
        use riverrun_kernels::rollout::gpu;
        let user = |error: riverrun_kernels::Error| Failure::User(error.to_string());
        let routine = gpu::choose(&client, &case.problem);
        right(&case.gpu(&client, Some(routine)).map_err(user)?)?;
        let buffers = case.upload(&client);
        let handles = [
            &buffers.w,
            &buffers.u,
            &buffers.bias,
            &buffers.heads,
            &buffers.h0,
            &buffers.features,
            &buffers.loss,
            &buffers.rows,
        ];
        let allocated = handles
            .iter()
            .map(|handle| handle.size_in_used() as usize)
            .sum();
        let time = super::device::device_time(&client, Duration::from_millis(100), || {
            gpu::run(&client, &case.problem, &buffers, Some(routine)).expect("ran before");
        });
        return Ok((time, routine.name(), allocated));
    }
    if !setup.is_cpu() {
        return Err(Failure::User(
            "this build has no kernels for the device".into(),
        ));
    }
    let found = case.cpu().map_err(bug)?;
    right(&found)?;
    let arguments = case.arguments();
    let given = [
        arguments.w,
        arguments.u,
        arguments.bias,
        arguments.heads,
        arguments.h0,
        arguments.features,
        arguments.loss,
    ];
    let results = found.named().map(|(_, x)| x.len());
    let numbers = given.iter().map(|x| x.len()).chain(results).sum::<usize>();
    let time = seconds(|| {
        case.cpu().expect("ran before");
    });
    Ok((time, "cpu", numbers * 4))
}
