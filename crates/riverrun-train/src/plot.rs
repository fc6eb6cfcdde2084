//! The curves of a run, as `loss.svg` and `loss.png`.

use crate::chart::{self, Line, Panel, RGBColor, Scale};
use crate::run_dir::write_atomic;
use crate::{Error, Report, RunDir, Split};

/// Training losses are noisy: a light line behind the others.
const TRAIN: RGBColor = RGBColor(158, 188, 218);
const VALIDATION: RGBColor = RGBColor(136, 65, 157);
const ACCURACY: RGBColor = RGBColor(35, 132, 67);

/// Draws the losses, and the accuracy where there is one, into the run's folder. Nothing is drawn
/// before there are two reports.
///
/// # Errors
/// A disk that is full or refuses.
pub fn draw(reports: &[Report], title: &str, dir: &RunDir) -> Result<(), Error> {
    if reports.len() < 2 {
        return Ok(());
    }
    let panels = panels(reports, title);
    let path = dir.curve_path("svg");
    let svg = chart::svg(&panels).map_err(|error| Error::write(path.clone(), error))?;
    write_atomic(&path, svg.as_bytes())?;
    let path = dir.curve_path("png");
    chart::png(&panels, &path).map_err(|error| Error::write(path.clone(), error))
}

fn panels(reports: &[Report], title: &str) -> Vec<Panel> {
    let line = |name: &str, color, split: Split, value: fn(&Report) -> Option<f64>| Line {
        name: name.into(),
        color,
        points: reports
            .iter()
            .filter(|report| report.split == split)
            .filter_map(|report| Some((report.step as f64, value(report)?)))
            .collect(),
    };
    let loss = |report: &Report| Some(report.loss);
    let panel = |caption: String, range, lines| Panel {
        caption,
        x_name: "step".into(),
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
        range,
        rising: range.is_some(),
        lines,
    };
    let losses = vec![
        line("train", TRAIN, Split::Train, loss),
        line("validation", VALIDATION, Split::Validation, loss),
    ];
    let y_scale = scale(&losses);
    let mut panels = vec![Panel {
        y_scale,
        ..panel(format!("{title}: loss (nats)"), None, losses)
    }];
    let accuracy = line("validation", ACCURACY, Split::Validation, |report| {
        report.accuracy.map(|a| 100.0 * a)
    });
    if !accuracy.points.is_empty() {
        let range = Some((0.0, 100.0));
        panels.push(panel("accuracy (%)".into(), range, vec![accuracy]));
    }
    panels
}

/// Losses that fall to a small part of the first are drawn by powers of two, so that the later ones can be told apart.
fn scale(losses: &[Line]) -> Scale {
    const FALL: f64 = 16.0;
    let all = || {
        losses
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.1)
    };
    let least = all().fold(f64::INFINITY, f64::min);
    let most = all().fold(0.0, f64::max);
    match least > 0.0 && most >= FALL * least {
        true => Scale::Binary,
        false => Scale::Linear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_fall_far_are_drawn_by_powers_of_two() {
        let line = |losses: &[f64]| Line {
            name: "train".into(),
            color: TRAIN,
            points: losses.iter().map(|loss| (1.0, *loss)).collect(),
        };
        assert_eq!(scale(&[line(&[4.0, 1.0])]), Scale::Linear);
        assert_eq!(scale(&[line(&[64.0]), line(&[2.0])]), Scale::Binary);
        assert_eq!(scale(&[line(&[64.0, -0.5])]), Scale::Linear);
    }

    fn report(step: u64, split: Split, accuracy: Option<f64>) -> Report {
        let loss = 3.0 / (1.0 + step as f64 / 10.0);
        Report {
            step,
            split,
            loss,
            accuracy,
            skipped: None,
            gradient: None,
            gradients: Default::default(),
            tokens_per_s: 1.0,
            lr: 1.0,
            seconds: 1.0,
        }
    }

    fn svg(accuracy: Option<f64>) -> String {
        let mut reports: Vec<Report> = (1..=50).map(|s| report(s, Split::Train, None)).collect();
        reports.extend([25, 50].map(|step| report(step, Split::Validation, accuracy)));
        chart::svg(&panels(&reports, "copy")).unwrap()
    }

    #[test]
    fn losses_are_one_panel_and_accuracy_another() {
        let plain = svg(None);
        assert!(plain.contains("copy: loss (nats)") && plain.contains("validation"));
        assert!(!plain.contains("accuracy"));
        assert!(svg(Some(0.5)).contains("accuracy (%)"));
    }
}
