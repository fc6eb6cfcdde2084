//! The launcher: success, a failing rank, signals, and that nothing stays behind.

use crate::process::{Plan, Process, wait_until};
use crate::role::{number, variable};
use riverrun_world::{Error, Launch, Ring, Transport, World};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The launcher itself.
pub fn launch() -> Result<(), Error> {
    let program = variable("WORLD_PROGRAM").map(PathBuf::from);
    let program = program.unwrap_or_else(|| std::env::current_exe().unwrap());
    let mut launch = Launch::new(3, program).args(["--exact", "role", "--nocapture"]);
    launch.grace = Duration::from_millis(number("WORLD_TERM").unwrap_or(20_000));
    launch.run()
}

/// Leaves a file with the number of a process, in the folder of the test.
fn leave_number(name: &str, id: u32) {
    let folder = PathBuf::from(variable("WORLD_FOLDER").unwrap());
    std::fs::write(folder.join(format!("{name}.new")), id.to_string()).unwrap();
    std::fs::rename(folder.join(format!("{name}.new")), folder.join(name)).unwrap();
}

/// Rank 1 ends with an exit code of its own, in the middle of the others' work.
pub fn fail(world: World) -> Result<(), Error> {
    let mut ring = Ring::connect(&world)?;
    for round in 0.. {
        if world.rank() == 1 && round == 100 {
            std::process::exit(7);
        }
        ring.all_reduce(&mut [1.0; 100])?;
    }
    Ok(())
}

/// Ranks that do not listen to SIGTERM, with a process of their own each. Rank 1 fails where a test wants it.
pub fn be_stubborn() -> Result<(), Error> {
    let rank = variable("RIVERRUN_RANK").unwrap();
    // SAFETY: the signals are ignored, no code runs.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
    #[allow(clippy::zombie_processes)]
    let child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    leave_number(&format!("child {rank}"), child.id());
    leave_number(&format!("rank {rank}"), std::process::id());
    if rank == "1" && variable("WORLD_FAIL").is_some() {
        std::process::exit(3);
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

static ASKED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn asked(_: libc::c_int) {
    ASKED.fetch_add(1, Ordering::AcqRel);
}

/// Ranks that end well some time after they were asked to, and count how often they were.
pub fn be_polite() -> Result<(), Error> {
    let handler: extern "C" fn(libc::c_int) = asked;
    // SAFETY: the handler only adds to an atomic.
    unsafe {
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        libc::signal(libc::SIGINT, handler as libc::sighandler_t);
    }
    leave_number(
        &format!("rank {}", variable("RIVERRUN_RANK").unwrap()),
        std::process::id(),
    );
    while ASKED.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    println!("asked {} times", ASKED.load(Ordering::Acquire));
    Ok(())
}

/// A folder in which ranks leave their numbers.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("riverrun-world-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn plan(&self, role: &str) -> Plan {
        launcher(role)
            .set("WORLD_FOLDER", self.0.display())
            .set("PATH", std::env::var("PATH").unwrap())
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.0.join(name).exists())
    }

    /// The numbers that were left.
    fn numbers(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.0).unwrap();
        files
            .map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap())
            .collect()
    }

    fn nothing_stays(&self) {
        for id in self.numbers() {
            wait_until("the end of a process", || !runs(&id));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a process runs; one that has ended may still have its number until somebody takes its status.
fn runs(id: &str) -> bool {
    if cfg!(target_os = "linux") {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        return stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']));
    }
    // SAFETY: two numbers, and no signal.
    unsafe { libc::kill(id.parse().unwrap(), 0) == 0 }
}

fn launcher(role: &str) -> Plan {
    Plan::new("launch", 3).set("WORLD_LAUNCHED", role)
}

#[test]
fn a_world_by_the_launcher() {
    let end = Process::start(launcher("collectives").command()).end();
    end.succeeded();
    for line in [
        "\njoined\n",
        "\n[1] joined\n",
        "\n[2] joined\n",
        "\n[1] finished\n",
        "\n[2] finished\n",
    ] {
        assert!(end.text.contains(line), "no {line:?} in:\n{}", end.text);
    }
}

#[test]
fn a_failing_rank_is_named() {
    let end = Process::start(launcher("fail").command()).end();
    end.ended(
        1,
        &[
            "error: rank 1 ended with exit code 7",
            "rank 1 (",
            "is lost",
        ],
    );
}

#[test]
fn a_program_that_does_not_exist() {
    let command = launcher("fail")
        .set("WORLD_PROGRAM", "/no/such/program")
        .command();
    Process::start(command)
        .end()
        .ended(1, &["error: cannot start /no/such/program"]);
}

#[test]
fn a_launched_program_launches_nothing() {
    let end = Process::start(launcher("launch").command()).end();
    end.ended(
        1,
        &["this process was launched itself", "ended with exit code 1"],
    );
}

#[test]
fn nothing_stays_after_a_failure() {
    let folder = Folder::new("failure");
    let plan = folder
        .plan("stubborn")
        .set("WORLD_FAIL", 1)
        .set("WORLD_TERM", 300);
    Process::start(plan.command())
        .end()
        .ended(1, &["error: rank 1 ended with exit code 3"]);
    folder.nothing_stays();
}

#[test]
fn signals_are_passed_on_once() {
    for (signal, name) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT")] {
        let folder = Folder::new(name);
        let launcher = Process::start(folder.plan("polite").command());
        wait_until("the ranks", || folder.has(&["rank 0", "rank 1", "rank 2"]));
        launcher.signal(signal);
        let end = launcher.end();
        end.ended(
            0,
            &[
                "\nasked 1 times",
                "\n[1] asked 1 times",
                "\n[2] asked 1 times",
                "\nfinished",
            ],
        );
        folder.nothing_stays();
    }
}

#[test]
fn a_second_signal_kills() {
    let folder = Folder::new("second");
    let launcher = Process::start(folder.plan("stubborn").command());
    wait_until("the ranks", || folder.has(&["rank 0", "rank 1", "rank 2"]));
    launcher.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    launcher.signal(libc::SIGINT);
    launcher.end().ended(1, &["error: stopped by SIGINT"]);
    folder.nothing_stays();
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_end_with_their_launcher() {
    let folder = Folder::new("killed");
    let launcher = Process::start(folder.plan("polite").command());
    wait_until("the ranks", || folder.has(&["rank 0", "rank 1", "rank 2"]));
    launcher.signal(libc::SIGKILL);
    assert_eq!(launcher.end().status.code(), None);
    folder.nothing_stays();
}
