//! A row of named columns. The names head the table and are the keys of the file.

use std::fmt::Display;

use serde::{Serialize, Serializer};

use super::timing::Timing;

/// What a measurement found, column by column.
#[derive(Debug, Clone, Default)]
pub struct Row(Vec<Column>);

#[derive(Debug, Clone)]
struct Column {
    key: &'static str,
    style: Style,
    value: Value,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Count(Option<u64>),
    Number(Option<f64>),
    Flag(bool),
    Time(Option<Timing>),
    Json(serde_json::Value),
}

/// How a column is printed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Style {
    /// To the left, at least this wide.
    Text(usize),
    Count,
    /// With so many digits after the point.
    Number(usize),
    Scientific,
    Flag,
    Percent,
    Megabytes,
    /// A timing and its spread, in milliseconds or microseconds. A row whose timing is required and unsteady is refused; a
    /// timing that is not required is left out.
    Time {
        unit: Unit,
        required: bool,
    },
    /// The median alone, in milliseconds: a part of a timing, which need not be steady by itself.
    Part,
    /// In the file only.
    Hidden,
    /// On a line of its own below the row, where there is one.
    Note,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Milliseconds,
    Microseconds,
}

/// A printed piece of a line: head, text and least width.
pub(super) struct Piece {
    pub head: String,
    pub text: String,
    pub width: usize,
    pub left: bool,
}

impl Row {
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, key: &'static str, style: Style, value: Value) -> Self {
        self.0.push(Column { key, style, value });
        self
    }

    /// A name of up to eight characters.
    pub fn text(self, key: &'static str, value: impl Display) -> Self {
        self.wide(key, 8, value)
    }

    /// A longer name.
    pub fn wide(self, key: &'static str, width: usize, value: impl Display) -> Self {
        self.with(key, Style::Text(width), Value::Text(value.to_string()))
    }

    pub fn count(self, key: &'static str, value: impl Into<Option<usize>>) -> Self {
        let value = value.into().map(|count| count as u64);
        self.with(key, Style::Count, Value::Count(value))
    }

    /// Several counts, such as the sizes of a shape.
    pub fn counts<const N: usize>(self, keys: [&'static str; N], values: [usize; N]) -> Self {
        let both = keys.into_iter().zip(values);
        both.fold(self, |row, (key, value)| row.count(key, value))
    }

    /// A number with so many digits after the point.
    pub fn number(self, key: &'static str, digits: usize, value: impl Into<Option<f64>>) -> Self {
        self.with(key, Style::Number(digits), Value::Number(value.into()))
    }

    pub fn scientific(self, key: &'static str, value: f64) -> Self {
        self.with(key, Style::Scientific, Value::Number(Some(value)))
    }

    pub fn flag(self, key: &'static str, value: bool) -> Self {
        self.with(key, Style::Flag, Value::Flag(value))
    }

    /// A part of a whole.
    pub fn percent(self, key: &'static str, part: impl Into<Option<f64>>) -> Self {
        self.with(key, Style::Percent, Value::Number(part.into()))
    }

    /// Bytes, printed in megabytes.
    pub fn bytes(self, key: &'static str, bytes: impl Into<Option<u64>>) -> Self {
        self.with(key, Style::Megabytes, Value::Count(bytes.into()))
    }

    /// The timing of the row, in milliseconds: the row is refused if it is unsteady.
    pub fn ms(self, key: &'static str, time: Timing) -> Self {
        self.time(key, Unit::Milliseconds, true, Some(time))
    }

    /// The timing of the row, in microseconds.
    pub fn us(self, key: &'static str, time: Timing) -> Self {
        self.time(key, Unit::Microseconds, true, Some(time))
    }

    /// A timing beside that of the row, in milliseconds: left out if it is unsteady.
    pub fn beside_ms(self, key: &'static str, time: Option<Timing>) -> Self {
        self.time(key, Unit::Milliseconds, false, time)
    }

    /// A timing beside that of the row, in microseconds.
    pub fn beside_us(self, key: &'static str, time: Option<Timing>) -> Self {
        self.time(key, Unit::Microseconds, false, time)
    }

    fn time(self, key: &'static str, unit: Unit, required: bool, time: Option<Timing>) -> Self {
        self.with(key, Style::Time { unit, required }, Value::Time(time))
    }

    /// A part of the row's timing.
    pub fn part(self, key: &'static str, time: Timing) -> Self {
        self.with(key, Style::Part, Value::Time(Some(time)))
    }

    /// In the file, not in the table.
    pub fn hidden(self, key: &'static str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("plain data");
        self.with(key, Style::Hidden, Value::Json(value))
    }

    /// Text below the row, where there is any.
    pub fn note(self, key: &'static str, text: Option<String>) -> Self {
        self.with(key, Style::Note, Value::Json(text.into()))
    }

    /// Lines below the row that are not in the file.
    #[cfg(feature = "gpu")]
    pub fn below(self, lines: String) -> Self {
        self.with("", Style::Note, Value::Text(lines))
    }

    /// Bytes per second, and their part of the copy bandwidth.
    pub fn bandwidth(self, bytes: usize, seconds: f64, copy: f64) -> Self {
        let rate = bytes as f64 / seconds;
        self.number("gb_per_s", 0, rate / 1e9)
            .percent("of_copy", rate / copy)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        let column = self.0.iter().find(|column| column.key == key)?;
        Some(&column.value)
    }

    /// The text of a column.
    pub fn text_of(&self, key: &str) -> &str {
        match self.get(key) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// The number of a column.
    pub fn number_of(&self, key: &str) -> f64 {
        match self.get(key) {
            Some(Value::Count(Some(count))) => *count as f64,
            Some(Value::Number(Some(number))) => *number,
            _ => f64::NAN,
        }
    }

    /// The median of a timing, in seconds.
    pub fn seconds_of(&self, key: &str) -> f64 {
        match self.get(key) {
            Some(Value::Time(Some(time))) => time.median,
            _ => f64::NAN,
        }
    }

    /// What was measured: the columns before the first timing.
    pub(super) fn name(&self) -> String {
        let words = self.0.iter().map_while(|column| match &column.value {
            Value::Text(text) => Some(text.clone()),
            Value::Count(Some(count)) => Some(format!("{} {count}", column.key)),
            Value::Time(_) => None,
            _ => Some(String::new()),
        });
        let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
        words.join(" ")
    }

    /// Takes the unsteady timings out, and says whether one of them was required.
    pub(super) fn refuse(&mut self, mut say: impl FnMut(&str, &Timing)) -> bool {
        let mut refused = false;
        for Column { key, style, value } in &mut self.0 {
            if let (Style::Time { required, .. }, Value::Time(time)) = (style, value)
                && let Some(unsteady) = time.take_if(|time| !time.is_steady())
            {
                say(key, &unsteady);
                refused |= *required;
            }
        }
        refused
    }

    /// The pieces of the printed line.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        self.0.iter().flat_map(Column::pieces).collect()
    }

    /// The lines below it.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let notes = self.0.iter().filter(|column| column.style == Style::Note);
        notes.flat_map(|column| match &column.value {
            Value::Json(serde_json::Value::String(text)) => {
                vec![format!("  {}: {text}", head(column.key))]
            }
            Value::Text(lines) => lines.lines().map(str::to_string).collect(),
            _ => Vec::new(),
        })
    }
}

