//! Run folders with damaged files: an error each time, or the run goes on; never a panic, a hang or a huge allocation.
#![cfg(feature = "flex")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use burn::tensor::Device;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};
use riverrun_models::LanguageModelConfig;
use riverrun_train::tasks::{self, Corpus};
use riverrun_train::{
    Error, Generator, Observer, RunConfig, RunDir, Sampling, Setup, Trainer, TrainingConfig,
};

struct Quiet;
impl Observer for Quiet {}

fn device() -> Device {
    riverrun::device::parse("cpu").unwrap()
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("riverrun-damage-{}-{name}", std::process::id()))
}

/// The files of a run on a text that has been trained for a moment.
fn files() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = folder("sound");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let text = dir.with_extension("txt");
        fs::write(&text, "abcdefgh ".repeat(40)).unwrap();
        let sources = vec![text.to_str().unwrap().to_string()];
        let corpus = Corpus::read(&sources).unwrap();
        let mut config = RunConfig::text(sources, &corpus, 0.8);
        config.model = LanguageModelConfig::new(config.model.sizes()[0], 4, 1).into();
        config.training = TrainingConfig::new(2, 8, 12, 1e-2);
        config.training.eval_every = 5;
        let setup = Setup::language(&config, tasks::open(&config).unwrap()).unwrap();
        let trainer = Trainer::create(setup, RunDir::create(&dir).unwrap(), &device()).unwrap();
        trainer.run(&mut Quiet, &Default::default()).unwrap();
        let names = [
            "config.json",
            "metrics.jsonl",
            "checkpoint/checksums.json",
            "best/checksums.json",
            "checkpoint/progress.json",
            "checkpoint/model.bpk",
            "checkpoint/moment-1.bpk",
            "checkpoint/moment-2.bpk",
            "best/model.bpk",
            "best/report.json",
        ];
        let files = names.map(|name| (name.to_string(), fs::read(dir.join(name)).unwrap()));
        fs::remove_dir_all(&dir).unwrap();
        files.into()
    })
}

/// One change to a file.
#[derive(Debug, Clone)]
enum Damage {
    Flip { at: usize, bit: u8 },
    Cut { at: usize, bytes: usize },
    Insert { at: usize, bytes: Vec<u8> },
    End { at: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    let digits = prop::collection::vec(prop::sample::select(b"0123456789e-.".to_vec()), 1..25);
    let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 1..20), digits];
    prop_oneof![
        (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        (any::<usize>(), 1..20usize).prop_map(|(at, bytes)| Damage::Cut { at, bytes }),
        (any::<usize>(), bytes).prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
        any::<usize>().prop_map(|at| Damage::End { at }),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let place = |at: usize| at % bytes.len().max(1);
    match damage {
        Damage::Flip { at, bit } => {
            let at = place(*at);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        Damage::Cut { at, bytes: n } => {
            let start = place(*at);
            let end = (start + n).min(bytes.len());
            bytes.drain(start..end);
        }
        Damage::Insert { at, bytes: more } => {
            let at = place(*at);
            bytes.splice(at..at, more.iter().copied());
        }
        Damage::End { at } => {
            let at = place(*at);
            bytes.truncate(at);
        }
    }
}

/// Writes the run with a damaged file.
fn write(dir: &Path, which: usize, damages: &[Damage]) {
    for (i, (name, bytes)) in files().iter().enumerate() {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut bytes = bytes.clone();
        if i == which {
            damages.iter().for_each(|damage| apply(&mut bytes, damage));
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Opens the run to go on with it and to generate from it, as the program does.
fn open(dir: &Path) -> Result<(), Error> {
    let resumed = RunDir::open(dir)?.lock()?;
    let config: RunConfig = resumed.config()?;
    config.check()?;
    let setup = Setup::language(&config, tasks::open(&config)?)?;
    Trainer::resume(setup, resumed, &device()).map(drop)?;
    let generator = Generator::open(&RunDir::open(dir)?, &device())?;
    let sampling = Sampling {
        tokens: 1,
        ..Sampling::default()
    };
    generator
        .stream(b"a", sampling)?
        .try_for_each(|symbol| symbol.map(drop))
}

fn one_line(result: Result<(), Error>) -> Result<bool, TestCaseError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) => {
            let said = error.to_string();
            prop_assert_eq!(said.lines().count(), 1, "{}", said);
            prop_assert!(said.len() < 1000, "{}", said);
            Ok(false)
        }
    }
}

#[test]
fn a_sound_run_opens() {
    let dir = folder("opens");
    write(&dir, usize::MAX, &[]);
    open(&dir).unwrap();
    fs::remove_dir_all(&dir).unwrap();
}

/// Runs a property on the same cases each time: 1000, or `RIVERRUN_DAMAGED`.
fn check(
    files: std::ops::Range<usize>,
    property: impl Fn(usize, Vec<Damage>) -> Result<(), TestCaseError>,
) {
    let cases = match std::env::var("RIVERRUN_DAMAGED") {
        Ok(cases) => cases.parse().expect("RIVERRUN_DAMAGED is a number"),
        Err(_) => 1000,
    };
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let cases = (files, prop::collection::vec(damage(), 1..4));
    TestRunner::new_with_rng(config, rng)
        .run(&cases, |(which, damages)| property(which, damages))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn damaged_words_are_refused_or_understood() {
    let dir = folder("words");
    let _ = fs::remove_dir_all(&dir);
    check(0..4, |which, damages| {
        write(&dir, which, &damages);
        one_line(open(&dir)).map(drop)
    });
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn damaged_checkpoints_are_refused() {
    let dir = folder("checkpoints");
    let _ = fs::remove_dir_all(&dir);
    check(4..10, |which, damages| {
        write(&dir, which, &damages);
        let (name, sound) = &files()[which];
        let changed = fs::read(dir.join(name)).unwrap() != *sound;
        let opened = one_line(open(&dir))?;
        prop_assert!(
            opened != changed,
            "{name} was changed and went unnoticed, or was not and was refused"
        );
        Ok(())
    });
    fs::remove_dir_all(&dir).unwrap();
}

/// Numbers that a person might write into a configuration.
#[test]
fn extreme_values_are_refused_or_understood() {
    let fields = [
        "/model/width",
        "/model/layers",
        "/model/expansion",
        "/model/time_scale",
        "/model/mlp",
        "/model/vocab",
        "/model/dropout",
        "/training/batch",
        "/training/context",
        "/training/lr",
        "/training/optimizer/clip",
        "/training/optimizer/beta_2",
        "/task/split",
    ];
    let values = [
        "0",
        "-1",
        "1",
        "1.5",
        "100000000",
        "1000000000000",
        "18446744073709551615",
        "1e308",
        "null",
    ];
    let dir = folder("values");
    write(&dir, usize::MAX, &[]);
    for field in fields {
        for value in values {
            let mut config: serde_json::Value = serde_json::from_slice(&files()[0].1).unwrap();
            *config.pointer_mut(field).unwrap() = serde_json::from_str(value).unwrap();
            fs::write(dir.join("config.json"), config.to_string()).unwrap();
            if let Err(error) = open(&dir) {
                assert_eq!(
                    error.to_string().lines().count(),
                    1,
                    "{field} {value}: {error}"
                );
            }
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}
