//! Starts ranks, waits for their ends within bounds, and reads what they said.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// No test waits longer for anything.
pub const LIMIT: Duration = Duration::from_secs(40);

/// The first of 16 unused ports, below the ephemeral range and different for every process.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let number =
            std::process::id().wrapping_mul(37) as u16 % 400 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + number % 1200 * 16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A world that is to be: what its ranks have in common.
#[derive(Clone)]
pub struct Plan {
    pub size: usize,
    pub port: u16,
    pub role: &'static str,
    pub variables: Vec<(String, String)>,
}

impl Plan {
    pub fn new(role: &'static str, size: usize) -> Self {
        Self {
            size,
            port: port(),
            role,
            variables: Vec::new(),
        }
        .set("RIVERRUN_WORLD_TOKEN", "a secret of all")
    }

    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.into(), value.to_string()));
        self
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// A command of this test binary in this role, without the variables of a rank.
    pub fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture"])
            .env_clear()
            .env("WORLD_ROLE", self.role);
        command.envs(self.variables.iter().map(|(n, v)| (n, v)));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A shell that runs the tests in the background has them ignore SIGINT, and their children with them.
        #[cfg(unix)]
        // SAFETY: `signal` may be called between fork and exec.
        unsafe {
            use std::os::unix::process::CommandExt;
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        command
    }

    pub fn start(&self, rank: usize) -> Process {
        let number = |n: usize| n.to_string();
        let mut command = self.command();
        command
            .env("RANK", number(rank))
            .env("LOCAL_RANK", number(rank))
            .env("WORLD_SIZE", number(self.size))
            .env("LOCAL_WORLD_SIZE", number(self.size))
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", number(usize::from(self.port) - 1))
            .env("TORCHELASTIC_RUN_ID", format!("test {}", self.port));
        Process::start(command)
    }

    pub fn start_all(&self) -> Vec<Process> {
        (0..self.size).map(|rank| self.start(rank)).collect()
    }

    /// Starts all ranks, of which each must end well.
    pub fn succeeds(&self) {
        for process in self.start_all() {
            process.end().succeeded();
        }
    }

    /// A connection to rank 0, once it listens.
    pub fn stranger(&self) -> TcpStream {
        let until = Instant::now() + LIMIT;
        loop {
            match TcpStream::connect(self.address()) {
                // Not with oneself, which loopback allows while nobody listens.
                Ok(s) if s.local_addr().unwrap() != self.address() => return s,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(Instant::now() < until, "rank 0 does not listen");
        }
    }
}

/// Waits until `done`, which must be within the limit.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is killed when it is dropped.
pub struct Process {
    child: Child,
    readers: Vec<std::thread::JoinHandle<String>>,
}

/// How a process ended, and what it wrote.
pub struct End {
    pub status: ExitStatus,
    pub text: String,
}

impl Process {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("this test binary");
        fn reader(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        }
        let readers = vec![
            reader(child.stdout.take().unwrap()),
            reader(child.stderr.take().unwrap()),
        ];
        Self { child, readers }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so that its number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it has ended; it must within the limit.
    #[track_caller]
    pub fn end(mut self) -> End {
        let until = Instant::now() + LIMIT;
        while !self.has_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let hangs = !self.has_ended();
        if hangs {
            let _ = self.child.kill();
        }
        let status = self.child.wait().unwrap();
        let text: String = self.readers.drain(..).map(|r| r.join().unwrap()).collect();
        assert!(!hangs, "still there after {LIMIT:?}:\n{text}");
        End { status, text }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    #[track_caller]
    pub fn succeeded(&self) {
        self.ended(0, &["finished"]);
    }

    /// It ended with this exit code and said these words.
    #[track_caller]
    pub fn ended(&self, code: i32, words: &[&str]) {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{:?}:\n{}",
            self.status,
            self.text
        );
        for word in words {
            assert!(self.text.contains(word), "no {word:?} in:\n{}", self.text);
        }
    }
}
