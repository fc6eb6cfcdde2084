//! Runs whose sequences are divided along time among ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use riverrun_models::{GriffinConfig, LanguageModelConfig, RecurrentKind};
use riverrun_train::tasks::{Corpus, Text, TextConfig};
use riverrun_train::{
    Error, Language, Precision, Report, RunConfig, RunDir, Setup, Split, over_world_along_time,
    tasks,
};
use riverrun_world::{Result as WorldResult, Ring, Transport, World};

use super::{Scratch, config, in_world, trained};

/// A run of a text, or of selective copying.
struct Run {
    config: RunConfig,
    text: Option<Corpus>,
}

impl Run {
    /// Sequences of 18 steps, of which the last 3 are scored.
    fn copying() -> Self {
        Self {
            config: config(Precision::F32),
            text: None,
        }
    }

    /// Sequences of 13 steps.
    fn text() -> Self {
        let fox = "the quick brown fox jumps over the lazy dog; ".repeat(40);
        let corpus = Corpus::from_bytes(fox.into_bytes(), "fox").unwrap();
        let mut run = RunConfig::of_text(TextConfig::describe(vec!["fox".into()], &corpus, 0.8));
        let vocab = run.model.sizes()[0];
        run.model = LanguageModelConfig::new(vocab, 16, 2)
            .with_cell(RecurrentKind::Lstm)
            .into();
        run.training = config(Precision::F32).training;
        run.training.context = 13;
        Self {
            config: run,
            text: Some(corpus),
        }
    }

    /// Without learning, so that all reports are those of the initial weights.
    fn still(mut self) -> Self {
        self.config.training.lr = 0.0;
        self.config.training.report_every = 1;
        self.config.training.eval_every = 4;
        self
    }

    fn setup(&self) -> Result<Setup<Language>, Error> {
        let (config, training) = (&self.config, &self.config.training);
        let riverrun_train::TaskConfig::Text(text) = &config.task else {
            return Setup::language(config, tasks::open(config)?);
        };
        let corpus = self.text.as_ref().expect("a text has one");
        let (context, batch) = (training.context, training.batch);
        let task = Text::new(text, corpus, context, batch, training.seed)?;
        Setup::language(config, Box::new(task))
    }

    /// The bits of the weights on every rank, in groups of `group`.
    fn on_ranks(&self, ranks: usize, group: usize, dir: &Scratch) -> Vec<Result<Vec<u32>, Error>> {
        in_world(ranks, |rank, world| {
            let ring = Ring::connect(world)?;
            let (ranks, neighbours) = over_world_along_time(world.clone(), ring, group);
            let setup = self.setup()?.spread_over_time(ranks, neighbours);
            let weights = setup.and_then(|setup| trained(setup, dir, rank, [false, true]));
            weights.inspect_err(|error| {
                world.fail(&error.to_string());
            })
        })
    }
}

fn reports(dir: &Scratch) -> Vec<Report> {
    RunDir::open(&dir.0).unwrap().metrics().unwrap()
}

/// Losses, accuracies and the norms of gradients, of training and validation.
#[test]
fn losses_and_gradients_are_those_of_one_process() {
    for (name, run) in [
        ("copy", Run::copying().still()),
        ("text", Run::text().still()),
    ] {
        let dir = Scratch::new(&format!("time-{name}-one"));
        trained(run.setup().unwrap(), &dir, 0, [false, true]).unwrap();
        let one = reports(&dir);
        // The second layout cuts the copied part off, the third one through it; the last one has two groups.
        for (ranks, group) in [(2, 2), (3, 3), (9, 9), (4, 2)] {
            let dir = Scratch::new(&format!("time-{name}-{ranks}-{group}"));
            for rank in run.on_ranks(ranks, group, &dir) {
                rank.unwrap();
            }
            let found = reports(&dir);
            assert_eq!(found.len(), one.len());
            for (found, one) in found.iter().zip(&one) {
                let what =
                    format!("{name}, {ranks} ranks in groups of {group}: {found:?}, {one:?}");
                assert_eq!((found.step, found.split), (one.step, one.split), "{what}");
                assert_eq!(found.accuracy, one.accuracy, "{what}");
                // Every number is a sum over the steps of a batch, taken in another order.
                let steps = 6.0 * 18.0;
                let close = |found: f64, one: f64| {
                    (found - one).abs() <= 2.0 * steps * f64::from(f32::EPSILON) * one.abs()
                };
                assert!(close(found.loss, one.loss), "{what}");
                for (group, norm) in &one.gradients {
                    assert!(close(found.gradients[group], *norm), "{group}, {what}");
                }
                assert_eq!(found.split == Split::Train, !found.gradients.is_empty());
            }
        }
    }
}

