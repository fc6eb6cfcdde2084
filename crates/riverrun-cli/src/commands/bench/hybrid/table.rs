//! The table of a rung.

use std::io::Write;

use riverrun_train::hybrid::Counts;

use super::{Row, Run};
use crate::failure::Failure;

/// The middle one. Odd numbers of seeds have one; of an even number it is the upper of the two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Row {
    /// The median over the seeds.
    pub fn over(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value))
    }

    /// A count of a hybrid run, or the steps of plain training.
    pub fn counts(&self, of: impl Fn(Counts) -> u64, plain: u64) -> f64 {
        self.over(|run| match &run.hybrid {
            Some(status) => of(status.counts) as f64,
            None => plain as f64,
        })
    }

    /// `low-high`.
    fn range(&self, value: impl Fn(&Run) -> f64) -> (f64, f64) {
        let values = || self.runs.iter().map(&value);
        let low = values().fold(f64::INFINITY, f64::min);
        (low, values().fold(f64::NEG_INFINITY, f64::max))
    }
}

impl Run {
    /// The confidence at the end.
    fn confidence(&self) -> f64 {
        self.hybrid.as_ref().map_or(0.0, |status| status.confidence)
    }
}

/// Prints rows of one rung, plain training first. All numbers are medians over the seeds.
pub fn print(out: &mut impl Write, rows: &[Row]) -> Result<(), Failure> {
    let seconds = |seconds: f64| match seconds.is_finite() {
        true => format!("{seconds:.2}"),
        false => "-".to_string(),
    };
    writeln!(
        out,
        "{:<7} {:<23} {:>6} {:>9} {:>6} {:>7} {:>5} {:>19} {:>6} {:>8} {:>17}  {:>8} {:>7} {:>7} {:>7}",
        "rung",
        "predictor",
        "real",
        "predicted",
        "back",
        "saved",
        "sure",
        "seconds (range)",
        "speed",
        "loss",
        "(range)",
        "of plain",
        "50 %",
        "75 %",
        "100 %"
    )?;
    let Some(plain) = rows.first() else {
        return Ok(());
    };
    let (plain_seconds, plain_loss) = (plain.over(|run| run.seconds), plain.over(|run| run.loss));
    for row in rows {
        let real = row.counts(|counts| counts.real, row.steps);
        let predicted = row.counts(|counts| counts.predicted, 0);
        let back = row.counts(|counts| counts.taken_back, 0);
        let saved = 100.0 * (1.0 - real / row.steps as f64);
        let (time, loss) = (row.over(|run| run.seconds), row.over(|run| run.loss));
        let (fast, slow) = row.range(|run| run.seconds);
        let (low, high) = row.range(|run| run.loss);
        let sure = match row.method.settings {
            Some(_) => format!("{:.2}", row.over(|run| run.confidence())),
            None => String::new(),
        };
        let to = |n: usize| seconds(row.over(|run| run.to[n].unwrap_or(f64::INFINITY)));
        writeln!(
            out,
            "{:<7} {:<23} {real:>6} {predicted:>9} {back:>6} {saved:>5.1} % {:>5} {time:>6.2} ({fast:>4.2}-{slow:>4.2}) {:>5.2}x {loss:>8.4} {:>17}  {:>7.3}x {:>7} {:>7} {:>7}",
            row.rung,
            row.method.name(),
            sure,
            plain_seconds / time,
            format!("({low:.4}-{high:.4})"),
            loss / plain_loss,
            to(0),
            to(1),
            to(2)
        )?;
    }
    Ok(())
}

/// Prints what the columns mean.
pub fn print_columns(out: &mut impl Write) -> Result<(), Failure> {
    writeln!(
        out,
        "Medians over the seeds. saved: backward passes; back: predicted steps that were taken back; sure: the confidence at the\n\
         end, which a prediction needs --hybrid's least of; speed: of the whole run, beside plain training; 50, 75, 100 %: seconds\n\
         to the validation loss that plain training has there, - where it is not reached."
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_runs_that_did_not_arrive_is_infinite() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        let few = [1.0, f64::INFINITY, f64::INFINITY];
        assert!(median(few.into_iter()).is_infinite());
    }
}
