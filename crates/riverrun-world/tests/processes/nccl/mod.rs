//! The transport over NCCL against a stand-in for the library: which calls are made, and what happens when they hang or fail.

use crate::process::{Plan, Process};
use crate::role::options;
use riverrun_world::nccl::{Communicator, Element, Library, Queue, Span};
use riverrun_world::{Error, Place, Transport, World};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

pub fn play(role: &str) -> Result<(), Error> {
    let library = Library::load()?;
    println!("version {}", library.version());
    let place = Place::from_environment()?;
    let world = World::join(&place, options(), || library.unique_id())?;
    // SAFETY: the stand-in has no device.
    let communicator = unsafe { Communicator::connect(&world, library, world.blob())? };
    // SAFETY: the stand-in looks at no stream.
    let mut ranks = unsafe { communicator.on(0x50 as *mut _) };
    let (rank, size) = (world.rank(), world.size());
    match role {
        "nccl calls" => {
            all_calls(&mut ranks, size)?;
            assert_eq!(communicator.waiting(|| 7)?, 7);
            drop(communicator);
            return world.finish();
        }
        // A call that never returns, while another rank ends.
        "nccl hang" if rank == 0 => ranks.all_reduce(span(1, 13))?,
        "nccl hang" => std::process::exit(7),
        // A stream that never comes to its end, because another rank, which lives, does not come.
        "nccl late" if rank == 0 => {
            communicator.waiting(|| std::thread::sleep(Duration::from_secs(2)))?;
        }
        // An error that shows up after the call; the others learn of it.
        "nccl report" if rank == 1 => ranks.all_reduce(span(1, 14))?,
        "nccl fail" if rank == 1 => ranks.all_reduce(span(1, 15))?,
        _ => {}
    }
    loop {
        ranks.all_reduce(span(1, 1))?;
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn span(address: u64, length: usize) -> Span {
    // SAFETY: the stand-in touches no memory.
    unsafe { Span::new(address, length, Element::Bf16) }
}

fn all_calls(ranks: &mut Queue<'_>, size: usize) -> Result<(), Error> {
    ranks.all_reduce(span(0xa0, 5))?;
    ranks.reduce_scatter(span(0xa1, 6 * size), span(0xb1, 6))?;
    ranks.all_gather(span(0xa2, 7), span(0xb2, 7 * size))?;
    ranks.broadcast(span(0xa3, 8), 1)?;
    ranks.grouped(|ranks| {
        ranks.send(span(0xa4, 9), 1)?;
        ranks.recv(span(0xa5, 10), 1)
    })?;
    ranks.barrier()?;
    for wrong in [
        ranks.reduce_scatter(span(1, 3), span(2, 3)),
        ranks.all_gather(span(1, 3), span(2, 3)),
        ranks.broadcast(span(1, 3), size),
        ranks.send(span(1, 3), size),
        ranks.recv(span(1, 3), size),
    ] {
        assert!(matches!(wrong, Err(Error::Argument(_))));
    }
    Ok(())
}

/// The stand-in, compiled once for this run of the tests.
fn stub() -> PathBuf {
    static STUB: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("libnccl-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/nccl/stub.c");
        let mut compiler = std::process::Command::new("cc");
        let done = compiler
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .arg(&file)
            .arg(source)
            .status();
        assert!(
            done.expect("a C compiler, which links Rust as well")
                .success()
        );
        file
    };
    STUB.get_or_init(make).clone()
}

fn plan(role: &'static str) -> Plan {
    Plan::new(role, 2).set("RIVERRUN_NCCL", stub().display())
}

#[test]
fn every_operation_is_one_call() {
    for (rank, process) in plan("nccl calls").start_all().into_iter().enumerate() {
        let end = process.end();
        end.succeeded();
        let calls: Vec<&str> = end
            .text
            .lines()
            .filter(|l| l.contains("stream") || l.starts_with("group"))
            .collect();
        assert_eq!(
            calls,
            [
                "all_reduce 0xa0 0xa0 5 9 0 on 1, stream 0x50",
                "reduce_scatter 0xa1 0xb1 6 9 0 on 1, stream 0x50",
                "all_gather 0xa2 0xb2 7 9 on 1, stream 0x50",
                "broadcast 0xa3 0xa3 8 9 1 on 1, stream 0x50",
                "group start",
                "send 0xa4 9 9 1 on 1, stream 0x50",
                "recv 0xa5 10 9 1 on 1, stream 0x50",
                "group end",
            ]
        );
        end.ended(
            0,
            &[
                "version 2.28.9",
                &format!("init {rank} of 2 ii"),
                "destroy 1",
            ],
        );
        assert!(!end.text.contains("abort"));
    }
}

#[test]
fn a_hanging_call_is_aborted() {
    let mut ranks = plan("nccl hang").start_all();
    assert_eq!(ranks.remove(1).end().status.code(), Some(7));
    let end = ranks.remove(0).end();
    end.ended(1, &["error: rank 1 (", "is lost"]);
    assert_eq!(end.text.matches("abort 1").count(), 1, "{}", end.text);
}

#[test]
fn a_rank_that_does_not_come_ends_the_world() {
    for process in plan("nccl late").set("WORLD_COLLECTIVE", 500).start_all() {
        let end = process.end();
        end.ended(1, &["error: rank 0 (", "did not come to the collectives"]);
        assert_eq!(end.text.matches("abort 1").count(), 1, "{}", end.text);
    }
}

#[test]
fn errors_end_the_world() {
    for (role, words) in [
        ("nccl report", "NCCL reports: remote process exited (6)"),
        ("nccl fail", "ncclAllReduce: remote process exited (6)"),
    ] {
        for process in plan(role).start_all() {
            let end = process.end();
            end.ended(1, &["error: rank 1 (", words]);
            assert_eq!(end.text.matches("abort 1").count(), 1, "{}", end.text);
        }
    }
}

#[test]
fn libraries_that_cannot_be_used() {
    let missing = Plan::new("nccl calls", 1).set("RIVERRUN_NCCL", "/no/libnccl.so");
    Process::start(missing.command())
        .end()
        .ended(1, &["no NCCL was found", "/no/libnccl.so", "RIVERRUN_NCCL"]);
    let old = plan("nccl calls").set("STUB_VERSION", 21_700);
    Process::start(old.command())
        .end()
        .ended(1, &["NCCL 2.17.0", "older than 2.18"]);
    let other = Plan::new("nccl calls", 1).set("RIVERRUN_NCCL", "libc.so.6");
    Process::start(other.command())
        .end()
        .ended(1, &["libc.so.6 has no ncclGetVersion"]);
}

#[test]
fn versions_that_differ_are_refused_by_name() {
    let plan = plan("nccl calls");
    let other = plan.clone().set("STUB_VERSION", 22_000);
    for process in [plan.start(0), other.start(1)] {
        process
            .end()
            .ended(1, &["differ in NCCL's version", "rank 1 ("]);
    }
}
