//! Threads of the kernels, and processes that fork.
//!
//! Rayon's own pool cannot be started again, and its threads do not exist in a forked process, where its first call would
//! wait forever. Pools are therefore kept here, by their number of threads, for one process; and a fork waits until no kernel
//! runs, so that no lock is held in the child.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Pools that are kept.
const POOLS: usize = 8;

/// The most threads of a pool.
const THREADS: usize = 1024;

/// Read by running kernels, written by a fork.
static FORK: RwLock<()> = RwLock::new(());

struct Pools {
    process: u32,
    /// The one used last is the last one.
    pools: Vec<Arc<ThreadPool>>,
}

static ALL: Mutex<Pools> = Mutex::new(Pools {
    process: 0,
    pools: Vec::new(),
});

thread_local! {
    static FORKING: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// The pool with this many threads.
fn pool(threads: usize) -> PyResult<Arc<ThreadPool>> {
    if !(1..=THREADS).contains(&threads) {
        let text = format!("expected 1 to {THREADS} threads, found {threads}");
        return Err(PyValueError::new_err(text));
    }
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if all.process != process {
        // The threads of a parent process are not here; dropping their pools would wake them.
        std::mem::forget(std::mem::take(&mut all.pools));
        all.process = process;
    }
    let found = all
        .pools
        .iter()
        .position(|pool| pool.current_num_threads() == threads);
    let pool = match found {
        Some(index) => all.pools.remove(index),
        None => {
            let builder = ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|index| format!("riverrun-{index}"));
            let pool = builder
                .build()
                .map_err(|error| PyRuntimeError::new_err(format!("threads: {error}")))?;
            if all.pools.len() == POOLS {
                all.pools.remove(0);
            }
            Arc::new(pool)
        }
    };
    all.pools.push(Arc::clone(&pool));
    Ok(pool)
}

/// Runs a kernel on `threads` threads, while other Python threads go on.
pub fn run<R: Send>(
    py: Python<'_>,
    threads: usize,
    kernel: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    py.detach(|| {
        let _running = FORK.read().unwrap_or_else(PoisonError::into_inner);
        Ok(pool(threads)?.install(kernel))
    })
}

/// Waits until no kernel runs, and keeps new ones from starting.
#[pyfunction]
pub fn before_fork(py: Python<'_>) {
    py.detach(|| {
        let guard = FORK.write().unwrap_or_else(PoisonError::into_inner);
        FORKING.with_borrow_mut(|forking| *forking = Some(guard));
    });
}

/// Lets kernels start again, in the parent and in the child.
#[pyfunction]
pub fn after_fork() {
    FORKING.with_borrow_mut(Option::take);
}
