//! What has been published of the method, beside what came out.

use std::io::Write;

use super::Row;
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
    /// Steps that were done or replaced in predictions and the real steps that measure them, for each real step among them;
    /// those taken back do not count. None without predictions.
    in_predict: Option<f64>,
    loss: f64,
    sooner: bool,
}

fn found(row: &Row, plain: &Row) -> Option<Found> {
    let correct = row.method.settings.as_ref()?.correct as f64;
    let real = row.counts(|counts| counts.real, row.steps);
    let kept = row.counts(|counts| counts.predicted - counts.taken_back, 0);
    let measured = row.counts(|counts| counts.predictions, 0) * correct;
    let last = |row: &Row| row.over(|run| run.to[2].unwrap_or(f64::INFINITY));
    Some(Found {
        saved: 1.0 - real / row.steps as f64,
        speed: plain.over(|run| run.seconds) / row.over(|run| run.seconds),
        in_predict: (measured > 0.0).then(|| (kept + measured) / measured),
        loss: row.over(|run| run.loss) / plain.over(|run| run.loss),
        sooner: last(row) < last(plain),
    })
}

/// Prints them, a line a method.
pub fn print(out: &mut impl Write, rows: &[Row]) -> Result<(), Failure> {
    writeln!(
        out,
        "\nPublished of the method: {:.0} % of the backward passes saved, twice the speed in the predict phase, the loss within 1 %\n\
         (xor), 5 % (digits) and 10 % (text) of plain training's. Here, with + where that holds and - where it does not:",
        100.0 * SAVED
    )?;
    writeln!(
        out,
        "{:<7} {:<12} {:>10} {:>16} {:>12} {:>12}  plain's last loss sooner",
        "rung", "predictor", "saved", "in predict", "whole run", "loss"
    )?;
    let sign = |holds: bool| if holds { '+' } else { '-' };
    let mut plain = None;
    for row in rows {
        let Some(found) = plain.and_then(|plain| found(row, plain)) else {
            plain = Some(row);
            continue;
        };
        let in_predict = match found.in_predict {
            Some(steps) => format!("{steps:.2}x {}", sign(steps >= SPEED)),
            None => "no predictions -".into(),
        };
        writeln!(
            out,
            "{:<7} {:<12} {:>8.1} % {} {in_predict:>14} {:>10.2}x {} {:>9.3}x {}  {}",
            row.rung,
            row.method.predictor,
            100.0 * found.saved,
            sign(found.saved >= SAVED),
            found.speed,
            sign(found.speed >= SPEED),
            found.loss,
            sign(found.loss <= 1.0 + distance(row.rung)),
            if found.sooner { "yes" } else { "no" }
        )?;
    }
    writeln!(
        out,
        "in predict: steps done or replaced in predictions and in the real steps that measure them, for each real step among\n\
         them; what was taken back does not count."
    )?;
    Ok(())
}
