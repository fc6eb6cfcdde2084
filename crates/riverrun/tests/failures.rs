//! What a device does after work that fails: no memory left, a recording that panics or errs. In a process of its own: nothing
//! else of the process may use a device while work is recorded.

mod common;

use burn::tensor::{Device, Tensor};
use common::{assert_close, devices, numbers};
use riverrun::ops::uniform;
use riverrun::training::{AdamwStep, AdamwTensors, adamw, adamw_numbers};
use riverrun::{Error, Preparation, Recording, device};

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
fn warm_up(device: &Device, work: impl Fn()) -> Preparation {
    let prepared = Recording::prepare(device).expect("no other recording");
    for _ in 0..4 {
        work();
        device.sync().expect("the work runs");
    }
    prepared
}

#[test]
fn a_recording_whose_work_fails_leaves_the_device_usable() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &gpu);
    let double = || x.clone() * 2.0;
    for _ in 0..2 {
        // Ended by dropping it.
        drop(warm_up(&gpu, || drop(double())));
        let prepared = warm_up(&gpu, || drop(double()));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            prepared
                .record(|| {
                    let _lost = double();
                    panic!("in the middle of a recording");
                })
                .map(|(recording, ())| drop(recording))
        }));
        assert!(panicked.is_err());
        works(&gpu);
        let prepared = warm_up(&gpu, || drop(double()));
        drop(prepared.record(double).expect("a recording"));
        works(&gpu);
        let prepared = warm_up(&gpu, || drop(double()));
        let (recording, y) = prepared.record(double).expect("a recording after failures");
        // SAFETY: `x`, which the recorded work reads, is alive and unchanged.
        unsafe { recording.replay() }.expect("a replay");
        assert_eq!(numbers(y), [2.0, 4.0, 6.0]);
    }
}

#[test]
fn an_update_of_a_weight_with_a_clone_is_replayed_once() {
    let Some(gpu) = gpu() else { return };
    let [gradient, factor] = [3, 1].map(|len| Tensor::<1>::ones([len], &gpu));
    let step = AdamwStep {
        lr: 0.5,
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        time: 1,
    };
    let steps = adamw_numbers(step.numbers(), &gpu);
    let update = |weight: Tensor<1>| {
        let moments = [(); 2].map(|()| gradient.clone() * 0.0);
        let tensors = AdamwTensors::new(weight, gradient.clone(), moments, false);
        let tensors = vec![tensors.expect("tensors that fit")];
        let updated = adamw(tensors, factor.clone(), steps.clone())
            .unwrap()
            .remove(0);
        updated.into_tensors::<1>().0
    };
    let weight = || Tensor::<1>::from_floats([1.0, 2.0, 3.0], &gpu);
    for shared in [false, true] {
        let weights: Vec<Tensor<1>> = (0..5).map(|_| weight()).collect();
        let mut weights = weights.into_iter();
        let mut run = || {
            let weight = weights.next().expect("one for each run");
            let clone = shared.then(|| weight.clone());
            (update(weight), clone)
        };
        let prepared = Recording::prepare(&gpu).expect("no other recording");
        for _ in 0..4 {
            numbers(run().0);
        }
        let (recording, (updated, clone)) = prepared.record(run).expect("a recording");
        assert_eq!(recording.repeats(), !shared);
        // SAFETY: the weight or its clone, the gradient, the factor and the numbers are alive and unchanged.
        unsafe { recording.replay() }.expect("a replay");
        assert_close("updated", &numbers(updated), &[0.5, 1.5, 2.5], 1e-5);
        if let Some(clone) = clone {
            assert_eq!(numbers(clone), [1.0, 2.0, 3.0]);
            // SAFETY: as above.
            let again = unsafe { recording.replay() };
            assert!(matches!(again, Err(Error::Recording(_))), "{again:?}");
        }
    }
    works(&gpu);
}

#[test]
fn the_cpu_has_no_recordings_and_says_so_before_the_work() {
    let Some((_, cpu)) = devices().into_iter().find(|(name, _)| name == "cpu") else {
        return;
    };
    let result = Recording::prepare(&cpu);
    assert!(matches!(result.map(|_| ()), Err(Error::Recording(_))));
    let memory = device::memory(&cpu);
    if cfg!(target_os = "linux") {
        let memory = memory.expect("Linux tells");
        assert!(0 < memory.free && memory.free <= memory.total, "{memory:?}");
    }
}

#[test]
fn recorded_random_numbers_follow_their_key() {
    for (name, device) in devices() {
        let key = || Tensor::from_ints([1, 2, 3, 4], &device);
        let words = key();
        let draw = || uniform(words.clone(), 0, [100]).unwrap() * 2.0;
        let Ok(prepared) = Recording::prepare(&device) else {
            println!("skipped: {name} has no recordings");
            continue;
        };
        for _ in 0..3 {
            numbers(draw());
        }
        let recorded = prepared.record(draw);
        let (recording, out) = match recorded {
            Ok(recorded) => recorded,
            Err(error) => {
                println!("skipped: {name}: {error}");
                continue;
            }
        };
        // SAFETY: the key and the result are kept.
        unsafe { recording.replay() }.unwrap();
        let expected = numbers(uniform(key(), 0, [100]).unwrap() * 2.0);
        assert_close(&name, &numbers(out), &expected, 0.0);
    }
}
