//! The spin barrier of `riverrun-kernels` under loom, which runs every order of the threads' loads and stores that the memory
//! model allows, for two threads:
//! `cargo test --manifest-path crates/loom/Cargo.toml`.

#[cfg(test)]
#[path = "../../riverrun-kernels/src/cell/cpu/spin.rs"]
mod spin;

#[cfg(test)]
mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(super) use loom::thread::yield_now;

    /// Every poll is another set of orders.
    pub(super) const SPIN_LIMIT: usize = 2;
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::spin::SpinBarrier;

    /// A number for each thread and stage; loom fails where one thread reads what another writes at the same time.
    struct Shared {
        barrier: SpinBarrier,
        cells: Vec<UnsafeCell<usize>>,
    }

    // SAFETY: loom checks every access.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    impl Shared {
        fn new(threads: usize) -> Arc<Self> {
            Arc::new(Self {
                barrier: SpinBarrier::new(threads),
                cells: (0..2 * threads).map(|_| UnsafeCell::new(0)).collect(),
            })
        }

        /// Writes this thread's number of the stage after adding up all numbers of the stage before.
        fn stage(&self, threads: usize, part: usize, stage: usize) {
            let before = (0..threads).map(|other| {
                let at = (stage + 1) % 2 * threads + other;
                // SAFETY: written in the stage before, if at all.
                self.cells[at].with(|number| unsafe { *number })
            });
            let sum: usize = before.sum();
            let at = stage % 2 * threads + part;
            // SAFETY: this thread's own, read in the next stage.
            self.cells[at].with_mut(|number| unsafe { *number = sum + 1 });
        }
    }

    /// `run_together` on threads of loom: those who join in time take part; where one does not, or the barrier
    /// is abandoned, this thread finishes the stages.
    fn run(threads: usize, stages: usize) {
        let shared = Shared::new(threads);
        let others: Vec<_> = (1..threads)
            .map(|part| {
                let shared = shared.clone();
                thread::spawn(move || {
                    if shared.barrier.join() {
                        let work = |stage| shared.stage(threads, part, stage);
                        shared.barrier.run(stages, work);
                    }
                })
            })
            .collect();
        let together = shared.barrier.close();
        let done = match together {
            true => shared
                .barrier
                .run(stages, |stage| shared.stage(threads, 0, stage)),
            false => 0,
        };
        others
            .into_iter()
            .for_each(|other| other.join().expect("a thread"));
        for stage in done..stages {
            (0..threads).for_each(|part| shared.stage(threads, part, stage));
        }
        // Each stage adds one to the sum of all before: 1, threads + 1, ...
        let expected = (0..stages).fold(0, |sum, _| threads * sum + 1);
        for part in 0..threads {
            let at = (stages + 1) % 2 * threads + part;
            // SAFETY: every thread has ended.
            let found = shared.cells[at].with(|number| unsafe { *number });
            assert_eq!(found, expected, "thread {part}, together: {together}");
        }
    }

    fn model(stages: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || run(2, stages));
    }

    #[test]
    fn one_stage() {
        model(1);
    }

    #[test]
    fn three_stages() {
        model(3);
    }
}
