//! Starts the ranks of a world on this machine.
//!
//! Every rank is a process group of its own, so that a Ctrl-C in the terminal reaches it once, from here, and that nothing
//! which it started stays behind.

mod output;
mod signals;

use crate::token::{self, Token};
use crate::wire;
use crate::{Error, Result};
use signals::Signals;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The variable by which a launched process knows its rank.
const RANK: &str = "RIVERRUN_RANK";
/// After a rank has failed: the time in which the others may report it and exit by themselves.
const BY_THEMSELVES: Duration = Duration::from_secs(1);
/// How often the launcher checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// A program to be started several times, as the ranks of one world.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The number of ranks.
    pub processes: usize,
    /// The program.
    pub program: OsString,
    /// Its arguments, the same for all ranks.
    pub arguments: Vec<OsString>,
    /// From SIGTERM, or the signal that is passed on, to SIGKILL. 15 seconds.
    pub grace: Duration,
}

/// A rank that was started.
struct Rank {
    child: Child,
    status: Option<ExitStatus>,
}

impl Rank {
    /// Signals the rank's whole group.
    fn signal(&self, signal: libc::c_int) {
        if self.status.is_none() {
            // SAFETY: two numbers. The child has not been waited for, so that its number still names its group.
            unsafe { libc::kill(-(self.child.id() as libc::pid_t), signal) };
        }
    }

    /// Takes its status, and ends what it has left behind.
    fn reap(&mut self) {
        self.signal(libc::SIGKILL);
        self.status = self.child.wait().ok();
    }
}

/// All that were started; none outlives this.
struct Ranks(Vec<Rank>);

impl Ranks {
    fn signal(&self, signal: libc::c_int) {
        self.0.iter().for_each(|rank| rank.signal(signal));
    }

    fn all_ended(&self) -> bool {
        self.0.iter().all(|rank| rank.status.is_some())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.0
            .iter_mut()
            .filter(|rank| rank.status.is_none())
            .for_each(Rank::reap);
    }
}

/// The rank that failed first.
struct Blame {
    rank: usize,
    status: ExitStatus,
}

impl Blame {
    /// How likely a rank failed by itself: a rank that exits because another failed has exit code 1.
    fn weight(status: ExitStatus) -> usize {
        match (status.signal(), status.code()) {
            (Some(_), _) => 2,
            (None, Some(1)) => 0,
            _ => 1,
        }
    }

    fn error(&self) -> Error {
        let how = match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => format!("was ended by signal {signal}"),
            (None, code) => format!("ended with exit code {}", code.unwrap_or(1)),
        };
        Error::Rank {
            rank: self.rank,
            how,
        }
    }
}

impl Launch {
    /// Creates a launch of `processes` ranks of a program.
    pub fn new(processes: usize, program: impl Into<OsString>) -> Self {
        Self {
            processes,
            program: program.into(),
            arguments: Vec::new(),
            grace: Duration::from_secs(15),
        }
    }

    /// Appends arguments of the program.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Starts the ranks and waits until all have ended; none outlives the call, nor, on Linux, this process.
    ///
    /// The ranks get a port that was free, a name of the run and a random token. Rank 0 writes to the output and the errors of
    /// this process as they are, the others line by line behind their rank: `[1] …`. The first SIGINT, SIGTERM or SIGHUP is
    /// passed on, so that the ranks may end in order; a second one kills them. After a rank has ended with an error, the others
    /// get SIGTERM a second later.
    ///
    /// # Errors
    ///
    /// - [`Error::Launch`]: a process could not be started, and none runs; or this process was launched itself.
    /// - [`Error::Rank`]: a rank ended with an error; it is the one that was first to.
    /// - [`Error::Interrupted`]: a signal came, and not all ranks ended well.
    pub fn run(&self) -> Result<()> {
        let signals = Signals::catch()?;
        let (tell, ended) = channel();
        let mut output = output::Prefixed::default();
        let mut ranks = self.start(&tell, &mut output)?;
        let result = self.attend(&mut ranks, &ended, &signals);
        drop(ranks);
        output.finish();
        result
    }

