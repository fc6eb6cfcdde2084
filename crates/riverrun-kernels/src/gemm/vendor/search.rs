//! The choice among the algorithms that cuBLASLt's heuristics give for a problem; [`choices`](crate::gemm::choices) says how
//! it is made and kept.
//!
//! Nothing is measured implicitly, so that two runs of a program take the same algorithms and give the same bits. A choice
//! holds for one version of the library on one kind of GPU, whose names are in the file's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cubecl::client::Client;
use cubecl::future::block_on;

use super::library::Library;
use super::{Buffers, Problem, Vendor, choose};
use crate::gemm::choices::{Choice, Choices, search};
use crate::gemm::{Layout, Order};

/// Algorithms that are measured for a problem.
const MOST: usize = 12;
/// Multiplications and additions below which a product takes its launch's time, whatever the algorithm.
const WORTH_MEASURING: f64 = 1e8;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Lets CUDA devices that are opened from now on take the algorithms that [`Vendor::search`] chose in this or an earlier
/// program, from files in `folder`. Without such a file all products take the heuristics' first.
///
/// Returns whether the folder is the one in use: the first that is given stays.
pub fn keep_choices(folder: &Path) -> bool {
    FOLDER.get_or_init(|| folder.into()) == folder
}

/// The choices of a device, and their file.
pub(super) struct Kept {
    path: Option<PathBuf>,
    choices: Mutex<Choices>,
}

impl Kept {
    /// Those for a client's device; a file that cannot be used is ignored with a warning.
    pub fn open(client: &Client) -> Self {
        let name = client.properties().identity.name.chars();
        let name: String = name
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let file = format!("cublaslt-{}-{name}.txt", Library::version());
        let path = FOLDER.get().map(|folder| folder.join(file));
        let choices = path.as_deref().map(|path| {
            Choices::read(path).unwrap_or_else(|error| {
                tracing::warn!("chosen algorithms are ignored: {}: {error}", path.display());
                Choices::default()
            })
        });
        Self {
            path,
            choices: Mutex::new(choices.unwrap_or_default()),
        }
    }
}

/// A problem in a file of choices.
fn name(problem: &Problem) -> String {
    let Problem {
        m,
        k,
        n,
        a,
        b,
        dtype,
        arithmetic,
        epilogue,
    } = problem;
    let dtype = dtype.name();
    format!("{dtype} {arithmetic:?} {m}x{k}x{n} {a:?} {b:?} {epilogue:?}")
}

impl Vendor {
    /// How many algorithms the heuristics give for a problem with aligned buffers, at most `most`.
    pub fn algorithms(&self, problem: &Problem, most: usize) -> usize {
        let exists = |nth: &usize| {
            let found = self
                .device
                .ask(|| choose(&self.library, problem, 256, *nth).map(|_| ()));
            found.is_ok()
        };
        (0..most).take_while(exists).count()
    }

    /// Chooses the `nth` of the heuristics' algorithms for a problem with aligned buffers from now on; 0 is the heuristics' own
    /// choice.
    ///
    /// # Errors
    /// If there are not that many.
    pub fn prefer(&self, problem: &Problem, nth: usize) -> Result<(), String> {
        self.device
            .ask(|| choose(&self.library, problem, 256, nth).map(|_| ()))?;
        let mut choices = self.choices();
        choices.set(&name(problem), nth);
        drop(choices);
        self.plans.forget(|(known, _)| known == problem);
        Ok(())
    }

    /// The number of the algorithm that was chosen for a problem with aligned buffers; 0 without a choice.
    pub fn preference(&self, problem: &Problem) -> usize {
        self.choices().get(&name(problem)).unwrap_or(0)
    }

    fn choices(&self) -> MutexGuard<'_, Choices> {
        let choices = self.kept.choices.lock();
        choices.unwrap_or_else(PoisonError::into_inner)
    }

    /// The problems that this process has asked the library for, and that are large enough to differ by their algorithm, the
    /// largest first.
    pub fn problems(&self) -> Vec<Problem> {
        let planned = self.plans.planned().into_iter();
        let mut problems: Vec<Problem> = planned
            .map(|(problem, _)| problem)
            .filter(|problem| problem.flops() >= WORTH_MEASURING)
            .collect();
        problems.sort_by_key(|problem| (std::cmp::Reverse(problem.flops() as u64), name(problem)));
        problems.dedup();
        problems
    }

    /// Measures the heuristics' algorithms for a problem on buffers of its own, and takes the fastest from now on. Waits for
    /// the device. [`save`](Self::save) keeps the choice.
    ///
    /// # Errors
    /// Where the library has no algorithm for the problem, or none that works.
    pub fn search(self: &Arc<Self>, client: &Client, problem: &Problem) -> Result<Choice, String> {
        let buffers = scratch(client, problem);
        let time = |nth: usize, launches: usize| -> Result<f64, String> {
            self.prefer(problem, nth)?;
            let launch = || self.launch(client, problem, buffers.clone());
            // Loads the kernel; a launch that failed has left its error on what it writes.
            launch()?;
            block_on(client.sync_buffers([&buffers.d])).map_err(|error| error.to_string())?;
            let row = || (0..launches).try_for_each(|_| launch());
            let profiled = client.profile(row, "product");
            let (launched, profile) = profiled.map_err(|error| error.to_string())?;
            launched?;
            let ticks = block_on(profile.resolve()).ok_or("no time")?;
            Ok(ticks.duration().as_secs_f64() / launches as f64)
        };
        let before = self.preference(problem);
        let found = search(self.algorithms(problem, MOST), |nth, launches| {
            let time = time(nth, launches);
            if let Err(reason) = &time {
                tracing::debug!(nth, problem = name(problem), "not measured: {reason}");
            }
            time.ok().filter(|seconds| *seconds > 0.0)
        });
        let algorithm = found.map_or(before, |choice| choice.algorithm);
        self.prefer(problem, algorithm)?;
        found.ok_or_else(|| "none of cuBLASLt's algorithms could be measured".into())
    }

    /// Writes the choices of the device to its file, beside those that other programs have written meanwhile, and returns it.
    ///
    /// # Errors
    /// Without a folder ([`keep_choices`]), and where the file cannot be written.
    pub fn save(&self) -> Result<PathBuf, String> {
        let path = self.kept.path.as_ref();
        let path = path.ok_or("there is no folder for the choices")?;
        // A damaged one is replaced.
        let mut all = Choices::read(path).unwrap_or_default();
        all.extend(self.choices().clone());
        let said = |error| format!("{}: {error}", path.display());
        all.write(path).map_err(said)?;
        Ok(path.clone())
    }
}

/// Buffers for a problem; what is in them does not matter.
fn scratch(client: &Client, problem: &Problem) -> Buffers {
    let Problem { m, k, n, .. } = *problem;
    let size = problem.dtype.size();
    let some = |elements: usize| client.empty(elements * size);
    // As in `expect_sizes`: lines apart by their stride.
    let lines = |layout: Layout, [rows, columns]: [usize; 2]| match layout.order {
        Order::Rows => rows * layout.stride,
        Order::Columns => columns * layout.stride,
    };
    let vector = problem.epilogue.vector(m, n);
    Buffers {
        a: some(lines(problem.a, [m, k])),
        b: some(lines(problem.b, [k, n])),
        d: some(m * n),
        vector: (vector > 0).then(|| some(vector)),
        pre: problem.epilogue.has_pre().then(|| some(m * n)),
    }
}