impl Column {
    fn pieces(&self) -> Vec<Piece> {
        let right = |head: String, width, text: Option<String>| Piece {
            head,
            text: text.unwrap_or_else(|| "-".into()),
            width,
            left: false,
        };
        let head = head(self.key);
        match (self.style, &self.value) {
            (Style::Text(width), Value::Text(text)) => vec![Piece {
                head,
                text: text.clone(),
                width,
                left: true,
            }],
            (Style::Count, Value::Count(n)) => vec![right(head, 5, n.map(|n| n.to_string()))],
            (Style::Megabytes, Value::Count(bytes)) => {
                let head = format!("{} MB", head.trim_end_matches(" bytes"));
                let text = bytes.map(|bytes| format!("{:.3}", bytes as f64 / 1e6));
                vec![right(head, 9, text)]
            }
            (Style::Number(digits), Value::Number(x)) => {
                vec![right(head, 8, x.map(|x| format!("{x:.digits$}")))]
            }
            (Style::Scientific, Value::Number(x)) => {
                vec![right(head, 8, x.map(|x| format!("{x:.2e}")))]
            }
            (Style::Flag, Value::Flag(flag)) => {
                let text = if *flag { "yes" } else { "no" };
                vec![right(head, 5, Some(text.into()))]
            }
            (Style::Percent, Value::Number(x)) => {
                vec![right(head, 7, x.map(|x| format!("{:.1}%", 100.0 * x)))]
            }
            (Style::Time { unit, .. }, Value::Time(time)) => {
                let (scale, name, digits) = match unit {
                    Unit::Milliseconds => (1e3, "ms", 4),
                    Unit::Microseconds => (1e6, "µs", 3),
                };
                let head = format!("{} {name}", if head == "time" { "median" } else { &head });
                let median = time.map(|time| format!("{:.digits$}", time.median * scale));
                let spread = time.map(|time| format!("{:.1}%", 100.0 * time.spread()));
                vec![right(head, 11, median), right("±".into(), 6, spread)]
            }
            (Style::Part, Value::Time(time)) => {
                let median = time.map(|time| format!("{:.2}", time.median * 1e3));
                vec![right(format!("{head} ms"), 8, median)]
            }
            _ => Vec::new(),
        }
    }
}

/// A key as the head of a column.
fn head(key: &str) -> String {
    let units = [
        ("gb_per_s", "GB/s"),
        ("gflops", "GFLOP/s"),
        ("tflop_per_s", "TFLOP/s"),
    ];
    match units.into_iter().find(|(known, _)| *known == key) {
        Some((_, head)) => head.into(),
        None => key.replace("_per_", "/").replace('_', " "),
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = self.0.iter().filter(|column| !column.key.is_empty());
        serializer.collect_map(columns.map(|column| (column.key, &column.value)))
    }
}