#[test]
fn ranks_learn_the_same_and_the_same_again() {
    for (name, precision) in [
        ("f32", Precision::F32),
        ("bf16", Precision::Bf16),
        ("f16", Precision::F16),
    ] {
        let mut run = Run::copying();
        run.config.training.dtype = precision;
        run.config.training.accumulate = 3;
        run.config.model = LanguageModelConfig::new(16, 16, 2).with_dropout(0.1).into();
        let train = |name: &str| {
            let dir = Scratch::new(name);
            let found = run.on_ranks(4, 2, &dir).into_iter();
            (found.map(Result::unwrap).collect::<Vec<_>>(), reports(&dir))
        };
        let (found, one) = train(&format!("time-{name}-first"));
        assert!(found.iter().all(|weights| *weights == found[0]), "{name}");
        let (again, other) = train(&format!("time-{name}-second"));
        assert_eq!(found, again, "{name}");
        let losses =
            |reports: &[Report]| reports.iter().map(|report| report.loss).collect::<Vec<_>>();
        assert_eq!(losses(&one), losses(&other), "{name}");
        let loss = losses(&one);
        assert!(loss.iter().all(|loss| loss.is_finite()), "{name}: {loss:?}");
    }
}

#[test]
fn what_cannot_be_divided_is_refused_before_anything_is_begun() {
    let refused = |run: &Run, ranks: usize, group: usize, reason: &str| {
        let dir = Scratch::new(&format!("time-refused-{ranks}-{group}"));
        for found in run.on_ranks(ranks, group, &dir) {
            let error = found.unwrap_err();
            // The first rank that refuses is the others' cause.
            assert!(error.to_string().contains(reason), "{reason}: {error}");
        }
        assert!(!dir.0.exists());
    };
    let mut griffin = Run::copying();
    griffin.config.model = GriffinConfig::new(16, 16, 3, 2).into();
    refused(
        &griffin,
        2,
        2,
        "the sequences of the model griffin cannot be divided among ranks",
    );
    refused(&Run::text(), 14, 14, "there are 13 steps in a sequence");
    refused(&Run::copying(), 3, 2, "3 ranks are not groups of 2");
    let mut narrow = Run::copying();
    narrow.config.training.batch = 3;
    refused(&narrow, 4, 2, "cannot be divided among 2 groups of ranks");
}

/// A ring on which a rank fails at one of its hand-overs.
struct Failing {
    ring: Ring,
    world: Arc<World>,
    /// Hand-overs until then.
    left: usize,
    failed: Arc<AtomicUsize>,
}

impl Failing {
    fn hand_over(&mut self) -> WorldResult<()> {
        let Some(left) = self.left.checked_sub(1) else {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(self.world.fail("the test ends it"));
        };
        self.left = left;
        Ok(())
    }
}

impl Transport for Failing {
    type Input<'a> = &'a [f32];
    type Output<'a> = &'a mut [f32];

    fn rank(&self) -> usize {
        self.ring.rank()
    }

    fn size(&self) -> usize {
        self.ring.size()
    }

    fn all_reduce(&mut self, buffer: &mut [f32]) -> WorldResult<()> {
        self.ring.all_reduce(buffer)
    }

    fn reduce_scatter(&mut self, input: &[f32], output: &mut [f32]) -> WorldResult<()> {
        self.ring.reduce_scatter(input, output)
    }

    fn all_gather(&mut self, input: &[f32], output: &mut [f32]) -> WorldResult<()> {
        self.ring.all_gather(input, output)
    }

    fn broadcast(&mut self, buffer: &mut [f32], root: usize) -> WorldResult<()> {
        self.ring.broadcast(buffer, root)
    }

    fn send(&mut self, input: &[f32], to: usize) -> WorldResult<()> {
        self.hand_over()?;
        self.ring.send(input, to)
    }

    fn recv(&mut self, output: &mut [f32], from: usize) -> WorldResult<()> {
        self.hand_over()?;
        self.ring.recv(output, from)
    }

    fn barrier(&mut self) -> WorldResult<()> {
        self.ring.barrier()
    }
}

/// Forward and backward, in the first layer and the last, on the first rank, a middle one and the last.
#[test]
fn a_rank_that_fails_in_a_hand_over_ends_the_others_by_name() {
    let run = Run::copying();
    for victim in 0..3 {
        // A step has two layers: as many hand-overs each way with each neighbour.
        for left in [0, 1, 2, 3, 9] {
            let failed = Arc::new(AtomicUsize::new(0));
            let dir = Scratch::new(&format!("time-fails-{victim}-{left}"));
            let found = in_world(3, |rank, world| {
                let transport = Failing {
                    ring: Ring::connect(world)?,
                    world: world.clone(),
                    left: if rank == victim { left } else { usize::MAX },
                    failed: failed.clone(),
                };
                let (ranks, neighbours) = over_world_along_time(world.clone(), transport, 3);
                trained(
                    run.setup()?.spread_over_time(ranks, neighbours)?,
                    &dir,
                    rank,
                    [false; 2],
                )
            });
            // After the first error nothing more is handed over.
            assert_eq!(failed.load(Ordering::Relaxed), 1);
            for error in found.into_iter().map(Result::unwrap_err) {
                assert!(matches!(error, Error::World(_)), "{error:?}");
                let text = error.to_string();
                assert!(text.contains(&format!("rank {victim} (")), "{text}");
                assert!(text.contains("the test ends it"), "{text}");
            }
        }
    }
}
