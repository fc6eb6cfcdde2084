//! Line charts, as SVG and PNG, with the same letters on every machine.

use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

pub use plotters::style::RGBColor;

/// Width and height of one row of panels.
const SIZE: (u32, u32) = (960, 540);
/// The font's name for plotters; viewers of the SVG take their own font of that kind.
const FONT: &str = "sans-serif";

/// Colours that are told apart in print and by the colour-blind, for lines that have no colour of their own.
pub const PALETTE: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 95, 14),
    RGBColor(35, 132, 67),
    RGBColor(136, 65, 157),
    RGBColor(120, 120, 120),
    RGBColor(188, 143, 20),
];

/// A line of a panel.
#[derive(Debug, Clone)]
pub struct Line {
    /// The text in the legend.
    pub name: String,
    /// Its colour.
    pub color: RGBColor,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of two.
    Binary,
    /// By powers of ten.
    Decimal,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Binary => value.max(f64::MIN_POSITIVE).log2(),
            Scale::Decimal => value.max(f64::MIN_POSITIVE).log10(),
        }
    }

    fn label(self, place: f64, range: f64) -> String {
        match self {
            Scale::Linear => short(place, range),
            Scale::Binary => format!("{:.0}", place.exp2()),
            Scale::Decimal => format!("{:.0e}", 10f64.powf(place)),
        }
    }
}

/// Axes with lines.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub caption: String,
    /// Below it.
    pub x_name: String,
    /// The horizontal axis.
    pub x_scale: Scale,
    /// The vertical axis.
    pub y_scale: Scale,
    /// The range of the vertical axis; that of the lines if absent.
    pub range: Option<(f64, f64)>,
    /// Whether lines end high, so that the legend belongs below them.
    pub rising: bool,
    /// The lines.
    pub lines: Vec<Line>,
    /// Stretches of the horizontal axis that are coloured, behind the lines: start, end, colour.
    pub bands: Vec<(f64, f64, RGBColor)>,
}

/// Rows and columns of panels.
fn grid(panels: usize) -> (usize, usize) {
    let columns = panels.clamp(1, 2);
    (panels.div_ceil(columns).max(1), columns)
}

fn size(panels: usize) -> (u32, u32) {
    (SIZE.0, SIZE.1 * grid(panels).0 as u32)
}

/// The panels, two in a row, as the text of an SVG file.
///
/// # Errors
/// The message of the drawing library.
pub fn svg(panels: &[Panel]) -> Result<String, String> {
    let mut text = String::new();
    draw(
        SVGBackend::with_string(&mut text, size(panels.len())).into_drawing_area(),
        panels,
    )?;
    Ok(text)
}

/// The panels, two in a row, as a PNG file. An old file stays until the new one is whole.
///
/// # Errors
/// A disk that is full or refuses.
pub fn png(panels: &[Panel], path: &Path) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The image library writes to a file by itself and goes by its extension.
    let beside = path.with_file_name(format!(".new.{name}"));
    let drawn = draw(
        BitMapBackend::new(&beside, size(panels.len())).into_drawing_area(),
        panels,
    )
    .and_then(|()| std::fs::rename(&beside, path).map_err(|error| error.to_string()));
    drawn.inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

fn draw<B: DrawingBackend>(area: DrawingArea<B, Shift>, panels: &[Panel]) -> Result<(), String> {
    static FONT_READY: Once = Once::new();
    // Compiled in, so that a machine without fonts draws the same picture. Registering a font that is
    // part of the program cannot fail; if it did, drawing text would say so.
    FONT_READY.call_once(|| {
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
    });
    let drawn = || -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let parts = area.split_evenly(grid(panels.len()));
        parts
            .iter()
            .zip(panels)
            .try_for_each(|(area, panel)| draw_panel(area, panel))
    };
    drawn()
        .and_then(|()| area.present())
        .map_err(|error| error.to_string())
}

fn draw_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let (x_scale, y_scale) = (panel.x_scale, panel.y_scale);
    let place = |&(x, y): &(f64, f64)| (x_scale.place(x), y_scale.place(y));
    let points = || panel.lines.iter().flat_map(|line| &line.points).map(place);
    let last = points().map(|p| p.0).fold(1.0, f64::max);
    let first = match x_scale {
        Scale::Linear => 0.0,
        _ => points().map(|p| p.0).fold(last - 1.0, f64::min),
    };
    let (low, high) = match panel.range {
        Some((low, high)) => (y_scale.place(low), y_scale.place(high)),
        None => {
            let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
            let high = points().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
            let margin = (0.05 * (high - low)).max(1e-6);
            let floor = if y_scale == Scale::Linear {
                0.0
            } else {
                f64::NEG_INFINITY
            };
            ((low - margin).max(floor), high + margin)
        }
    };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.caption, (FONT, 18))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d(first..last, low..high)?;
    chart.draw_series(panel.bands.iter().map(|&(from, to, color)| {
        let (from, to) = (x_scale.place(from), x_scale.place(to));
        Rectangle::new([(from, low), (to, high)], color.filled())
    }))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(228, 228, 228))
        .x_desc(&panel.x_name)
        .x_labels(6)
        .y_labels(8)
        .label_style((FONT, 13))
        .x_label_formatter(&|x| match x_scale {
            Scale::Linear => format!("{x:.0}"),
            scale => scale.label(*x, last - first),
        })
        .y_label_formatter(&|y| y_scale.label(*y, high - low))
        .draw()?;
    for line in &panel.lines {
        let style = ShapeStyle {
            color: line.color.to_rgba(),
            filled: true,
            stroke_width: 2,
        };
        chart
            .draw_series(LineSeries::new(line.points.iter().map(place), style))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        if line.points.len() == 1 || x_scale != Scale::Linear {
            let dots = line.points.iter().map(place);
            chart.draw_series(dots.map(|point| Circle::new(point, 3, style)))?;
        }
    }
    chart
        .configure_series_labels()
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .position(if panel.rising {
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

    fn panel(points: Vec<(f64, f64)>, scale: Scale) -> Panel {
        Panel {
            caption: "copy: loss (nats)".into(),
            x_name: "step".into(),
            x_scale: scale,
            y_scale: scale,
            range: None,
            rising: false,
            lines: vec![Line {
                name: "validation".into(),
                color: PALETTE[0],
                points,
            }],
            bands: Vec::new(),
        }
    }

    #[test]
    fn one_point_is_drawn_too() {
        let text = svg(&[panel(vec![(1.0, 2.0)], Scale::Linear)]).unwrap();
        assert!(text.contains("<circle"));
    }

    #[test]
    fn powers_of_two_are_labelled_as_such() {
        let text = svg(&[panel(vec![(32.0, 1.0), (1024.0, 4.0)], Scale::Binary)]).unwrap();
        assert!(text.contains("128") && text.contains("1024"));
    }

    #[test]
    fn pictures_have_text_without_any_font_installed() {
        let mut blank = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
        let area = BitMapBackend::with_buffer(&mut blank, SIZE).into_drawing_area();
        draw(area, &[panel(vec![(1.0, 2.0), (3.0, 1.0)], Scale::Linear)]).unwrap();
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
