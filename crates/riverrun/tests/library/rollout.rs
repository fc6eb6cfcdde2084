//! Rollouts, states of training runs and random numbers on tensors, against the kernels' oracles.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::Error;
use riverrun::ops::{Decode, Ensemble, RunStates, encode_states, rollout, uniform};
use riverrun_testkit::encoder::Config;
use riverrun_testkit::encoder::check::{compare, encoded, random_run, reference};
use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::{HEADS, Problem};

use crate::common::{devices, numbers};
use crate::key;

struct Given {
    ensemble: Ensemble,
    h0: Tensor<2>,
    features: Tensor<1>,
    loss: Tensor<1>,
}

fn given(case: &Case, device: &Device) -> Given {
    let p = case.problem;
    let a = case.arguments();
    let data = |x: &[f32], shape: Vec<usize>| TensorData::new(x.to_vec(), shape);
    let rows = 3 * p.hidden;
    Given {
        ensemble: Ensemble::new(
            Tensor::from_data(data(a.w, vec![p.members, rows, p.features]), device),
            Tensor::from_data(data(a.u, vec![p.members, rows, p.hidden]), device),
            Tensor::from_data(data(a.bias, vec![p.members, rows]), device),
            Tensor::from_data(data(a.heads, vec![HEADS, p.combined()]), device),
        ),
        h0: Tensor::from_data(data(a.h0, vec![p.members, p.hidden]), device),
        features: Tensor::from_data(data(a.features, vec![p.features]), device),
        loss: Tensor::from_data(data(a.loss, vec![1]), device),
    }
}

fn problems() -> Vec<Problem> {
    vec![
        Problem::new(5, 48, 6).with_stochastic(20).with_features(7),
        Problem::new(2, 32, 0),
        Problem::new(3, 16, 4).with_decode(Decode::Linear),
        // More hidden units than the GPU kernels take.
        Problem::new(1, 1028, 1).with_features(2),
    ]
}

#[test]
fn rollouts_pass_with_and_without_gradients() {
    for (seed, problem) in problems().into_iter().enumerate() {
        let case = Case::random(problem, seed as u64);
        for (name, device) in devices() {
            for device in [device.clone(), device.autodiff()] {
                let Given {
                    ensemble,
                    h0,
                    features,
                    loss,
                } = given(&case, &device);
                let found =
                    rollout(&ensemble, h0, features, loss, problem.steps, problem.decode).unwrap();
                assert_eq!(
                    found.trajectory.dims(),
                    [problem.members, problem.steps + 1]
                );
                assert_eq!(found.norm.dims(), [problem.members, problem.steps]);
                let (read, outcome) = found.read();
                assert_eq!(read, problem);
                for comparison in case.compare(&outcome).unwrap() {
                    assert!(comparison.passes(), "{name} {problem:?}: {comparison:?}");
                }
                let widths = numbers(found.state);
                assert_eq!(widths.len(), problem.members * problem.combined());
                assert_eq!(numbers(found.entropy).len(), problem.members);
            }
        }
    }
}

