//! Runs on several ranks, which are threads here, over loopback.
#![cfg(all(feature = "flex", unix))]

#[path = "spread/along_time.rs"]
mod along_time;

use std::path::PathBuf;
use std::sync::Arc;

use riverrun_models::LanguageModelConfig;
use riverrun_train::tasks::SelectiveCopyConfig;
use riverrun_train::{
    Error, Language, Observer, Precision, Ranks, RunConfig, RunDir, Setup, TaskConfig, Trainer,
    TrainingConfig, over_world, tasks, weights,
};
use riverrun_world::{Options, Place, Ring, Token, World};

struct Quiet;
impl Observer for Quiet {}

/// A folder that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("riverrun-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(dtype: Precision) -> RunConfig {
    let mut config = RunConfig::selective_copy();
    config.task = TaskConfig::SelectiveCopy(SelectiveCopyConfig { data_tokens: 3 });
    config.model = LanguageModelConfig::new(16, 16, 2).into();
    config.training = TrainingConfig::new(6, 12, 12, 1e-2);
    config.training.dtype = dtype;
    config
}

/// The place of a rank that is a thread of this process.
fn place(rank: usize, size: usize, port: u16) -> Place {
    let lookup = |name: &str| match name {
        "RIVERRUN_RANK" | "RIVERRUN_LOCAL_RANK" => Some(rank.to_string()),
        "RIVERRUN_WORLD_SIZE" | "RIVERRUN_LOCAL_WORLD_SIZE" => Some(size.to_string()),
        "RIVERRUN_ADDRESS" => Some("127.0.0.1".into()),
        "RIVERRUN_PORT" => Some(port.to_string()),
        _ => None,
    };
    Place::from_variables(&lookup).unwrap()
}

/// Runs a function on every rank of a world, each a thread.
fn in_world<R: Send>(
    size: usize,
    run: impl Fn(usize, &Arc<World>) -> Result<R, Error> + Sync,
) -> Vec<Result<R, Error>> {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port().min(u16::MAX - 20);
    drop(free);
    let rank = |rank: usize| {
        let options = Options {
            token: Token::new(format!("{} {port}", std::process::id())),
            ..Options::default()
        };
        let world = World::join(&place(rank, size, port), options, || Ok(Vec::new()))?;
        let world = Arc::new(world);
        let result = run(rank, &world)?;
        Arc::into_inner(world).unwrap().finish()?;
        Ok(result)
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Trains on ranks that `change` has changed, and gives the bits of the weights on each.
fn train(
    size: usize,
    dir: &Scratch,
    dtype: Precision,
    change: fn(Box<dyn Ranks>) -> Box<dyn Ranks>,
) -> Vec<Result<Vec<u32>, Error>> {
    in_world(size, |rank, world| {
        let ranks = change(over_world(world.clone(), Ring::connect(world)?));
        let config = config(dtype);
        let setup = Setup::language(&config, tasks::open(&config)?)?.spread_over(ranks)?;
        trained(setup, dir, rank, false)
    })
}

/// The bits of the weights after a run, which with `norms` notes those of its gradients.
fn trained(
    setup: Setup<Language>,
    dir: &Scratch,
    rank: usize,
    norms: bool,
) -> Result<Vec<u32>, Error> {
    let dir = match rank {
        0 => RunDir::create(&dir.0)?,
        _ => RunDir::of_another(&dir.0),
    };
    let device = riverrun::device::parse("cpu")?;
    let mut trainer = Trainer::create(setup, dir, &device)?;
    if norms {
        trainer = trainer.with_gradient_norms();
    }
    let outcome = trainer.run(&mut Quiet, &Default::default())?;
    let bits = weights(&outcome.model).into_iter().map(f32::to_bits);
    Ok(bits.collect())
}

#[test]
fn all_ranks_have_the_same_weights() {
    let dir = Scratch::new("spread-same");
    let found = train(3, &dir, Precision::F32, |ranks| ranks);
    let first = found[0].as_ref().unwrap();
    assert!(!first.is_empty());
    for other in &found[1..] {
        assert_eq!(other.as_ref().unwrap(), first);
    }
    assert!(RunDir::open(&dir.0).unwrap().checkpoint().is_some());
}

/// A transport that changes what the last rank sends, by the number of its sum, or receives.
struct Changed {
    ranks: Box<dyn Ranks>,
    sums: usize,
    sent: fn(usize, &mut f32),
    received: fn(&mut f32),
}

impl Ranks for Changed {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        let last = self.rank() + 1 == self.size();
        if last {
            (self.sent)(self.sums, &mut numbers[0]);
        }
        self.sums += 1;
        self.ranks.sum(numbers)?;
        if last {
            (self.received)(&mut numbers[0]);
        }
        Ok(())
    }

    fn broadcast(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        self.ranks.broadcast(numbers)
    }

    fn gather(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), Error> {
        self.ranks.gather(own, all)
    }

    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.ranks.agree(name, bytes)
    }
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all() {
    let dir = Scratch::new("spread-overflow");
    let found = train(2, &dir, Precision::F16, |ranks| {
        Box::new(Changed {
            ranks,
            sums: 0,
            sent: |sum, number| {
                if sum == 3 {
                    *number = f32::INFINITY;
                }
            },
            received: |_| (),
        })
    });
    assert_eq!(found[0].as_ref().unwrap(), found[1].as_ref().unwrap());
    let reports = RunDir::open(&dir.0).unwrap().metrics().unwrap();
    assert_eq!(reports.last().unwrap().skipped, Some(1));
}

#[test]
fn weights_that_drift_apart_end_the_run() {
    let dir = Scratch::new("spread-drift");
    let found = train(2, &dir, Precision::F32, |ranks| {
        Box::new(Changed {
            ranks,
            sums: 0,
            sent: |_, _| (),
            received: |number| *number += 1e-3,
        })
    });
    for found in found {
        let error = found.unwrap_err();
        assert!(matches!(error, Error::World(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("differ in the weights after step"), "{text}");
    }
    // Nothing was saved from ranks that differ.
    assert!(!dir.0.join("checkpoint").exists() && !dir.0.join("best").exists());
}
