//! Ranks that die, stop, leave or hang.

use crate::process::{Plan, Process};
use std::time::Duration;

/// A few numbers that differ from run to run.
fn random(below: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() % below
}

#[test]
fn a_killed_rank_is_named() {
    for victim in [0, 1, 2] {
        let plan = Plan::new("loop", 3);
        let mut ranks = plan.start_all();
        std::thread::sleep(Duration::from_millis(300));
        let killed = ranks.remove(victim);
        killed.signal(libc::SIGKILL);
        for rank in ranks {
            let end = rank.end();
            if end.text.contains("joined") {
                end.ended(1, &[&format!("rank {victim} ("), "is lost"]);
            }
        }
        assert_eq!(killed.end().status.code(), None);
    }
}

#[test]
fn ranks_killed_at_any_moment() {
    for _ in 0..20 {
        let mut ranks = Plan::new("loop", 3).set("WORLD_JOIN", 1500).start_all();
        std::thread::sleep(Duration::from_micros(random(150_000)));
        let killed = ranks.remove(random(3) as usize);
        killed.signal(libc::SIGKILL);
        // Before it has come, the others learn that it is missing.
        for rank in ranks {
            rank.end().ended(1, &["error: "]);
        }
        assert_eq!(killed.end().status.code(), None);
    }
}

#[test]
fn a_stopped_rank_is_named() {
    for victim in [0, 1] {
        let plan = Plan::new("loop", 3).set("WORLD_SILENCE", 2500);
        let mut ranks = plan.start_all();
        std::thread::sleep(Duration::from_millis(500));
        let stopped = ranks.remove(victim);
        stopped.signal(libc::SIGSTOP);
        for rank in ranks {
            rank.end()
                .ended(1, &[&format!("rank {victim} ("), "is stopped"]);
        }
        // Once it runs again, it learns that it was lost.
        stopped.signal(libc::SIGCONT);
        stopped.end().ended(1, &["error: "]);
    }
}

#[test]
fn ranks_that_leave_early() {
    let ranks = Plan::new("leave", 3).start_all();
    for (rank, process) in ranks.into_iter().enumerate() {
        let end = process.end();
        match rank {
            1 => end.succeeded(),
            _ => end.ended(1, &["rank 1 (", "it left before the end"]),
        }
    }
    let ranks = Plan::new("leave", 3).set("WORLD_PANIC", 1).start_all();
    for (rank, process) in ranks.into_iter().enumerate() {
        let end = process.end();
        match rank {
            1 => end.ended(101, &["on purpose"]),
            _ => end.ended(1, &["rank 1 (", "it panicked"]),
        }
    }
}

#[test]
fn a_rank_that_hangs_is_ended() {
    for process in Plan::new("hang", 2).set("WORLD_GRACE", 300).start_all() {
        process.end().ended(1, &["rank 1 (", "out of data"]);
    }
}

#[test]
fn hashes_that_differ_later() {
    for process in Plan::new("late", 3).start_all() {
        process
            .end()
            .ended(1, &["agreed", "rank 2 (", "rank 0 (", "differ in data"]);
    }
}

#[test]
fn finishing_waits_for_all() {
    let plan = Plan::new("finish", 3);
    let mut first: Vec<Process> = [0, 1].map(|r| plan.start(r)).into();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!first.iter_mut().any(Process::has_ended));
    plan.start(2).end().succeeded();
    first.into_iter().for_each(|p| p.end().succeeded());
}
