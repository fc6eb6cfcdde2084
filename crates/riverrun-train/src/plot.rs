//! The curves of a run, as `loss.svg` and `loss.png`.

use crate::chart::{self, Line, Panel, RGBColor, Scale};
use crate::hybrid::Phase;
use crate::run_dir::write_atomic;
use crate::{Error, Report, RunDir, Split};

/// Training losses are noisy: a light line behind the others.
const TRAIN: RGBColor = RGBColor(158, 188, 218);
const VALIDATION: RGBColor = RGBColor(136, 65, 157);
const ACCURACY: RGBColor = RGBColor(35, 132, 67);
/// The phases of a hybrid run, behind the curves; full phases are white.
const WARM_UP: RGBColor = RGBColor(240, 240, 240);
const PREDICT: RGBColor = RGBColor(253, 219, 178);
const CORRECT: RGBColor = RGBColor(218, 236, 218);

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
        bands: bands(reports),
    };
    let mut losses = vec![
        line("train", TRAIN, Split::Train, loss),
        line("validation", VALIDATION, Split::Validation, loss),
    ];
    // The legend names what the bands are.
    let legend = [
        (Phase::WarmUp, "warm-up", WARM_UP),
        (Phase::Predict, "predicted", PREDICT),
        (Phase::Correct, "measured", CORRECT),
    ];
    let phases = || reports.iter().filter_map(|report| report.hybrid.as_ref());
    for (phase, name, color) in legend {
        if phases().any(|status| status.phases.iter().any(|(of, _)| *of == phase)) {
            losses.push(Line {
                name: name.into(),
                color,
                points: Vec::new(),
            });
        }
    }
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

/// The phases of a hybrid run, as stretches of steps.
fn bands(reports: &[Report]) -> Vec<(f64, f64, RGBColor)> {
    let mut from = 0;
    let mut bands = Vec::new();
    let statuses = reports.iter().filter_map(|report| report.hybrid.as_ref());
    for (phase, steps) in statuses.flat_map(|status| &status.phases) {
        let to = from + steps;
        let color = match phase {
            Phase::WarmUp => Some(WARM_UP),
            Phase::Full => None,
            Phase::Predict => Some(PREDICT),
            Phase::Correct => Some(CORRECT),
        };
        bands.extend(color.map(|color| (from as f64, to as f64, color)));
        from = to;
    }
    bands
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
            epoch: None,
            skipped: None,
            gradient: None,
            gradients: Default::default(),
            hybrid: None,
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

    #[test]
    fn phases_lie_behind_the_curves() {
        let mut reports = vec![
            report(20, Split::Train, None),
            report(40, Split::Train, None),
        ];
        let status = |phases: &[(Phase, u64)]| {
            Some(crate::hybrid::Status {
                phases: phases.to_vec(),
                ..Default::default()
            })
        };
        reports[0].hybrid = status(&[(Phase::WarmUp, 10), (Phase::Full, 10)]);
        reports[1].hybrid = status(&[(Phase::Predict, 15), (Phase::Correct, 5)]);
        let expected = [
            (0.0, 10.0, WARM_UP),
            (20.0, 35.0, PREDICT),
            (35.0, 40.0, CORRECT),
        ];
        assert_eq!(bands(&reports), expected);
        let text = chart::svg(&panels(&reports, "copy")).unwrap();
        assert!(text.contains("predicted") && text.contains("#FDDBB2"));
    }
}
