//! What has been published of the method, beside what came out.

use super::Runs;
use crate::commands::bench::report::Report;
use crate::commands::bench::row::Row;
use crate::failure::Failure;

/// Part of the backward passes that was published as saved.
const SAVED: f64 = 0.78;
/// Least speed that was published, in the predict phase and of whole runs.
const SPEED: f64 = 2.0;

/// The published distance of the last loss from plain training's.
fn distance(rung: &str) -> f64 {
    match rung {
        "xor" => 0.01,
        "digits" => 0.05,
        _ => 0.10,
    }
}

/// The numbers of a method that claims are about.
struct Found {
    saved: f64,
    speed: f64,
    /// The time that plain training takes for the steps of predictions and the real steps that measure them, for each second that
    /// those took; steps taken back do not count. None without predictions.
    in_predict: Option<f64>,
    loss: f64,
    sooner: bool,
}

fn found(row: &Runs, plain: &Runs) -> Option<Found> {
    let correct = row.method.settings.as_ref()?.correct as f64;
    let real = row.counts(|counts| counts.real, row.steps);
    let kept = row.counts(|counts| counts.predicted - counts.taken_back, 0);
    let measured = row.counts(|counts| counts.predictions, 0) * correct;
    let step = plain.over(|run| run.seconds) / plain.steps as f64;
    let predicting = row.over(|run| run.predicting);
    let last = |row: &Runs| row.over(|run| run.to[2].unwrap_or(f64::INFINITY));
    Some(Found {
        saved: 1.0 - real / row.steps as f64,
        speed: plain.over(|run| run.seconds) / row.over(|run| run.seconds),
        in_predict: (measured > 0.0).then(|| step * (kept + measured) / predicting),
        loss: row.over(|run| run.loss) / plain.over(|run| run.loss),
        // Without predictions the runs are the same, and the times are noise.
        sooner: measured > 0.0 && last(row) < last(plain),
    })
}

/// Adds a line for each method.
pub fn add(report: &mut Report, all: &[Runs]) -> Result<(), Failure> {
    report.line(format!(
        "\nPublished of the method: {:.0} % of the backward passes saved, twice the speed in the predict phase, the loss within 1 %\n\
         (xor), 5 % (digits) and 10 % (text) of plain training's. Here; holds: + or - for saved, in predict, speed and loss:",
        100.0 * SAVED
    ))?;
    report.table("claims");
    let mut plain = None;
    for runs in all {
        let Some(found) = plain.and_then(|plain| found(runs, plain)) else {
            plain = Some(runs);
            continue;
        };
        let holds = [
            found.saved >= SAVED,
            found.in_predict.is_some_and(|steps| steps >= SPEED),
            found.speed >= SPEED,
            found.loss <= 1.0 + distance(runs.rung),
        ];
        let signs: String = holds
            .map(|holds| if holds { '+' } else { '-' })
            .iter()
            .collect();
        report.add(
            Row::new()
                .wide("rung", 7, runs.rung)
                .wide("predictor", 28, runs.method.name())
                .percent("saved", found.saved)
                .number("in_predict", 2, found.in_predict)
                .number("speed", 2, found.speed)
                .number("loss_of_plain", 3, found.loss)
                .text("holds", signs)
                .flag("last_loss_sooner", found.sooner),
        )?;
    }
    report.line(
        "in predict: seconds of plain training for the steps of predictions and for the real steps that measure them, for each\n\
         second that those took; what was taken back does not count. last loss sooner: than plain training's.",
    )
}
