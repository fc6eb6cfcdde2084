//! Every collective against sums that are computed directly, bit by bit.

use crate::process::Plan;
use riverrun_world::{Error, Ring, Transport, World};

/// Numbers whose sums depend on the order of their addition.
fn value(rank: usize, i: usize) -> f32 {
    let large = [3e7, -1.0, 0.1, -3e7, 1e-3][(rank * 3 + i) % 5];
    large + (rank * 7919 + i) as f32 * 0.37
}

fn values(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| value(rank, i)).collect()
}

/// The sum in the order of the ranks.
fn sum(size: usize, i: usize) -> f32 {
    (1..size).fold(value(0, i), |sum, rank| sum + value(rank, i))
}

fn same(what: &str, got: &[f32], want: impl Fn(usize) -> f32) {
    for (i, v) in got.iter().enumerate() {
        assert_eq!(
            v.to_bits(),
            want(i).to_bits(),
            "{what} of {} at {i}: {v} is not {}",
            got.len(),
            want(i)
        );
    }
}

pub fn check_all(world: World) -> Result<(), Error> {
    let (rank, size) = (world.rank(), world.size());
    // The ranks cut differently.
    let mut ring = Ring::connect(&world)?.with_chunk([1000, 77, 4096, 333][rank % 4]);
    for length in [0, 1, 2, 3, 5, 76, 77, 78, 1000, 4097, 30_011] {
        check(&mut ring, rank, size, length)?;
    }
    drop(ring);
    world.finish()
}

fn check(ring: &mut Ring, rank: usize, size: usize, length: usize) -> Result<(), Error> {
    let mut data = values(rank, length);
    ring.all_reduce(&mut data)?;
    same("all_reduce", &data, |i| sum(size, i));

    let mut part = vec![f32::NAN; length];
    ring.reduce_scatter(&values(rank, length * size), &mut part)?;
    same("reduce_scatter", &part, |i| sum(size, rank * length + i));

    let mut all = vec![f32::NAN; length * size];
    ring.all_gather(&values(rank, length), &mut all)?;
    same("all_gather", &all, |i| value(i / length, i % length));

    for root in 0..size {
        let mut data = values(rank, length);
        ring.broadcast(&mut data, root)?;
        same("broadcast", &data, |i| value(root, i));
    }

    // From every rank to every other, in an order in which nobody waits for himself.
    for (from, to) in (0..size)
        .flat_map(|from| (0..size).map(move |to| (from, to)))
        .filter(|(f, t)| f != t)
    {
        if rank == from {
            ring.send(&values(from * 10 + to, length), to)?;
        } else if rank == to {
            let mut data = vec![f32::NAN; length];
            ring.recv(&mut data, from)?;
            same("recv", &data, |i| value(from * 10 + to, i));
        }
    }
    ring.barrier()?;

    // Mistakes of one rank alone, and nothing is sent.
    assert!(matches!(ring.send(&[], rank), Err(Error::Argument(_))));
    assert!(matches!(ring.recv(&mut [], size), Err(Error::Argument(_))));
    assert!(matches!(
        ring.broadcast(&mut [], size),
        Err(Error::Argument(_))
    ));
    assert!(matches!(
        ring.all_gather(&[0.0], &mut []),
        Err(Error::Argument(_))
    ));
    assert!(matches!(
        ring.reduce_scatter(&[], &mut [0.0]),
        Err(Error::Argument(_))
    ));
    Ok(())
}

#[test]
fn right_to_the_last_bit() {
    for size in [2, 3, 4] {
        Plan::new("collectives", size).succeeds();
    }
}

#[test]
fn a_world_of_one() {
    Plan::new("collectives", 1).succeeds();
}

#[test]
fn ranks_that_do_different_things() {
    for process in Plan::new("different", 3).start_all() {
        let words = [
            "different things",
            "all_reduce number 1 of length 3",
            "broadcast from rank 0 number 1 of length 5",
        ];
        process.end().ended(1, &words);
    }
}
