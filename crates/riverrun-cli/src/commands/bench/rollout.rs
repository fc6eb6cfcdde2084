//! `riverrun bench rollout`: an ensemble's forecast, beside the same formulas as a plain scalar program in the same run, and the
//! memory that it takes.

use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::{Problem, memory, oracle};

use super::report::{Report, bug, right, user};
use super::row::Row;
use super::timing::Timing;
use crate::args::names::positive;
use crate::failure::Failure;

/// Options of `riverrun bench rollout`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example:\n  riverrun bench rollout --device cuda:0 --members 5,64 --steps 50 --json rollout.json"
)]
pub struct Args {
    /// Members of the ensemble, separated by commas: the first at every number of steps, the others at the middle one
    #[arg(long, value_name = "E", value_delimiter = ',', default_value = "5,1,2,16,64,256", value_parser = positive())]
    members: Vec<usize>,
    /// Steps ahead, separated by commas
    #[arg(long, value_name = "Y", value_delimiter = ',', default_value = "10,25,50,75,100", value_parser = positive())]
    steps: Vec<usize>,
    /// Hidden units of a member
    #[arg(long, value_name = "H", default_value_t = 256, value_parser = positive())]
    hidden: usize,
    /// Classes of the categorical [default: as many as hidden units]
    #[arg(long, value_name = "S", value_parser = positive())]
    stochastic: Option<usize>,
    /// Features
    #[arg(long, value_name = "I", default_value_t = 64, value_parser = positive())]
    features: usize,
}

impl Args {
    fn problem(&self, members: usize, steps: usize) -> Problem {
        Problem::new(members, self.hidden, steps)
            .with_stochastic(self.stochastic.unwrap_or(self.hidden))
            .with_features(self.features)
    }
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.measure_copy()?;
    report.table("rows");
    // Every horizon with the first ensemble, then every other ensemble at the middle horizon.
    let middle = args.steps[args.steps.len() / 2];
    let horizons = args.steps.iter().map(|&steps| (args.members[0], steps));
    let ensembles = args.members[1..].iter().map(|&members| (members, middle));
    for (members, steps) in horizons.chain(ensembles) {
        let problem = args.problem(members, steps);
        problem.check().map_err(user)?;
        let case = Case::random(problem, 1);
        let (time, routine, allocated) = measure(report, &case)?;
        // On one core of the same machine.
        let scalar = (members <= 16).then(|| {
            report.time(0.4, || {
                oracle::run(&problem, case.arguments()).expect("checked before");
            })
        });
        let (ensemble, rollout) = (memory::ensemble(&problem), memory::rollout(&problem));
        if allocated != ensemble + rollout {
            let formula = ensemble + rollout;
            return Err(bug(format!(
                "{problem:?} takes {allocated} bytes, by the formula {formula}"
            )));
        }
        report.add(
            Row::new()
                .counts(
                    ["members", "steps", "hidden"],
                    [members, steps, args.hidden],
                )
                .hidden("stochastic", problem.stochastic)
                .hidden("features", problem.features)
                .text("routine", routine)
                .ms("time", time)
                .beside_ms("scalar", scalar)
                .number("times", 1, scalar.map(|scalar| scalar.median / time.median))
                .number("gflops", 1, problem.flops() as f64 / time.median / 1e9)
                .number(
                    "steps_per_second",
                    0,
                    (members * steps) as f64 / time.median,
                )
                // The weights are read at every step; above 1 of the copy where they stay in registers or a cache.
                .bandwidth(steps * ensemble + rollout, time.median, report.copy)
                .bytes("ensemble_bytes", ensemble as u64)
                .bytes("rollout_bytes", rollout as u64)
                .bytes("allocated_bytes", allocated as u64),
        )?;
    }
    sizes(args, report)
}

/// Memory of a cell by its hidden units, and of ensembles of it, with as many classes as hidden units.
fn sizes(args: &Args, report: &mut Report) -> Result<(), Failure> {
    const MEMBERS: [(usize, &str); 5] = [
        (1, "of_1_bytes"),
        (3, "of_3_bytes"),
        (5, "of_5_bytes"),
        (7, "of_7_bytes"),
        (10, "of_10_bytes"),
    ];
    report.table("sizes");
    for hidden in [64, 128, 256, 512, 1024] {
        let cell = memory::cell(hidden, args.features);
        let row = Row::new()
            .count("hidden", hidden)
            .bytes("cell_bytes", cell as u64)
            .bytes("shared_bytes", memory::shared(hidden) as u64)
            // To send a cell's weights to the device.
            .beside_ms("upload", upload(report, cell)?);
        let ensemble = |members| {
            let problem = Problem::new(members, hidden, 50).with_stochastic(hidden);
            memory::ensemble(&problem.with_features(args.features)) as u64
        };
        let both = MEMBERS.into_iter();
        report.add(both.fold(row, |row, (members, key)| row.bytes(key, ensemble(members))))?;
    }
    Ok(())
}

fn upload(report: &Report, bytes: usize) -> Result<Option<Timing>, Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        use cubecl::future::block_on;
        let data = vec![0_u8; bytes];
        return Ok(Some(report.time(0.4, || {
            let handle = client.create_from_slice(&data);
            block_on(client.sync()).expect("a device that answers");
            drop(handle);
        })));
    }
    let _ = bytes;
    report.cpu_only().map(|()| None)
}

/// The time of a call, its routine, and the bytes of its arrays. A wrong result is not timed.
fn measure(report: &Report, case: &Case) -> Result<(Timing, &'static str, usize), Failure> {
    let what = format!("{:?}", case.problem);
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        use riverrun_kernels::rollout::gpu;
        let routine = gpu::choose(&client, &case.problem);
        let found = case.gpu(&client, Some(routine)).map_err(user)?;
        right(what, &case.compare(&found).map_err(bug)?)?;
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
        let allocated = handles.map(|handle| handle.size_in_used() as usize);
        let time = report.device_time(&client, 0.1, || {
            gpu::run(&client, &case.problem, &buffers, Some(routine))
        })?;
        return Ok((time, routine.name(), allocated.into_iter().sum()));
    }
    let found = case.cpu().map_err(bug)?;
    right(what, &case.compare(&found).map_err(bug)?)?;
    let given = case.arguments();
    let given = [
        given.w,
        given.u,
        given.bias,
        given.heads,
        given.h0,
        given.features,
        given.loss,
    ];
    let results = found.named().map(|(_, x)| x.len());
    let numbers = given.iter().map(|x| x.len()).chain(results).sum::<usize>();
    let time = report.time_call(0.4, || case.cpu().map(drop))?;
    Ok((time, "cpu", numbers * 4))
}
