//! Processes of the program, and folders and ports for them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(120);

/// A folder that goes away with its test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("riverrun-ranks-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("fox.txt"), "the quick brown fox; ".repeat(60)).unwrap();
        Self(path)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_riverrun"));
        command
            .args(words)
            .current_dir(&self.0)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn start(&self, words: &[&str]) -> Process {
        Process(self.command(words).spawn().unwrap())
    }

    /// Starts a rank of two.
    pub fn rank(&self, rank: usize, port: u16, words: &[&str]) -> Process {
        Process(self.rank_command(rank, port, words).spawn().unwrap())
    }

    /// A rank of two with the variables of torchrun, which have a port of their own.
    pub fn rank_command(&self, rank: usize, port: u16, words: &[&str]) -> Command {
        let mut command = self.command(words);
        let number = rank.to_string();
        command
            .envs([("RANK", &*number), ("LOCAL_RANK", &*number)])
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .envs([
                ("MASTER_ADDR", "127.0.0.1"),
                ("TORCHELASTIC_RUN_ID", "test"),
            ])
            .env("MASTER_PORT", port.to_string());
        command
    }

    /// Runs, and expects success.
    pub fn done(&self, words: &[&str]) -> End {
        let end = self.start(words).end();
        assert_eq!(end.code, Some(0), "{words:?}: {end:?}");
        end
    }

    pub fn launched(&self, ranks: &str, words: &[&str]) -> End {
        self.done(&[&["launch", "--processes", ranks, "--"], words].concat())
    }

    /// Whether two runs have the same losses, and their models write the same text.
    pub fn same(&self, one: &str, other: &str) -> bool {
        let found = |run: &str| {
            let words = ["generate", run, "--device", "cpu", "--tokens", "40"];
            (self.done(&words).said, losses(&self.0.join(run)))
        };
        found(one) == found(other)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when it is dropped.
pub struct Process(pub Child);

/// How a process ended, and what it said.
#[derive(Debug)]
pub struct End {
    pub code: Option<i32>,
    pub said: String,
    pub errors: String,
}

impl Process {
    pub fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.unwrap().success());
    }

    pub fn end(mut self) -> End {
        let read = |pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let (mut pipe, mut text) = (pipe, Vec::new());
                pipe.read_to_end(&mut text).unwrap();
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let said = read(Box::new(self.0.stdout.take().unwrap()));
        let errors = read(Box::new(self.0.stderr.take().unwrap()));
        let mut status = None;
        until("the end of a process", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        End {
            code: status.and_then(|status| status.code()),
            said: said.join().unwrap(),
            errors: errors.join().unwrap(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what} did not come");
        sleep(Duration::from_millis(5));
    }
}

pub fn port() -> u16 {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    free.local_addr().unwrap().port().min(u16::MAX - 20)
}

const TINY: [&str; 13] = [
    "-q",
    "--width",
    "16",
    "--layers",
    "1",
    "--context",
    "16",
    "--batch",
    "4",
    "--device",
    "cpu",
    "--lr",
    "0.01",
];
pub const COPY: [&str; 5] = ["train", "--data-tokens", "2", "--dropout", "0.1"];
pub const TEXT: [&str; 2] = ["train", "fox.txt"];
pub const XOR: [&str; 6] = ["train", "-q", "--task", "xor", "--device", "cpu"];

pub fn tiny<'a>(words: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [words, &TINY, more].concat()
}

/// Step, split and loss of every line of the metrics.
pub fn losses(run: &Path) -> Vec<String> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split(",\"tokens_per_s\"").next().unwrap().to_string();
    metrics.lines().map(loss).collect()
}

/// The first loss of training: that of the first batch, before any update.
pub fn first_loss(run: &Path) -> f64 {
    let lines = losses(run);
    let rest = lines[0].split("\"loss\":").nth(1).unwrap();
    let number = rest.split([',', '}']).next().unwrap();
    number.parse().unwrap()
}
