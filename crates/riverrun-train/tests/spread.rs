//! Runs on several ranks, which are threads here, over loopback.
#![cfg(all(feature = "flex", unix))]

#[path = "spread/along_time.rs"]
mod along_time;

use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Tensor;
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
    run(size, dir, &config(dtype), [false; 2], change)
}

/// The same on a run, new or to be resumed, with an optimizer that is sharded or not.
fn run(
    size: usize,
    dir: &Scratch,
    config: &RunConfig,
    [resumed, shard]: [bool; 2],
    change: fn(Box<dyn Ranks>) -> Box<dyn Ranks>,
) -> Vec<Result<Vec<u32>, Error>> {
    in_world(size, |rank, world| {
        let ranks = change(over_world(world.clone(), Ring::connect(world)?));
        let setup = Setup::language(config, tasks::open(config)?)?.spread_over(ranks, shard)?;
        trained(setup, dir, rank, [resumed, false])
    })
}

/// The bits of the weights after a run, new or to be resumed, which with `norms` notes those of its gradients.
fn trained(
    setup: Setup<Language>,
    dir: &Scratch,
    rank: usize,
    [resumed, norms]: [bool; 2],
) -> Result<Vec<u32>, Error> {
    let dir = match rank {
        0 if resumed => RunDir::open(&dir.0)?,
        0 => RunDir::create(&dir.0)?,
        _ => RunDir::of_another(&dir.0),
    };
    let device = riverrun::device::parse("cpu")?;
    let mut trainer = match resumed {
        true => Trainer::resume(setup, dir, &device)?,
        false => Trainer::create(setup, dir, &device)?,
    };
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

/// Where nothing is clipped, a step knows no sum over all parameters: the elements of a part have the bits that they have in a
/// whole, in all formats.
#[test]
fn a_sharded_optimizer_gives_the_same_weights() {
    for (dtype, size) in [
        (Precision::F32, 2),
        (Precision::F32, 3),
        (Precision::Bf16, 2),
    ] {
        let mut config = config(dtype);
        config.training.optimizer.clip = 1e9;
        let bits = |shards: [bool; 2], sizes: [usize; 2]| -> Vec<u32> {
            let dir = Scratch::new(&format!("shard-{dtype}-{size}-{shards:?}"));
            let mut config = config.clone();
            config.training.steps = 3;
            run(sizes[0], &dir, &config, [false, shards[0]], |ranks| ranks);
            // On with what the checkpoint has.
            config.training.steps = 6;
            let mut found = run(sizes[1], &dir, &config, [true, shards[1]], |ranks| ranks);
            let first = found.remove(0).unwrap();
            for other in found {
                assert_eq!(other.unwrap(), first);
            }
            first
        };
        let expected = bits([false, false], [size; 2]);
        for shards in [[true, true], [true, false], [false, true]] {
            assert_eq!(
                bits(shards, [size; 2]),
                expected,
                "{dtype} {size} {shards:?}"
            );
        }
    }
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

    fn on_device(&self) -> bool {
        self.ranks.on_device()
    }

    fn sum(&mut self, mut vectors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let last = self.rank() + 1 == self.size();
        if last {
            let sum = self.sums;
            let sent = self.sent;
            first_number(&mut vectors, |number| sent(sum, number));
        }
        self.sums += 1;
        let mut vectors = self.ranks.sum(vectors)?;
        if last {
            first_number(&mut vectors, self.received);
        }
        Ok(vectors)
    }

    fn scatter(&mut self, whole: Tensor<1>) -> Result<Tensor<1>, Error> {
        self.ranks.scatter(whole)
    }

    fn gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, Error> {
        self.ranks.gather(part)
    }

    fn broadcast(&mut self, vector: Tensor<1>) -> Result<Tensor<1>, Error> {
        self.ranks.broadcast(vector)
    }

    fn waiting(&mut self, wait: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
        self.ranks.waiting(wait)
    }

    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.ranks.agree(name, bytes)
    }
}

/// Changes the first number of the first vector.
fn first_number(vectors: &mut [Tensor<1>], change: impl FnOnce(&mut f32)) {
    let device = vectors[0].device();
    let mut numbers: Vec<f32> = vectors[0].to_data().iter().collect();
    change(&mut numbers[0]);
    vectors[0] = Tensor::from_floats(&numbers[..], &device);
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
