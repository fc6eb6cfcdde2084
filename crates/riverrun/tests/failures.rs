//! What a device does after work that fails: no memory left, a recording that panics or errs.

mod common;

use burn::tensor::{Device, Tensor};
use common::{assert_close, devices, numbers};
use riverrun::{Error, Recording, device};

fn gpu() -> Option<Device> {
    let found = devices().into_iter().find(|(name, _)| name != "cpu");
    found.map(|(_, device)| device)
}

/// A device that computes.
fn works(device: &Device) {
    let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], device);
    assert_close("after it", &numbers(x * 2.0), &[2.0, 4.0, 6.0], 0.0);
}

#[test]
fn a_device_goes_on_after_an_allocation_that_failed() {
    let Some(gpu) = gpu() else { return };
    let bytes: u64 = 1 << 42;
    let huge = Tensor::<1>::zeros([(bytes / 4) as usize], &gpu);
    let error = device::read(huge).expect_err("more than any device has");
    assert!(
        matches!(error, Error::OutOfMemory { requested, .. } if requested >= bytes),
        "{error:?}"
    );
    assert!(!error.to_string().contains('\n'), "{error}");
    works(&gpu);
}

/// Runs `work` as often as a recording needs it to be run before.
fn warm_up(device: &Device, work: impl Fn()) {
    Recording::prepare(device).expect("no other recording");
    for _ in 0..4 {
        work();
        device.sync().expect("the work runs");
    }
}

#[test]
fn a_recording_whose_work_fails_leaves_the_device_usable() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &gpu);
    let double = || x.clone() * 2.0;
    for _ in 0..2 {
        warm_up(&gpu, || drop(double()));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Recording::record(&gpu, || {
                let _lost = double();
                panic!("in the middle of a recording");
            })
            .map(|(recording, ())| drop(recording))
        }));
        assert!(panicked.is_err());
        works(&gpu);
        warm_up(&gpu, || drop(double()));
        let refused = Recording::try_record(&gpu, || {
            let _lost = double();
            Err::<(), Error>(Error::Unsupported("in the middle of a recording".into()))
        });
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        works(&gpu);
        warm_up(&gpu, || drop(double()));
        let (recording, y) = Recording::record(&gpu, double).expect("a recording after failures");
        // SAFETY: `x`, which the recorded work reads, is alive and unchanged.
        unsafe { recording.replay() }.expect("a replay");
        assert_eq!(numbers(y), [2.0, 4.0, 6.0]);
    }
}

#[test]
fn the_cpu_has_no_recordings_and_says_so_before_the_work() {
    let Some((_, cpu)) = devices().into_iter().find(|(name, _)| name == "cpu") else {
        return;
    };
    let result = Recording::record(&cpu, || unreachable!("refused before"));
    assert!(matches!(result.map(|_| ()), Err(Error::Recording(_))));
    let memory = device::memory(&cpu);
    if cfg!(target_os = "linux") {
        let memory = memory.expect("Linux tells");
        assert!(0 < memory.free && memory.free <= memory.total, "{memory:?}");
    }
}
