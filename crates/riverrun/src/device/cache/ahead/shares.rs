//! Which of several threads compiles which kernel.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cubecl_environment::bytes::Bytes;
use cubecl_environment::persistence::{Insertion, Origin, Storage};

/// A kernel, by the hash that its entry in CubeCL's table has.
pub type Kernel = u128;

/// The longest time from the start of a launch to its lookup in the table.
const LOOKUP: Duration = Duration::from_millis(3);

/// The longest wait for another thread to start the launch of a kernel that it compiles.
const PATIENCE: Duration = Duration::from_secs(1);

/// Divides kernels among threads that all launch the same ones.
///
/// A thread that launches a kernel [asks](Self::take) first. The first to ask compiles it; for the others a placeholder lies
/// in the table, which is quick to load. What was compiled is kept aside until all are [done](Self::put_back).
///
/// Sharing only saves time: in whatever order the threads run, the table ends with compiled kernels alone.
pub struct Shares {
    table: Mutex<Box<dyn Storage>>,
    key: fn(Kernel) -> Vec<u8>,
    placeholder: Vec<u8>,
    state: Mutex<HashMap<Kernel, State>>,
    changed: Condvar,
    compiled: Mutex<Vec<(Vec<u8>, Bytes)>>,
}

#[derive(Clone, Copy)]
enum State {
    /// A thread will compile it.
    Taken,
    /// Its launch started at this time.
    Launched(Instant),
    /// It is in the table, or a placeholder is.
    Done,
}

impl Shares {
    /// No kernel is taken yet. `key` is a kernel's key in `table`, and `placeholder` a value that no kernel has.
    pub fn new(table: Box<dyn Storage>, key: fn(Kernel) -> Vec<u8>, placeholder: Vec<u8>) -> Self {
        Self {
            table: Mutex::new(table),
            key,
            placeholder,
            state: Mutex::default(),
            changed: Condvar::new(),
            compiled: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Box<dyn Storage>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, HashMap<Kernel, State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody has asked for a kernel yet.
    pub fn is_free(&self, kernel: Kernel) -> bool {
        !self.state().contains_key(&kernel)
    }

    /// Whether the calling thread is to compile a kernel that it is about to launch.
    pub fn take(&self, kernel: Kernel) -> bool {
        let key = (self.key)(kernel);
        let asked = Instant::now();
        let mut state = self.state();
        loop {
            match state.get(&kernel).copied() {
                None => {
                    let known = self.table().get(&key).is_some();
                    let next = if known { State::Done } else { State::Taken };
                    state.insert(kernel, next);
                    return !known;
                }
                Some(State::Done) => return false,
                Some(State::Launched(start)) => {
                    let left = LOOKUP.saturating_sub(start.elapsed());
                    drop(state);
                    std::thread::sleep(left);
                    // What its thread has compiled meanwhile stays: it is local.
                    let value = Bytes::from_bytes_vec(self.placeholder.clone());
                    let _: Insertion = self.table().insert(&key, value, Origin::Imported);
                    return false;
                }
                Some(State::Taken) => {
                    let left = PATIENCE.saturating_sub(asked.elapsed());
                    if left.is_zero() {
                        return false;
                    }
                    let wait = self.changed.wait_timeout(state, left);
                    state = wait.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// The launch of a taken kernel starts.
    pub fn launch(&self, kernel: Kernel) {
        self.state().insert(kernel, State::Launched(Instant::now()));
        self.changed.notify_all();
    }

    /// The launch of a taken kernel has returned.
    pub fn finish(&self, kernel: Kernel) {
        let key = (self.key)(kernel);
        {
            let table = self.table();
            if let Some(value) = table.get(&key).filter(|value| !self.is_placeholder(value)) {
                let placeholder = Bytes::from_bytes_vec(self.placeholder.clone());
                let _: Insertion = table.replace(&key, placeholder, Origin::Imported);
                let compiled = self.compiled.lock();
                let mut compiled = compiled.unwrap_or_else(PoisonError::into_inner);
                compiled.push((key, value));
            }
        }
        self.state().insert(kernel, State::Done);
        self.changed.notify_all();
    }

    fn is_placeholder(&self, value: &[u8]) -> bool {
        value == self.placeholder
    }

    /// Fills the table with what was compiled, and takes the placeholders out. Returns the number of kernels compiled.
    pub fn put_back(&self) -> usize {
        let table = self.table();
        let compiled = self.compiled.lock();
        let compiled = std::mem::take(&mut *compiled.unwrap_or_else(PoisonError::into_inner));
        let count = compiled.len();
        for (key, value) in compiled {
            let _: Insertion = table.replace(&key, value, Origin::Local);
        }
        let mut left = Vec::new();
        table.scan(&mut |key, value| {
            if self.is_placeholder(value) {
                left.push(key.to_vec());
            }
        });
        for key in left {
            table.purge_key(&key);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cubecl_environment::persistence::MemoryStorage;

    use super::*;

    fn key(kernel: Kernel) -> Vec<u8> {
        kernel.to_le_bytes().to_vec()
    }

    /// What CubeCL does at the first launch of a kernel: it takes the entry, or compiles and inserts one.
    fn launch(table: &MemoryStorage, kernel: Kernel, compiled: &AtomicUsize) {
        if table.get(&key(kernel)).is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
        compiled.fetch_add(1, Ordering::Relaxed);
        let value = Bytes::from_bytes_vec(vec![kernel as u8; 10]);
        table.insert(&key(kernel), value, Origin::Local);
    }

    /// A thread that is slow to launch finds a placeholder and compiles nothing: a kernel may be missing, and none is wrong.
    #[test]
    fn the_table_ends_with_compiled_kernels_alone() {
        const KERNELS: Kernel = 40;
        let open = || MemoryStorage::new("shares of a test");
        let known = Bytes::from_bytes_vec(vec![7; 3]);
        open().insert(&key(3), known, Origin::Local);
        let shares = Shares::new(Box::new(open()), key, vec![255]);
        let compiled = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let table = open();
                    for kernel in 0..KERNELS {
                        let mine = shares.take(kernel);
                        if mine {
                            shares.launch(kernel);
                        }
                        launch(&table, kernel, &compiled);
                        if mine {
                            shares.finish(kernel);
                        }
                    }
                });
            }
        });
        let count = shares.put_back();
        let found = |kernel| open().get(&key(kernel)).map(|value| value.to_vec());
        assert_eq!(found(3), Some(vec![7; 3]));
        let mut there = 0;
        for kernel in (0..KERNELS).filter(|kernel| *kernel != 3) {
            let Some(value) = found(kernel) else {
                continue;
            };
            assert_eq!(value, [kernel as u8; 10], "kernel {kernel}");
            there += 1;
        }
        assert!(count <= there && there <= compiled.into_inner());
    }

    #[test]
    fn a_kernel_that_does_not_compile_leaves_nothing() {
        let open = || MemoryStorage::new("shares of another test");
        let shares = Shares::new(Box::new(open()), key, vec![255]);
        assert!(shares.take(1));
        shares.launch(1);
        assert!(!shares.take(1));
        shares.finish(1);
        assert!(!shares.take(1));
        assert_eq!(shares.put_back(), 0);
        assert!(open().get(&key(1)).is_none());
    }
}