    fn start(&self, tell: &Sender<usize>, output: &mut output::Prefixed) -> Result<Ranks> {
        let cannot = |what: &str, e: std::io::Error| Error::Launch(format!("cannot {what}: {e}"));
        if self.processes == 0 {
            return Err(Error::Launch("a world has at least one process".into()));
        }
        // A program that launches itself would never stop.
        if let Ok(rank) = std::env::var(RANK) {
            let text = format!("{RANK}={rank}: this process was launched itself");
            return Err(Error::Launch(text));
        }
        let port = free_port().map_err(|e| cannot("find a free port", e))?;
        let random = || token::random_text().map_err(|e| cannot("make a random token", e));
        let (secret, run) = (random()?, random()?);
        let here = std::process::id();
        let mut ranks = Ranks(Vec::new());
        for rank in 0..self.processes {
            let mut command = Command::new(&self.program);
            command
                .args(&self.arguments)
                .stdin(Stdio::null())
                .process_group(0);
            for (name, value) in [
                ("RIVERRUN_LAUNCHER", "riverrun"),
                (RANK, &rank.to_string()),
                ("RIVERRUN_LOCAL_RANK", &rank.to_string()),
                ("RIVERRUN_WORLD_SIZE", &self.processes.to_string()),
                ("RIVERRUN_LOCAL_WORLD_SIZE", &self.processes.to_string()),
                ("RIVERRUN_ADDRESS", "127.0.0.1"),
                ("RIVERRUN_PORT", &port.to_string()),
                ("RIVERRUN_RUN_ID", &run[..16]),
                (Token::VARIABLE, &secret),
            ] {
                command.env(name, value);
            }
            if rank > 0 {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            // SAFETY: it only makes system calls, which are allowed between fork and exec.
            unsafe { command.pre_exec(move || end_with_parent(here)) };
            let program = self.program.to_string_lossy();
            let mut child = command
                .spawn()
                .map_err(|e| cannot(&format!("start {program}"), e))?;
            let (out, err) = (child.stdout.take(), child.stderr.take());
            let id = child.id();
            ranks.0.push(Rank {
                child,
                status: None,
            });
            output
                .follow(rank, out, err)
                .map_err(|e| cannot("start a thread", e))?;
            let tell = tell.clone();
            let watch = move || {
                wait_for_end(id);
                let _ = tell.send(rank);
            };
            let builder = std::thread::Builder::new().name("launch-wait".into());
            builder
                .spawn(watch)
                .map_err(|e| cannot("start a thread", e))?;
        }
        Ok(ranks)
    }

    fn attend(&self, ranks: &mut Ranks, ended: &Receiver<usize>, signals: &Signals) -> Result<()> {
        let mut blame: Option<Blame> = None;
        let mut interrupted = None;
        // When the ranks are told to end, and when they are ended.
        let (mut term, mut kill): (Option<Instant>, Option<Instant>) = (None, None);
        while !ranks.all_ended() {
            match ended.recv_timeout(LOOK) {
                Ok(rank) => {
                    ranks.0[rank].reap();
                    let failed = ranks.0[rank].status.filter(|s| !s.success());
                    // After a signal from here, their ends are not their own.
                    if let Some(status) = failed.filter(|_| kill.is_none()) {
                        term.get_or_insert(wire::after(BY_THEMSELVES));
                        if blame
                            .as_ref()
                            .is_none_or(|b| Blame::weight(b.status) < Blame::weight(status))
                        {
                            blame = Some(Blame { rank, status });
                        }
                    } else if failed.is_some() && interrupted.is_some() && blame.is_none() {
                        blame = failed.map(|status| Blame { rank, status });
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Launch("a thread has ended".into()));
                }
            }
            if let Some((signal, name)) = signals.next() {
                if interrupted.is_none() {
                    interrupted = Some(name);
                    ranks.signal(signal);
                    kill.get_or_insert(wire::after(self.grace));
                } else {
                    ranks.signal(libc::SIGKILL);
                }
            }
            let now = Instant::now();
            if term.is_some_and(|at| now >= at) && kill.is_none() {
                ranks.signal(libc::SIGTERM);
                kill = Some(wire::after(self.grace));
            }
            if kill.is_some_and(|at| now >= at) {
                ranks.signal(libc::SIGKILL);
            }
        }
        match (blame, interrupted) {
            (Some(_), Some(name)) => Err(Error::Interrupted(name)),
            (Some(blame), None) => Err(blame.error()),
            (None, _) => Ok(()),
        }
    }
}

/// A port that was free, with room for those behind it.
fn free_port() -> std::io::Result<u16> {
    loop {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?
            .local_addr()?
            .port();
        if port < u16::MAX - crate::environment::PORTS {
            return Ok(port);
        }
    }
}

/// In the new process: it is killed when the launcher's thread ends, however that comes.
fn end_with_parent(parent: u32) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: system calls with numbers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // The parent may have ended before that.
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = parent;
    Ok(())
}

/// Waits until a child has ended, and leaves its status to be taken: until then its number is not given away.
fn wait_for_end(id: u32) {
    loop {
        // SAFETY: the pointer is that of a structure that lives during the call; zeros are a value of it.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, id, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        let interrupted = std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        if waited == 0 || !interrupted {
            return;
        }
    }
}
