//! The time that is left, and the table on its way to its file.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cubecl::client::Client;
use riverrun_kernels::gpu::take_fault;
use riverrun_kernels::tuned::{self, Table};

use super::TuneArgs;
use crate::commands::bench::report::{Report, bug};
use crate::failure::Failure;

/// One run of the command.
pub struct Session<'a> {
    pub client: &'a Client,
    pub report: Report,
    pub table: Table,
    /// Bytes of memory that were free at the start.
    pub free: u64,
    file: PathBuf,
    dry_run: bool,
    end: Instant,
    measured: usize,
    missed: Vec<String>,
}

/// The table of an earlier run, to go on with.
fn earlier(file: &Path, device: &str) -> Table {
    let table = Table::read(file).ok();
    let table = table.filter(|table| table.device() == device);
    table.unwrap_or_else(|| Table::new(device))
}

impl<'a> Session<'a> {
    /// With the table of an earlier run, and the time that begins now.
    pub fn new(args: &TuneArgs, client: &'a Client, report: Report) -> Result<Self, Failure> {
        let device = &client.properties().identity.name;
        let none = || Failure::User("there is no folder for the table: set HOME".into());
        let file = tuned::file(device).ok_or_else(none)?;
        Ok(Self {
            client,
            table: earlier(&file, device),
            free: riverrun::device::memory(&report.device).map_or(u64::MAX, |memory| memory.free),
            report,
            dry_run: args.dry_run,
            end: Instant::now() + Duration::from_secs_f64(args.budget),
            measured: 0,
            missed: Vec::new(),
            file,
        })
    }

    /// Whether the time is over.
    pub fn over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Notes a class that was not reached.
    pub fn miss(&mut self, class: impl Display) {
        self.missed.push(class.to_string());
    }

    /// Writes the table after a class was measured: a run that is interrupted keeps what it has found.
    pub fn keep(&mut self) -> Result<(), Failure> {
        // Refuses results after a wait that timed out.
        take_fault(self.client).map_err(bug)?;
        self.measured += 1;
        if self.dry_run {
            return Ok(());
        }
        let file = self.file.display();
        write(&self.file, &self.table.to_string())
            .map_err(|error| Failure::User(format!("cannot write {file}: {error}")))
    }

    /// Deletes the table.
    pub fn reset(mut self) -> Result<(), Failure> {
        let file = self.file.display();
        let done = match fs::remove_file(&self.file) {
            Ok(()) => format!("{file} deleted"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => format!("no table: {file}"),
            Err(error) => return Err(Failure::User(format!("cannot delete {file}: {error}"))),
        };
        self.report.line(done)
    }

    /// Says what was measured, and what was not.
    pub fn conclude(mut self, args: &TuneArgs) -> Result<(), Failure> {
        let (measured, entries) = (self.measured, self.table.len());
        if !self.missed.is_empty() {
            let (missed, budget) = (self.missed.join(", "), args.budget);
            let text = format!("not reached in {budget} s (--budget): {missed}");
            self.report.line(text)?;
        }
        let file = self.file.display();
        let done = match (self.dry_run, measured) {
            (true, _) => "nothing written".into(),
            (_, 0) => "nothing measured, nothing written".into(),
            _ => format!("{file}: {entries} entries, in use from the next run on"),
        };
        self.report
            .line(format!("classes measured: {measured}; {done}"))
    }
}

/// Another process may read it: the whole file is moved to its place.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut whole = tempfile::NamedTempFile::new_in(folder)?;
    whole.write_all(text.as_bytes())?;
    whole.persist(file).map(|_| ()).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_gone_on_with_on_its_own_card() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("of/a/card.tuning");
        assert_eq!(earlier(&file, "card"), Table::new("card"));
        let mut table = Table::new("card");
        let class = "raw f32 forward 512".parse().unwrap();
        table.set_scan(class, "1:64:4:2:1".parse().ok());
        for _ in 0..2 {
            write(&file, &table.to_string()).unwrap();
            assert_eq!(earlier(&file, "card").scan(class), table.scan(class));
        }
        assert_eq!(earlier(&file, "other"), Table::new("other"));
        fs::write(&file, "riverrun tuning 0").unwrap();
        assert_eq!(earlier(&file, "card"), Table::new("card"));
    }
}
