//! Ensemble rollouts: every routine of the device, compared with the oracle.

use riverrun_kernels::rollout::{Decode, Problem};

use crate::rollout::check::Case;
use crate::{Failure, Part, Report, Row, Target};

/// The decoders.
pub fn forms(_: &Target) -> Vec<&'static str> {
    Decode::ALL.map(Decode::name).to_vec()
}

fn problems(part: &Part<'_>) -> Vec<Problem> {
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
    if part.long {
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

/// Checks a decoder by every routine.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let decode = Decode::ALL
        .into_iter()
        .find(|decode| decode.name() == part.form)
        .expect("one of the forms");
    let bug = |error: riverrun_kernels::Error| Failure(error.to_string());
    let cases: Vec<Case> = problems(part)
        .into_iter()
        .enumerate()
        .map(|(n, problem)| {
            let problem = match decode {
                Decode::Linear => problem.with_decode(decode),
                Decode::LogLoss => problem,
            };
            Case::random(problem, 17 + n as u64)
        })
        .collect();
    #[cfg(feature = "gpu")]
    if let Some((client, _)) = part.gpu() {
        use riverrun_kernels::rollout::gpu::{Routine, missing};
        for routine in Routine::ALL {
            let mut row = Row::default();
            let mut reason = None;
            for case in &cases {
                if let Some(why) = missing(client, &case.problem, routine) {
                    reason.get_or_insert(why);
                    continue;
                }
                let run = || case.gpu(client, Some(routine));
                let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
                row.case(&case.compare(&found).map_err(bug)?, found == again);
            }
            match (row.is_empty(), reason) {
                (true, Some(reason)) => {
                    let what = format!("rollout {} {}", part.form, routine.name());
                    table.skip(part.device(), &what, &reason)?;
                }
                _ => table.row(part.device(), part.form, "f32", routine.name(), row)?,
            }
        }
        return Ok(());
    }
    let mut row = Row::default();
    for case in &cases {
        let (found, again) = (case.cpu().map_err(bug)?, case.cpu().map_err(bug)?);
        row.case(&case.compare(&found).map_err(bug)?, found == again);
    }
    table.row(part.device(), part.form, "f32", "cpu", row)
}
