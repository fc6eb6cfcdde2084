//! What the ranks behind the first write, line by line behind their rank.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{ChildStderr, ChildStdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A longer line is cut.
const LONGEST: u64 = 64 << 10;
/// After the end of all ranks: how long to wait for the last lines. Somebody else may have inherited a pipe.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The threads that copy the output of ranks.
pub(super) struct Prefixed {
    /// Dropped by every thread at its end; nothing is sent.
    open: Option<Sender<()>>,
    closed: Receiver<()>,
}

impl Default for Prefixed {
    fn default() -> Self {
        let (open, closed) = channel();
        Self {
            open: Some(open),
            closed,
        }
    }
}

impl Prefixed {
    pub(super) fn follow(
        &mut self,
        rank: usize,
        out: Option<ChildStdout>,
        err: Option<ChildStderr>,
    ) -> io::Result<()> {
        let spawn = |work: Box<dyn FnOnce() + Send>| {
            let open = self.open.clone();
            let builder = std::thread::Builder::new().name("launch-output".into());
            builder.spawn(move || {
                work();
                drop(open);
            })
        };
        if let Some(out) = out {
            spawn(Box::new(move || {
                copy(rank, out, |line| io::stdout().write_all(line))
            }))?;
        }
        if let Some(err) = err {
            spawn(Box::new(move || {
                copy(rank, err, |line| io::stderr().write_all(line))
            }))?;
        }
        Ok(())
    }

    /// Waits for the last lines.
    pub(super) fn finish(mut self) {
        self.open = None;
        let _ = self.closed.recv_timeout(LAST_LINES);
        let _ = io::stdout().flush();
    }
}

/// Copies lines; whatever happens to the other end, the pipe is read to its end, so that the rank does not wait.
fn copy(rank: usize, pipe: impl Read, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = format!("[{rank}] ").into_bytes();
        match (&mut pipe).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let _ = write(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_get_their_rank() {
        let mut all = Vec::new();
        copy(3, &b"one\n\ntwo \xff"[..], |line| {
            all.extend_from_slice(line);
            Ok(())
        });
        assert_eq!(all, b"[3] one\n[3] \n[3] two \xff\n");
        // A line without end is cut; a write that fails does not stop it.
        let mut lines = 0;
        copy(3, io::repeat(b'x').take(2 * LONGEST + 1), |_| {
            lines += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        });
        assert_eq!(lines, 3);
    }
}
