//! Rollouts of ensembles.

pub mod check;
pub mod oracle;

pub use riverrun_kernels::rollout::*;

use crate::{Failure, Operation, Part, Report, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "rollout",
    about: "Rollouts of ensembles",
    storages: &[Storage::F32],
    forms: |_| Decode::ALL.map(Decode::name).to_vec(),
    check,
    weight: 2,
    shared: None,
    long: Some("rollouts of more than 5 members or 100 steps"),
};

fn problems(long: bool) -> Vec<Problem> {
    let mut problems = vec![
        Problem::new(5, 256, 50).with_stochastic(256),
        Problem::new(5, 256, 50),
        Problem::new(3, 64, 10).with_features(16),
        Problem::new(2, 4, 100).with_features(2),
        Problem::new(2, 33, 5).with_features(7),
        Problem::new(1, 1024, 4),
        Problem::new(4, 40, 0),
        Problem::new(0, 40, 5),
    ];
    if long {
        problems.extend([
            Problem::new(5, 256, 100).with_stochastic(256),
            Problem::new(5, 512, 50),
            Problem::new(256, 128, 25),
            Problem::new(1024, 64, 10),
            Problem::new(3, 1024, 50).with_stochastic(1024),
        ]);
    }
    problems
}

/// A decoder by every routine of the device.
fn check(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let decode = Decode::ALL.into_iter().find(|d| d.name() == part.form);
    let decode = decode.expect("one of the forms");
    let problems = problems(part.long).into_iter().enumerate();
    let cases = problems.map(|(n, problem)| {
        let problem = match decode {
            Decode::Linear => problem.with_decode(decode),
            Decode::LogLoss => problem,
        };
        check::Case::random(problem, 17 + n as u64)
    });
    #[cfg(feature = "gpu")]
    if let Some((client, _)) = part.gpu() {
        for routine in gpu::Routine::ALL {
            let missing = |problem: &Problem| gpu::missing(client, problem, routine);
            let fits = |case: &check::Case| missing(&case.problem).is_none();
            let fitting: Vec<_> = cases.clone().filter(fits).collect();
            if fitting.is_empty() {
                let what = format!("rollout {} {}", part.form, routine.name());
                let reason = cases.clone().find_map(|case| missing(&case.problem));
                report.skip(part.device(), &what, &reason.unwrap_or_default())?;
                continue;
            }
            let run = |case: &check::Case| {
                let found = case.gpu(client, Some(routine))?;
                Ok::<_, crate::Error>(case.tensors(&found))
            };
            part.run_by::<f32, _, _>(part.form, routine.name(), fitting, run, report)?;
        }
        return Ok(());
    }
    part.run_all::<f32, _>(part.form, cases, report)
}
