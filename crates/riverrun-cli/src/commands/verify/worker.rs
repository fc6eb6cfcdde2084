//! A process that checks parts one after another: a device is opened once for many of them, and a fault ends no more than the
//! part that it is in.

use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use riverrun::device;
use riverrun_testkit::{Part, Storage, Target};
use serde::{Deserialize, Serialize};

use super::table::{Line, Table};
use super::{operations, target};
use crate::failure::Failure;

/// The time limit of a part.
const LIMIT: Duration = Duration::from_secs(600);
/// The time limit with large problems, whose oracle is slow.
const LONG_LIMIT: Duration = Duration::from_secs(3600);

/// The line that ends the rows of a part.
const END: &str = "end";

/// A part as a line of a process's input.
#[derive(Serialize, Deserialize)]
struct Request {
    device: String,
    op: String,
    form: String,
    storage: String,
    long: bool,
}

/// Checks the parts that standard input asks for, to its end.
pub(super) fn serve() -> Result<(), Failure> {
    let mut opened: Option<Target> = None;
    for line in stdin().lines() {
        let line = line?;
        let request: Request =
            serde_json::from_str(&line).map_err(|error| Failure::Bug(error.to_string()))?;
        let target = match opened.take().filter(|target| target.name == request.device) {
            Some(target) => target,
            None => target(device::info(&device::parse(&request.device)?))?,
        };
        let operation = operations().find(|operation| operation.name == request.op);
        let forms = operation.map(|operation| (operation.forms)(&target));
        let form = forms.and_then(|forms| forms.into_iter().find(|form| **form == request.form));
        let storage = Storage::from_str(&request.storage, false).ok();
        let (Some(operation), Some(form), Some(storage)) = (operation, form, storage) else {
            return Err(Failure::Bug(format!("no such part: {line}")));
        };
        let part = Part {
            target: &target,
            operation,
            storage,
            form,
            long: request.long,
        };
        let mut table = Table::new(true)?;
        if let Err(error) = table.check(&part) {
            table.line(Line::failed(&part, error.to_string()))?;
        }
        // Other processes use the device too.
        #[cfg(feature = "gpu")]
        if let Some(client) = &target.client {
            let _ = client.memory_cleanup();
        }
        writeln!(stdout(), "{END}")?;
        opened = Some(target);
    }
    Ok(())
}

/// Such a process. It is killed with this value.
pub(super) struct Worker {
    child: Child,
    /// `None` once it is to end.
    input: Option<ChildStdin>,
    rows: Receiver<String>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Worker {
    /// # Errors
    /// A process that cannot be started.
    pub fn start() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["verify", "--worker"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(out), Some(err)) = pipes else {
            return Err("a process without pipes".into());
        };
        let (send, rows) = channel();
        lines_of(out, move |line| {
            // Nobody waits for a process that was given up.
            let _ = send.send(line);
        });
        let said = Arc::<Mutex<Vec<String>>>::default();
        let heard = said.clone();
        lines_of(err, move |line| {
            heard
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(line);
        });
        Ok(Self {
            child,
            input: Some(input),
            rows,
            said,
        })
    }

    /// The rows of a part; a failure at their end where there was one, after which the process is of no use.
    pub fn run(&mut self, part: &Part<'_>) -> Vec<Line> {
        let mut lines = Vec::new();
        let fault = match self.ask(part, &mut lines) {
            Ok(()) if lines.is_empty() => Some("nothing was checked".to_string()),
            Ok(()) => None,
            Err(reason) => Some(reason),
        };
        lines.extend(fault.map(|reason| Line::failed(part, reason)));
        lines
    }

    fn ask(&mut self, part: &Part<'_>, lines: &mut Vec<Line>) -> Result<(), String> {
        let request = Request {
            device: part.device().into(),
            op: part.operation.name.into(),
            form: part.form.into(),
            storage: part.storage.name().into(),
            long: part.long,
        };
        let request = serde_json::to_string(&request).map_err(|error| error.to_string())?;
        // A process that is gone says so below.
        let _ = self
            .input
            .as_mut()
            .map(|input| writeln!(input, "{request}"));
        let limit = if part.long { LONG_LIMIT } else { LIMIT };
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.rows.recv_timeout(left) {
                Ok(line) if line == END => return Ok(()),
                Ok(line) if line.starts_with('{') => {
                    let line = serde_json::from_str(&line);
                    lines
                        .push(line.map_err(|error| format!("its report cannot be read: {error}"))?);
                }
                // A driver may print there too.
                Ok(line) => self.say(line),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("not done after {} s", limit.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.fault()),
            }
        }
    }

    /// Waits for the process to end by itself: it keeps the kernels that it has compiled.
    pub fn end(mut self) {
        self.input = None;
        let _ = self.child.wait();
    }

    fn say(&self, line: String) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(line);
    }

    /// What the process has printed on standard error since the last call.
    pub fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why the process has ended: the last line that it printed; after a panic its place and message, which tell more.
    fn fault(&mut self) -> String {
        let status = self.child.wait();
        // Its last lines are on their way.
        thread::sleep(Duration::from_millis(50));
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let last = match said.iter().position(|line| line.contains(" panicked at ")) {
            Some(at) => said[at..]
                .iter()
                .take(2)
                .cloned()
                .collect::<Vec<_>>()
                .join(" "),
            None => said.last().map_or("no reason given", String::as_str).into(),
        };
        match status {
            Ok(status) if status.code().is_some() => last,
            Ok(status) => format!("{status}: {last}"),
            Err(error) => format!("{error}: {last}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hands the lines of a stream on, to its end, beside the process.
fn lines_of(stream: impl Read + Send + 'static, mut take: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            take(line);
        }
    });
}
