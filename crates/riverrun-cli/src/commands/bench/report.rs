//! What a measurement finds on a device: tables that are printed row by row, and the file of `--json`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::Device;
use riverrun::device;
use riverrun_testkit::check::Comparison;
use riverrun_train::chart::{self, Panel};
use serde::Serialize;

use super::Common;
use super::row::{Piece, Row};
use super::timing::{Timing, repeat, wall};
use crate::commands::memory::MemoryUse;
use crate::failure::Failure;
use crate::origin::Origin;
use riverrun_testkit::Storage;

/// The device of a measurement, and what was found there so far.
pub struct Report {
    pub device: Device,
    pub origin: Origin,
    /// Bytes per second of a copy, read plus written, once [`measure_copy`](Self::measure_copy) has measured it.
    pub copy: f64,
    common: Common,
    files: Vec<PathBuf>,
    echo: Option<File>,
    headed: bool,
    facts: BTreeMap<&'static str, serde_json::Value>,
    tables: Vec<Table>,
    refused: Vec<String>,
}

#[derive(Default)]
struct Table {
    name: &'static str,
    rows: Vec<Row>,
    widths: Vec<usize>,
}

/// The passes of an operation.
pub const PASSES: [&str; 2] = ["forward", "backward"];

/// The file of `--json`.
#[derive(Serialize)]
struct Contents<'a> {
    #[serde(flatten)]
    origin: &'a Origin,
    #[serde(flatten)]
    facts: &'a BTreeMap<&'static str, serde_json::Value>,
    #[serde(flatten)]
    tables: BTreeMap<&'static str, &'a [Row]>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
}

impl Report {
    /// On the requested device.
    pub fn new(common: &Common) -> Result<Self, Failure> {
        let device = device::parse(&common.device)?;
        let info = device::info(&device);
        Ok(Self {
            origin: Origin::new(&info.spec, &info.name()),
            device,
            copy: f64::NAN,
            common: common.clone(),
            files: common.json.iter().cloned().collect(),
            echo: None,
            headed: false,
            facts: BTreeMap::new(),
            tables: Vec::new(),
            refused: Vec::new(),
        })
    }

    pub fn is_cpu(&self) -> bool {
        self.origin.device == "cpu"
    }

    /// The client that launches kernels; `None` on the CPU. Refuses a device whose kernels this build cannot launch, instead of
    /// measuring the CPU.
    #[cfg(feature = "gpu")]
    pub fn client(&self) -> Result<Option<cubecl::client::Client>, Failure> {
        let client = device::client(&self.device);
        match client.is_some() {
            true => Ok(client),
            false => self.cpu_only().map(|()| None),
        }
    }

    /// Refuses other devices than the CPU.
    pub fn cpu_only(&self) -> Result<(), Failure> {
        match self.is_cpu() {
            true => Ok(()),
            false => Err(Failure::User(format!(
                "{} cannot be measured: this build has no kernels for it",
                self.origin.device
            ))),
        }
    }

    /// The requested storage types, or those of `default` that the device has; `f32` on the CPU and without any.
    pub fn dtypes(&self, asked: &[Storage], default: &[Storage]) -> Result<Vec<Storage>, Failure> {
        let has = |&storage: &Storage| {
            let on_gpu = || device::supports(&self.device, storage.dtype());
            self.is_cpu() || storage != Storage::F64 && on_gpu()
        };
        if let Some(missing) = asked.iter().find(|storage| !has(storage)) {
            let reason = format!("this device has no {}", missing.name());
            return Err(Failure::User(reason));
        }
        let wanted = match asked {
            [] if self.is_cpu() => &[],
            [] => default,
            asked => asked,
        };
        let there: Vec<Storage> = wanted.iter().copied().filter(has).collect();
        Ok(match there.is_empty() {
            true => vec![Storage::F32],
            false => there,
        })
    }

    /// Refuses other types than f32 on the CPU.
    pub fn f32_on_cpu(&self, asked: &[Storage]) -> Result<(), Failure> {
        match asked.iter().all(|&storage| storage == Storage::F32) {
            true => self.cpu_only(),
            false => Err(Failure::User("on the CPU this command measures f32".into())),
        }
    }

    /// Refuses a measurement on the CPU for which there is not enough memory.
    pub fn fits_memory(&self, what: impl Display, bytes: usize) -> Result<(), Failure> {
        let free = device::memory(&self.device).map(|memory| memory.free);
        match free.filter(|&free| self.is_cpu() && bytes as u64 > free) {
            None => Ok(()),
            Some(free) => Err(Failure::User(format!(
                "{what} needs {:.1} GB of memory, and {:.1} GB are available",
                bytes as f64 / 1e9,
                free as f64 / 1e9
            ))),
        }
    }