#[test]
fn gradients_of_a_rollout_are_its_slopes() {
    let device = Device::flex().autodiff();
    let case = Case::random(Problem::new(2, 6, 3).with_features(3).with_stochastic(4), 3);
    let loss_of = |case: &Case| {
        let reference = case.oracle().unwrap();
        let points: f64 = reference.trajectory.iter().map(|x| x.ln()).sum();
        points + reference.entropy.iter().sum::<f64>() + reference.delta.iter().sum::<f64>()
    };
    let mut given = given(&case, &device);
    let track = |x: Tensor<3>| x.require_grad();
    given.ensemble.u = track(given.ensemble.u);
    given.ensemble.w = track(given.ensemble.w);
    given.h0 = given.h0.require_grad();
    let u = given.ensemble.u.clone();
    let (w, h0) = (given.ensemble.w.clone(), given.h0.clone());
    let found = rollout(
        &given.ensemble,
        given.h0,
        given.features,
        given.loss,
        3,
        Decode::LogLoss,
    )
    .unwrap();
    let total = found.trajectory.log().sum() + found.entropy.sum() + found.delta.sum();
    let gradients = total.backward();
    for (array, found) in [
        (0, numbers(w.grad(&gradients).unwrap())),
        (1, numbers(u.grad(&gradients).unwrap())),
        (4, numbers(h0.grad(&gradients).unwrap())),
    ] {
        for at in (0..found.len()).step_by(7) {
            let moved = |by: f32| {
                let mut case = case.clone();
                case.arrays_mut()[array][at] += by;
                (f64::from(case.arrays_mut()[array][at]), loss_of(&case))
            };
            let ((up, high), (down, low)) = (moved(1e-3), moved(-1e-3));
            let slope = (high - low) / (up - down);
            let error = (found[at] - slope).abs();
            assert!(
                error < 1e-3 * slope.abs().max(1.0),
                "{array} {at}: {} {slope}",
                found[at]
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::flex();
    let case = Case::random(Problem::new(2, 8, 3).with_features(5), 0);
    let wrong = |change: &dyn Fn(&mut Given)| {
        let mut given = given(&case, &device);
        change(&mut given);
        let Given {
            ensemble,
            h0,
            features,
            loss,
        } = given;
        rollout(&ensemble, h0, features, loss, 3, Decode::LogLoss).is_err()
    };
    assert!(!wrong(&|_| ()));
    assert!(wrong(&|g| g.h0 = Tensor::zeros([2, 7], &device)));
    assert!(wrong(&|g| g.features = Tensor::zeros([4], &device)));
    assert!(wrong(&|g| g.loss = Tensor::zeros([2], &device)));
    assert!(wrong(&|g| g.ensemble.u = Tensor::zeros([2, 24, 7], &device)));
    assert!(wrong(&|g| g.ensemble.bias = Tensor::zeros([2, 23], &device)));
    assert!(wrong(
        &|g| g.ensemble.heads = Tensor::zeros([10, 16], &device)
    ));
    assert!(wrong(
        &|g| g.ensemble.heads = Tensor::zeros([11, 8], &device)
    ));
    let Given {
        ensemble,
        h0,
        features,
        loss,
    } = given(&case, &device);
    let linear = rollout(&ensemble, h0, features, loss, 3, Decode::Linear);
    // S = H here.
    assert!(linear.is_ok());
}

#[test]
fn states_of_many_runs() {
    let config = Config::default();
    let runs: Vec<_> = [0, 1, 31, 32, 300]
        .iter()
        .map(|steps| random_run(*steps, *steps as u64))
        .collect();
    let encoders: Vec<_> = runs.iter().map(|run| encoded(config, run)).collect();
    for (name, device) in devices() {
        let states = RunStates::from_encoders(&encoders, &device).unwrap();
        let found = encode_states(states).unwrap();
        assert_eq!(found.dims(), [5, 64]);
        let found: Vec<f32> = found.into_data().iter().collect();
        for (n, run) in runs.iter().enumerate() {
            let expected = reference(&config, run);
            let comparison = compare(&found[n * 64..(n + 1) * 64], &expected, true);
            assert!(comparison.passes(), "{name} {}: {comparison:?}", run.len());
        }
        let zeros = |width| Tensor::<2>::zeros([2, width], &device);
        let short = RunStates::new(zeros(256), zeros(16), zeros(24));
        assert!(matches!(encode_states(short), Err(Error::Kernel(_))));
        let narrow = RunStates::new(zeros(256), zeros(64), zeros(23));
        assert!(matches!(encode_states(narrow), Err(Error::Shape { .. })));
    }
}

#[test]
fn features_go_on_to_a_rollout_on_the_device() {
    let run = random_run(60, 4);
    let encoder = encoded(Config::default(), &run);
    let mut case = Case::random(Problem::new(2, 16, 3).with_features(64), 5);
    for (name, device) in devices() {
        let states = RunStates::from_encoders([&encoder], &device).unwrap();
        let features: Tensor<1> = encode_states(states).unwrap().squeeze_dim(0);
        // The oracle of the rollout goes on from the features that the device has found.
        let read: Vec<f32> = features.clone().into_data().iter().collect();
        case.arrays_mut()[5].clone_from(&read);
        let Given {
            ensemble, h0, loss, ..
        } = given(&case, &device);
        let found = rollout(&ensemble, h0, features, loss, 3, Decode::LogLoss).unwrap();
        for comparison in case.compare(&found.read().1).unwrap() {
            assert!(comparison.passes(), "{name}: {comparison:?}");
        }
    }
}

#[test]
fn random_numbers_are_the_same_on_every_device() {
    let mut expected = vec![f32::NAN; 6000];
    riverrun_kernels::random::cpu::uniform([1, u32::MAX, 3, 1 << 31], 7, &mut expected);
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    for (name, device) in devices() {
        for device in [device.clone(), device.autodiff()] {
            let words = [1, -1, 3, i32::MIN];
            let found = uniform(key(words, &device), 7, [20, 30, 10]).unwrap();
            assert_eq!(numbers(found), expected, "{name}");
        }
    }
}

#[test]
fn more_random_numbers_than_a_stream_has_are_refused() {
    let device = Device::flex();
    let draw = |shape: [usize; 3]| uniform(key([1, 2, 3, 4], &device), 0, shape);
    for shape in [
        [1 << 20, 1 << 20, 1 << 30],
        [1 << 16, 1 << 16, 2],
        [usize::MAX; 3],
    ] {
        assert!(
            matches!(draw(shape), Err(Error::Unsupported(_))),
            "{shape:?}"
        );
    }
    assert_eq!(draw([3, 0, 5]).expect("no numbers").dims(), [3, 0, 5]);
}

#[test]
fn an_ensemble_of_nobody_forecasts_nothing() {
    let case = Case::random(Problem::new(0, 8, 3).with_features(2), 1);
    for (name, device) in devices() {
        for device in [device.clone(), device.autodiff()] {
            let mut given = given(&case, &device);
            given.ensemble.u = given.ensemble.u.set_require_grad(device.is_autodiff());
            let Given {
                ensemble,
                h0,
                features,
                loss,
            } = given;
            for steps in [0, 3] {
                let decode = Decode::LogLoss;
                let (h0, features, loss) = (h0.clone(), features.clone(), loss.clone());
                let found = rollout(&ensemble, h0, features, loss, steps, decode);
                let found = found.expect("arguments that fit");
                assert_eq!(found.trajectory.dims(), [0, steps + 1], "{name}");
                assert_eq!(found.norm.dims(), [0, steps], "{name}");
                assert_eq!(found.delta.dims(), [0, 10], "{name}");
                assert_eq!(found.entropy.dims(), [0], "{name}");
                assert!(found.read().1.trajectory.is_empty(), "{name}");
                if device.is_autodiff() {
                    let grads = (found.trajectory.sum() + found.delta.sum()).backward();
                    if let Some(gradient) = ensemble.u.grad(&grads) {
                        assert_eq!(gradient.dims(), ensemble.u.dims(), "{name}");
                    }
                }
            }
        }
    }
}
