//! Which processes may join: duplicates, differences, strangers, tokens.

use crate::process::{Plan, Process};
use std::io::Write;
use std::time::Duration;

/// The process that ends first of two, and the other.
fn first_to_end(mut one: Process, mut two: Process) -> (Process, Process) {
    loop {
        if one.has_ended() {
            return (one, two);
        }
        if two.has_ended() {
            return (two, one);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_rank_started_twice() {
    for double in [1, 0] {
        let plan = Plan::new("collectives", 3);
        let other = plan.start(1 - double);
        let (refused, stays) = first_to_end(plan.start(double), plan.start(double));
        refused.end().ended(
            1,
            &[
                "refuses this process",
                &format!("two processes are rank {double}: "),
            ],
        );
        // Those that were there first go on.
        let last = plan.start(2);
        for process in [other, stays, last] {
            process.end().succeeded();
        }
    }
}

#[test]
fn another_configuration() {
    let plan = Plan::new("finish", 3);
    let mut ranks = vec![plan.start(0), plan.start(1)];
    ranks.push(plan.clone().set("WORLD_CONFIGURATION", "another").start(2));
    for process in ranks {
        process
            .end()
            .ended(1, &["rank 2 (", "rank 0 (", "differ in configuration"]);
    }
}

#[test]
fn another_number_of_ranks() {
    let plan = Plan::new("finish", 2);
    let zero = plan.start(0);
    let one = Plan { size: 3, ..plan }.start(1);
    for process in [zero, one] {
        process
            .end()
            .ended(1, &["rank 1 (", "the number of ranks (3 and 2)"]);
    }
}

#[test]
fn strangers_stop_nobody() {
    let plan = Plan::new("collectives", 2);
    let zero = plan.start(0);
    let mut strangers: Vec<_> = (0..40).map(|_| plan.stranger()).collect();
    for (i, stranger) in strangers.iter_mut().enumerate() {
        let greeting = [&b"RIVRWRLD"[..], &1_u32.to_le_bytes(), &[7; 64]].concat();
        let noise: Vec<u8> = (0..4096_usize)
            .map(|j| (j * j * 31 + i * 7) as u8)
            .collect();
        let _ = match i % 5 {
            // Random bytes; half of a greeting; that of another world; a huge one; and the last says nothing.
            0 => stranger.write_all(&noise),
            1 => stranger.write_all(&greeting[..i]),
            2 => stranger.write_all(&greeting),
            3 => stranger.write_all(&[&greeting[..], &[0xff; 4096]].concat()),
            _ => Ok(()),
        };
    }
    // Some hang up, some stay.
    strangers.truncate(20);
    let one = plan.start(1);
    one.end().succeeded();
    zero.end().succeeded();
}

#[test]
fn another_token() {
    let plan = Plan::new("finish", 2).set("WORLD_JOIN", 2000);
    let zero = plan.start(0);
    for token in ["another secret", ""] {
        let one = plan.clone().set("RIVERRUN_WORLD_TOKEN", token).start(1);
        one.end()
            .ended(1, &["refuses this process", "RIVERRUN_WORLD_TOKEN"]);
    }
    zero.end()
        .ended(1, &["[1] did not come in time", "RIVERRUN_WORLD_TOKEN"]);
}

#[test]
fn a_world_without_rank_0() {
    let plan = Plan::new("finish", 2).set("WORLD_JOIN", 300);
    plan.start(1).end().ended(
        1,
        &[
            "found no rank 0",
            &plan.port.to_string(),
            "nobody listens there",
        ],
    );
}

#[test]
fn two_worlds_at_the_same_ports() {
    let one = Plan::new("collectives", 2);
    let two = one
        .clone()
        .set("RIVERRUN_RUN_ID", "two")
        .set("RIVERRUN_WORLD_TOKEN", "another");
    let processes = [one.start(1), two.start(1), two.start(0), one.start(0)];
    processes.into_iter().for_each(|p| p.end().succeeded());
}