    /// Measures the copy bandwidth, to compare with.
    pub fn measure_copy(&mut self) -> Result<(), Failure> {
        #[cfg(feature = "gpu")]
        let client = self.client()?;
        #[cfg(not(feature = "gpu"))]
        let client = self.cpu_only().map(|()| None::<()>)?;
        self.copy = match client {
            #[cfg(feature = "gpu")]
            Some(client) => super::gpu::copy(&client, &self.origin),
            _ => super::cpu::copy(),
        };
        self.fact("copy_gb_per_s", self.copy / 1e9);
        let rate = self.copy / 1e9;
        self.line(format!(
            "copy {rate:.0} GB/s (bytes read plus bytes written)"
        ))
    }

    /// The time of each measurement: that of `--budget`, or else the default.
    pub fn budget(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(self.common.budget.unwrap_or(seconds))
    }

    /// Times a call on the host, for a default budget in seconds.
    pub fn time(&self, budget: f64, mut call: impl FnMut()) -> Timing {
        repeat(self.budget(budget), || wall(&mut call))
    }

    /// Times a call that may fail, after it has succeeded once.
    pub fn time_call<E: Display>(
        &self,
        budget: f64,
        mut call: impl FnMut() -> Result<(), E>,
    ) -> Result<Timing, Failure> {
        call().map_err(bug)?;
        Ok(self.time(budget, || {
            if let Err(error) = call() {
                panic!("it worked before: {error}");
            }
        }))
    }

    /// Times a call on a GPU by the device's clock, after it has succeeded once.
    #[cfg(feature = "gpu")]
    pub fn device_time<E: Display>(
        &self,
        client: &cubecl::client::Client,
        budget: f64,
        call: impl Fn() -> Result<(), E> + Send + Sync,
    ) -> Result<Timing, Failure> {
        call().map_err(user)?;
        Ok(super::gpu::device_time(client, self.budget(budget), || {
            if let Err(error) = call() {
                panic!("it worked before: {error}");
            }
        }))
    }

    /// A line of text, the first under the command, the commit and the machine.
    pub fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.headed, true) {
            self.line(self.origin.heading())?;
        }
        let mut out = stdout();
        writeln!(out, "{text}")?;
        // What follows may take a while.
        out.flush()?;
        if let Some(file) = &mut self.echo {
            writeln!(file, "{text}")?;
        }
        Ok(())
    }

    /// Writes the lines that follow into this file too.
    pub fn echo(&mut self, path: &Path) -> Result<(), Failure> {
        let file = File::create(path);
        let failed = |error| Failure::User(format!("{}: {error}", path.display()));
        self.echo = Some(file.map_err(failed)?);
        Ok(())
    }

    /// Writes what is in the file of `--json` into this one too.
    pub fn also_write(&mut self, path: PathBuf) {
        self.files.push(path);
    }

    /// Writes charts into a folder as `name.svg` and `name.png`, and what is in the file of `--json` as `name.json` beside them.
    pub fn draw(&mut self, folder: &Path, name: &str, panels: &[Panel]) -> Result<(), Failure> {
        let path = folder.join(name);
        let failed = |error: String| user(format!("{}: {error}", path.display()));
        std::fs::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
        let svg = chart::svg(panels).map_err(bug)?;
        std::fs::write(path.with_extension("svg"), svg)
            .map_err(|error| failed(error.to_string()))?;
        chart::png(panels, &path.with_extension("png")).map_err(failed)?;
        self.also_write(path.with_extension("json"));
        let files = path.with_extension("{json,svg,png}");
        self.line(format!("report  {}", files.display()))
    }

    /// Something for the file that is in no table.
    pub fn fact(&mut self, key: &'static str, value: impl Serialize) {
        let value = serde_json::to_value(value).expect("plain data");
        self.facts.insert(key, value);
    }

    /// The same, at the end of a list.
    pub fn push(&mut self, key: &'static str, value: impl Serialize) {
        let list = self
            .facts
            .entry(key)
            .or_insert_with(|| serde_json::json!([]));
        if let (Some(list), Ok(value)) = (list.as_array_mut(), serde_json::to_value(value)) {
            list.push(value);
        }
    }

    /// Says that something was not measured, in the file too.
    #[cfg(feature = "gpu")]
    pub fn skip(&mut self, reason: impl Display) -> Result<(), Failure> {
        self.push("skipped", reason.to_string());
        self.line(format!("skipped: {reason}"))
    }

    /// Begins another table than `rows`.
    pub fn table(&mut self, name: &'static str) {
        self.tables.push(Table {
            name,
            ..Table::default()
        });
    }

    /// The rows of the last table.
    pub fn rows(&self) -> &[Row] {
        self.tables.last().map_or(&[], |table| &table.rows)
    }

    /// Prints and keeps a row, unless its timing is unsteady: then some calls did less work than others.
    pub fn add(&mut self, mut row: Row) -> Result<(), Failure> {
        let (name, refused) = (row.name(), &mut self.refused);
        let unsteady = row.refuse(|key, timing| {
            let name = format!("{name}: {key}");
            eprintln!(
                "refused, unsteady: {name} (20th percentile {:.3} ms, median {:.3} ms, {} timings)",
                timing.low * 1e3,
                timing.median * 1e3,
                timing.samples
            );
            refused.push(name);
        });
        if unsteady {
            return Ok(());
        }
        if self.tables.is_empty() {
            self.table("rows");
        }
        let Some(table) = self.tables.last_mut() else {
            return Ok(());
        };
        let pieces = row.pieces();
        let mut lines = Vec::new();
        if table.widths.is_empty() {
            let width = |text: &str| text.chars().count();
            let of = |piece: &Piece| width(&piece.head).max(width(&piece.text)).max(piece.width);
            table.widths = pieces.iter().map(of).collect();
            let heads = pieces.iter().map(|piece| (piece.head.as_str(), piece.left));
            lines.push(line(heads, &table.widths));
        }
        let texts = pieces.iter().map(|piece| (piece.text.as_str(), piece.left));
        lines.push(line(texts, &table.widths));
        lines.extend(row.notes());
        table.rows.push(row);
        lines.into_iter().try_for_each(|line| self.line(line))
    }

    /// Adds the rows of a forward and a backward pass with the bytes that they move.
    pub fn add_passes(
        &mut self,
        row: Row,
        times: [Timing; 2],
        bytes: [usize; 2],
    ) -> Result<(), Failure> {
        for (pass, (time, bytes)) in PASSES.into_iter().zip(times.into_iter().zip(bytes)) {
            let row = row.clone().text("pass", pass).ms("time", time);
            self.add(row.bandwidth(bytes, time.median, self.copy))?;
        }
        Ok(())
    }

    /// Writes the file of `--json`, and says the memory if that is wanted.
    pub fn end(mut self) -> Result<(), Failure> {
        if self.tables.is_empty() {
            self.table("rows");
        }
        let tables = self
            .tables
            .iter()
            .map(|table| (table.name, &table.rows[..]));
        let contents = Contents {
            origin: &self.origin,
            facts: &self.facts,
            tables: tables.collect(),
            refused: &self.refused,
        };
        for path in &self.files {
            crate::commands::write_json(path, &contents)?;
        }
        match self.common.memory {
            true => MemoryUse::of(&self.device).print(&mut stdout()),
            false => Ok(()),
        }
    }
}

