//! Launches on a GPU, this library's and Burn's alike.

/// The number of launches that a call makes, and its result. The call has to wait for its end.
#[cfg(feature = "gpu")]
pub(super) fn count<T>(call: impl FnOnce() -> T) -> (Option<usize>, T) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cubecl::logging::{LaunchObservation, LaunchObserver};

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl LaunchObserver for Counter {
        fn launched(&self, _: &'static str) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let counter = Arc::new(Counter::default());
    let watching = LaunchObservation::new(counter.clone());
    let found = call();
    drop(watching);
    (Some(counter.0.load(Ordering::Relaxed)), found)
}

/// The number of different kernels that a call launches, and its result.
#[cfg(feature = "gpu")]
pub(super) fn kernels<T>(call: impl FnOnce() -> T) -> (Option<usize>, T) {
    let launched = cubecl::launched::LaunchedKernels::new();
    let found = call();
    (Some(launched.finish().len()), found)
}

/// Without GPUs nothing is launched.
#[cfg(not(feature = "gpu"))]
pub(super) fn count<T>(call: impl FnOnce() -> T) -> (Option<usize>, T) {
    (None, call())
}

/// Without GPUs nothing is launched.
#[cfg(not(feature = "gpu"))]
pub(super) fn kernels<T>(call: impl FnOnce() -> T) -> (Option<usize>, T) {
    (None, call())
}
