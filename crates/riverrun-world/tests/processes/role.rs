//! What the processes of the tests do. They print `finished` and exit with 0, or print their error and exit with 1.

use super::launch;
use riverrun_world::{Error, Fingerprint, Options, Place, Ring, Timeouts, Transport, World};
use std::time::Duration;

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub fn number(name: &str) -> Option<u64> {
    variable(name).map(|v| v.parse().unwrap())
}

pub fn play() {
    let Some(mut role) = variable("WORLD_ROLE") else {
        return;
    };
    if variable("RIVERRUN_RANK").is_some() {
        // Below the launcher.
        role = variable("WORLD_LAUNCHED").unwrap();
    }
    let result = match role.as_str() {
        "collectives" => world().and_then(super::collectives::check_all),
        "different" => world().and_then(different),
        "loop" => world().and_then(reduce_for_ever),
        "finish" => world().and_then(World::finish),
        "late" => world().and_then(agree_late),
        "leave" => world().and_then(leave),
        "hang" => world().and_then(hang),
        "launch" => launch::launch(),
        "fail" => world().and_then(launch::fail),
        "stubborn" => launch::be_stubborn(),
        "polite" => launch::be_polite(),
        #[cfg(feature = "nccl")]
        role if role.starts_with("nccl ") => super::nccl::play(role),
        role => panic!("no role {role}"),
    };
    match result {
        Ok(()) => {
            println!("finished");
            std::process::exit(0)
        }
        Err(e) => {
            eprintln!("error: {e}");
            std::process::exit(1)
        }
    }
}

pub fn options() -> Options {
    let ms = |name, default| Duration::from_millis(number(name).unwrap_or(default));
    let mut options = Options::from_environment();
    options.timeouts = Timeouts {
        join: ms("WORLD_JOIN", 30_000),
        silence: ms("WORLD_SILENCE", 30_000),
        grace: ms("WORLD_GRACE", 30_000),
        collective: ms("WORLD_COLLECTIVE", 30_000),
    };
    options.report = |text| eprintln!("{text}");
    options
        .agreeing(
            "configuration",
            Fingerprint::of(
                variable("WORLD_CONFIGURATION")
                    .unwrap_or_default()
                    .as_bytes(),
            ),
        )
        .agreeing("weights", 7)
}

fn world() -> Result<World, Error> {
    let place = Place::from_environment()?;
    let world = World::join(&place, options(), || Ok(b"for all".to_vec()))?;
    println!("joined");
    assert_eq!(world.blob(), b"for all");
    assert_eq!(
        (world.rank(), world.size(), world.peers().len()),
        (place.rank, place.size, place.size)
    );
    Ok(world)
}

/// The last rank broadcasts where the others reduce.
fn different(world: World) -> Result<(), Error> {
    let mut ring = Ring::connect(&world)?;
    let mut data = [1.0; 5];
    ring.all_reduce(&mut data)?;
    if world.rank() + 1 == world.size() {
        ring.broadcast(&mut data, 0)?;
    } else {
        ring.all_reduce(&mut data[..3])?;
    }
    world.finish()
}

/// Sums, of which every one must be right, until something happens.
fn reduce_for_ever(world: World) -> Result<(), Error> {
    let mut ring = Ring::connect(&world)?;
    let size = world.size();
    for round in 0_usize.. {
        let mut data = vec![round as f32; round * 997 % 50_000];
        ring.all_reduce(&mut data)?;
        assert!(
            data.iter().all(|v| *v == (round * size) as f32),
            "a wrong sum"
        );
    }
    Ok(())
}

/// Later hashes agree once; the second time, the last rank has another.
fn agree_late(world: World) -> Result<(), Error> {
    world.agree("checkpoint", Fingerprint::of(b"same"))?;
    println!("agreed");
    for name in ["", "the end of the run", "line\n", &"x".repeat(300)] {
        assert!(
            matches!(world.agree(name, 0), Err(Error::Argument(_))),
            "{name:?}"
        );
    }
    world.agree("data", u128::from(world.rank() + 1 == world.size()))?;
    world.finish()
}

/// Rank 1 panics, or returns early.
fn leave(world: World) -> Result<(), Error> {
    if world.rank() == 1 {
        assert!(variable("WORLD_PANIC").is_none(), "on purpose");
        return Ok(());
    }
    world.finish()
}

/// Rank 1 fails; rank 0 does not look at it.
fn hang(world: World) -> Result<(), Error> {
    if world.rank() == 1 {
        return Err(world.fail("out of data"));
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
