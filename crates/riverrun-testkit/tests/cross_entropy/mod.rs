//! The cross-entropy at any shape and tuning, and at extremes; its oracle against finite differences; and what it refuses.

use half::bf16;
use proptest::prelude::*;
use riverrun_kernels::Error;
use riverrun_kernels::cross_entropy::cpu;
use riverrun_testkit::loss::{Loss, oracle};
use riverrun_testkit::{Case, Tensors};

use crate::shared::assert_cpu_is_right;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cpu_is_right_at_any_shape(rows in 0usize..40, vocab in 1usize..300, seed: u64) {
        let case = Loss::random([rows, vocab], seed);
        assert_cpu_is_right::<f32>(&case);
        assert_cpu_is_right::<bf16>(&case);
    }
}

#[test]
fn the_oracle_has_the_slopes_of_its_function() {
    let case = Loss::random([6, 7], 4);
    let loss = |x: &[f64]| case.d_loss * oracle::forward(x, 7, &case.targets).loss;
    let slopes = oracle::backward(&case.x, 7, &case.targets, case.d_loss);
    for i in 0..case.x.len() {
        let (mut up, mut down) = (case.x.clone(), case.x.clone());
        (up[i], down[i]) = (case.x[i] + 1e-5, case.x[i] - 1e-5);
        let slope = (loss(&up) - loss(&down)) / 2e-5;
        assert!(
            (slope - slopes[i]).abs() < 1e-8,
            "{i}: {slope} {}",
            slopes[i]
        );
    }
}

/// Logits that a softmax written out would lose: far up, far down, and none at all.
fn extremes() -> Loss {
    let mut case = Loss::random([5, 40], 9);
    case.targets = vec![0, 1, 2, -1, 4];
    case.x[..40].fill(3e38);
    case.x[40..80].iter_mut().for_each(|x| *x -= 1e30);
    case.x[83..120].fill(f64::NEG_INFINITY);
    // A row that does not count may hold anything.
    case.x[120..160].fill(f64::NAN);
    case.rounded::<f32>()
}

fn assert_extremes(found: &Tensors) {
    let [lse, d_x, loss] = ["lse", "d_x", "loss"].map(|name| found.get(name));
    let near = |x: f64, y: f64| (x - y).abs() <= 1e-6 * y.abs();
    assert!(near(lse[0], 3e38) && near(lse[1], -1e30));
    assert!(d_x[83..120].iter().all(|&d| d == 0.0));
    assert!(d_x[120..160].iter().all(|&d| d == 0.0));
    assert!(d_x.iter().all(|d| d.is_finite()));
    assert!(loss[0].is_finite());
}

#[test]
fn extreme_logits_are_right_on_the_cpu() {
    assert_extremes(&extremes().cpu::<f32>().unwrap());
}

#[test]
fn a_target_outside_the_vocabulary_is_seen() {
    let mut case = Loss::random([4, 9], 1);
    case.targets[2] = 9;
    assert!(case.cpu::<f32>().unwrap().get("loss")[0].is_nan());
}

#[test]
fn wrong_lengths_are_refused() {
    let mut lse = [0.0; 2];
    let length = |what, expected, found| {
        Err(Error::Length {
            what,
            expected,
            found,
        })
    };
    assert_eq!(
        cpu::forward::<f32>(&[], 0, &[], &mut []),
        Err(Error::NoChannels)
    );
    assert_eq!(
        cpu::forward(&[1.0f32; 5], 3, &[0, 0], &mut lse),
        length("x", 6, 5)
    );
    assert_eq!(
        cpu::forward(&[1.0f32; 3], 3, &[0], &mut lse),
        length("lse", 1, 2)
    );
}

#[cfg(feature = "gpu")]
mod on_gpu {
    use riverrun_kernels::cross_entropy::gpu::Tuning;
    use riverrun_kernels::gpu::Dtype;
    use riverrun_testkit::judge;

    use super::*;
    use crate::device::client;

    #[test]
    fn every_tuning_is_right() {
        let Some(client) = client() else { return };
        for (bytes, ahead, per_thread, units) in [(4, 1, 1, 64), (8, 2, 4, 32), (16, 4, 2, 256)] {
            let tuning = Some(Tuning {
                bytes,
                ahead,
                per_thread,
                units,
            });
            for shape in [[12, 30], [4, 777], [8, 3]] {
                let case = Loss::random(shape, 5).rounded::<f32>();
                let run = || case.tuned(&client, Dtype::F32, [tuning; 2]);
                let verdict = judge::<f32, _>(&case, run).expect("a problem it can run");
                assert!(verdict.passes(), "{tuning:?} {shape:?}: {verdict:?}");
            }
        }
    }

    #[test]
    fn extreme_logits_are_right() {
        let Some(client) = client() else { return };
        let found = extremes().gpu(&client, Dtype::F32);
        assert_extremes(&found.expect("a problem it can run"));
        let mut case = Loss::random([4, 9], 1);
        case.targets[2] = 9;
        let found = case.gpu(&client, Dtype::F32);
        assert!(found.expect("a problem it can run").get("loss")[0].is_nan());
    }

    /// A target beyond 32 bits is no class, whatever its lower half is.
    #[test]
    fn targets_of_64_bits() {
        use cubecl::ir::features::TypeUsage;
        use cubecl::ir::{ElemType, IntKind};
        use riverrun_kernels::cross_entropy::gpu::{Backward, Forward, backward, forward};

        let Some(client) = client() else { return };
        let index = ElemType::Int(IntKind::I64);
        let usage = client.properties().type_usage(index);
        if !usage.contains(TypeUsage::Conversion) {
            println!("skipped: the device has no 64-bit integers");
            return;
        }
        let numbers = |n: usize| client.create_from_slice(&vec![0; n * 4]);
        let x = client.create_from_slice(bytemuck::cast_slice(&[0.0_f32; 8]));
        for (second, is_nan) in [((1_i64 << 32) + 1, true), (-(1_i64 << 32), false)] {
            let targets = [1_i64, second];
            let targets = client.create_from_slice(bytemuck::cast_slice(&targets));
            let (loss, lse, weight) = (numbers(1), numbers(2), numbers(1));
            let args = Forward {
                x: x.clone(),
                targets: targets.clone(),
                index,
                loss: loss.clone(),
                lse: lse.clone(),
                weight: weight.clone(),
            };
            forward(&client, Dtype::F32, [2, 4], &args, None).unwrap();
            let read = client.read_one(loss).unwrap();
            let loss = bytemuck::cast_slice::<u8, f32>(&read)[0];
            assert_eq!(loss.is_nan(), is_nan, "{second}: {loss}");
            let d_x = numbers(8);
            let args = Backward {
                x: x.clone(),
                targets,
                index,
                lse,
                weight,
                d_loss: client.create_from_slice(&1.0_f32.to_ne_bytes()),
                d_x: d_x.clone(),
            };
            backward(&client, Dtype::F32, [2, 4], &args, None).unwrap();
            let read = client.read_one(d_x).unwrap();
            let d_x: &[f32] = bytemuck::cast_slice(&read);
            // No class of the second row is hit.
            assert!(d_x[4..].iter().all(|d| *d == d_x[4]), "{second}: {d_x:?}");
        }
    }
}
