//! The curves of a run, as `loss.svg` and `loss.png`.

use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::run_dir::write_atomic;
use crate::{Error, Report, RunDir, Split};

const SIZE: (u32, u32) = (960, 540);
/// Training losses are noisy: a light line behind the others.
const TRAIN: RGBColor = RGBColor(158, 188, 218);
const VALIDATION: RGBColor = RGBColor(136, 65, 157);
const ACCURACY: RGBColor = RGBColor(35, 132, 67);
/// The font's name for plotters; viewers of the SVG take their own font of that kind.
const FONT: &str = "sans-serif";

/// Draws the losses, and the accuracy where there is one, into the run's folder. Nothing is drawn
/// before there are two reports.
///
/// # Errors
/// A disk that is full or refuses.
pub fn draw(reports: &[Report], title: &str, dir: &RunDir) -> Result<(), Error> {
    if reports.len() < 2 {
        return Ok(());
    }
    let failed = |error: String| Error::write(dir.path().join("loss.svg"), error);
    let mut svg = String::new();
    draw_on(
        SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(),
        reports,
        title,
    )
    .map_err(failed)?;
    write_atomic(&dir.curve_path("svg"), svg.as_bytes())?;

    let path = dir.curve_path("png");
    // The image library writes to a file by itself and goes by its extension.
    let beside = path.with_file_name(".loss.new.png");
    let drawn = draw_on(
        BitMapBackend::new(&beside, SIZE).into_drawing_area(),
        reports,
        title,
    )
    .and_then(|()| std::fs::rename(&beside, &path).map_err(|error| error.to_string()));
    drawn.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        Error::write(path, error)
    })
}

fn draw_on<B: DrawingBackend>(
    area: DrawingArea<B, Shift>,
    reports: &[Report],
    title: &str,
) -> Result<(), String> {
    static FONT_READY: Once = Once::new();
    // Compiled in, so that a machine without fonts draws the same picture. Registering a font that is
    // part of the program cannot fail; if it did, drawing text would say so.
    FONT_READY.call_once(|| {
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
    });
    let drawn = || -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let series = |split: Split, value: fn(&Report) -> Option<f64>| -> Vec<(f64, f64)> {
            reports
                .iter()
                .filter(|report| report.split == split)
                .filter_map(|report| Some((report.step as f64, value(report)?)))
                .collect()
        };
        let loss = |split| series(split, |report| Some(report.loss));
        let accuracy = series(Split::Validation, |report| {
            report.accuracy.map(|a| 100.0 * a)
        });
        let losses = [
            Line {
                name: "train",
                color: TRAIN,
                points: loss(Split::Train),
            },
            Line {
                name: "validation",
                color: VALIDATION,
                points: loss(Split::Validation),
            },
        ];
        let caption = |what: &str| format!("{title}: {what}");
        if accuracy.is_empty() {
            return panel(&area, &caption("loss (nats)"), None, &losses);
        }
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        panel(&left, &caption("loss (nats)"), None, &losses)?;
        let accuracy = [Line {
            name: "validation",
            color: ACCURACY,
            points: accuracy,
        }];
        panel(&right, "accuracy (%)", Some((0.0, 100.0)), &accuracy)
    };
    drawn()
        .and_then(|()| area.present())
        .map_err(|error| error.to_string())
}

struct Line {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    caption: &str,
    range: Option<(f64, f64)>,
    lines: &[Line],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|p| p.0).fold(1.0, f64::max);
    let (low, high) = range.unwrap_or_else(|| {
        let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = points().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
        let margin = (0.05 * (high - low)).max(1e-6);
        ((low - margin).max(0.0), high + margin)
    });
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 18))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..last, low..high)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(228, 228, 228))
        .x_desc("step")
        .x_labels(6)
        .y_labels(8)
        .label_style((FONT, 13))
        .x_label_formatter(&|step| format!("{step:.0}"))
        .y_label_formatter(&|value| short(*value, high - low))
        .draw()?;
    for Line {
        name,
        color,
        points,
    } in lines
    {
        let style = ShapeStyle {
            color: color.to_rgba(),
            filled: true,
            stroke_width: 2,
        };
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        if points.len() == 1 {
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, style)))?;
        }
    }
    chart
        .configure_series_labels()
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .position(if range.is_some() {
            SeriesLabelPosition::LowerRight
        } else {
            SeriesLabelPosition::UpperRight
        })
        .draw()?;
    Ok(())
}

/// As many decimals as labels a tenth of the range apart need.
fn short(value: f64, range: f64) -> String {
    let decimals = (1.0 - range.max(1e-9).log10()).ceil().clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64, split: Split, accuracy: Option<f64>) -> Report {
        let loss = 3.0 / (1.0 + step as f64 / 10.0);
        Report {
            step,
            split,
            loss,
            accuracy,
            tokens_per_s: 1.0,
            lr: 1.0,
            seconds: 1.0,
        }
    }

    fn reports(accuracy: Option<f64>) -> Vec<Report> {
        let mut reports: Vec<Report> = (1..=50).map(|s| report(s, Split::Train, None)).collect();
        reports.extend([25, 50].map(|step| report(step, Split::Validation, accuracy)));
        reports
    }

    fn svg(reports: &[Report]) -> String {
        let mut svg = String::new();
        draw_on(
            SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(),
            reports,
            "copy",
        )
        .unwrap();
        svg
    }

    #[test]
    fn losses_are_one_panel_and_accuracy_another() {
        let plain = svg(&reports(None));
        assert!(plain.contains("copy: loss (nats)") && plain.contains("validation"));
        assert!(!plain.contains("accuracy"));
        assert!(svg(&reports(Some(0.5))).contains("accuracy (%)"));
    }

    #[test]
    fn one_point_is_drawn_too() {
        assert!(
            svg(&[
                report(1, Split::Train, None),
                report(1, Split::Validation, None)
            ])
            .contains("<circle")
        );
    }

    #[test]
    fn pictures_have_text_without_any_font_installed() {
        let mut blank = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
        let area = BitMapBackend::with_buffer(&mut blank, SIZE).into_drawing_area();
        draw_on(area, &reports(None), "copy").unwrap();
        // The caption's row holds dark pixels only if letters were drawn.
        let caption = &blank[..(SIZE.0 * 40 * 3) as usize];
        assert!(caption.iter().filter(|&&byte| byte < 100).count() > 200);
    }

    #[test]
    fn labels_have_enough_decimals() {
        assert_eq!(short(1.25, 3.0), "1.2");
        assert_eq!(short(40.0, 100.0), "40");
        assert_eq!(short(1.5432, 0.02), "1.543");
    }
}