/// Columns in their widths.
fn line<'a>(columns: impl Iterator<Item = (&'a str, bool)>, widths: &[usize]) -> String {
    let mut line = String::new();
    for ((text, left), width) in columns.zip(widths) {
        let _ = match left {
            true => write!(line, "{text:<width$} "),
            false => write!(line, "{text:>width$} "),
        };
    }
    line.trim_end().to_string()
}

/// An error if a result is wrong: then it is not timed.
pub fn right(what: impl Display, verdicts: &[Comparison]) -> Result<(), Failure> {
    match verdicts.iter().find(|verdict| !verdict.passes()) {
        Some(wrong) => Err(Failure::Bug(format!(
            "not timed, because it is wrong: {what}, {} off by {:e}, allowed {:e}",
            wrong.tensor, wrong.error, wrong.allowed
        ))),
        None => Ok(()),
    }
}

pub fn bug(error: impl Display) -> Failure {
    Failure::Bug(error.to_string())
}

pub fn user(error: impl Display) -> Failure {
    Failure::User(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_did_nothing_refuse_a_row() {
        let mut report = Report::new(&Common::on("cpu")).unwrap();
        let steady = Timing::of(vec![1.0; 7]);
        let unsteady = Timing::of([vec![1.0; 7], vec![0.06; 3]].concat());
        let row = |time, beside| {
            Row::new()
                .text("pass", "forward")
                .count("steps", 3)
                .ms("time", time)
                .beside_us("other", beside)
        };
        report.add(row(unsteady, None)).unwrap();
        assert!(report.rows().is_empty());
        report.add(row(steady, Some(unsteady))).unwrap();
        let json = serde_json::to_value(&report.rows()[0]).unwrap();
        assert_eq!(json["time"]["median"], 1.0);
        assert_eq!((&json["other"], &json["steps"]), (&().into(), &3.into()));
        assert_eq!(
            report.refused,
            ["forward steps 3: time", "forward steps 3: other"]
        );
    }

    #[test]
    fn columns_stand_below_their_heads() {
        let columns = [("a", true), ("b", false)];
        assert_eq!(line(columns.into_iter(), &[3, 4]), "a      b");
    }
}
