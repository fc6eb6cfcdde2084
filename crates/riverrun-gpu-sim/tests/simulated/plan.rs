//! Plans: recorded once, run on other memory.

use riverrun_gpu_sim::simulated::plan::{recorder, run};
use riverrun_guest::Refused;
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::recurrence::gpu::{Forward, Inputs, Strided, forward};
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape};

/// Numbers at a multiple of 16 bytes.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Four([f32; 4]);

fn fours(numbers: usize, value: impl Fn(usize) -> f32) -> Vec<Four> {
    let four = |n: usize| Four([0, 1, 2, 3].map(|i| value(4 * n + i)));
    (0..numbers / 4).map(four).collect()
}

fn at(numbers: &[Four]) -> u64 {
    numbers.as_ptr() as u64
}

/// The look-back hands states over by words in scratch memory, which a plan clears each time, and has kept words for faults.
#[test]
fn a_plan_runs_on_the_memory_of_each_call() {
    let shape = Shape::new(2, 150, 8);
    let problem = Problem::new(shape, Gate::Raw);
    let recorder = recorder();
    let bytes = shape.elements() as u64 * 4;
    let plan = recorder.plan(&[bytes, bytes, bytes], |client, handles| {
        let view = |index: usize| Strided {
            handle: handles[index].clone(),
            len: shape.elements(),
            offset: 0,
            batch_stride: shape.steps * shape.dim,
            step_stride: shape.dim,
        };
        let args = Forward {
            inputs: Inputs::Separate(vec![view(0), view(1)]),
            h0: None,
            reset: None,
            h: handles[2].clone(),
        };
        forward(
            client,
            &problem,
            Dtype::F32,
            &args,
            Some(Routine::LookBack),
            None,
        )
        .map(|_| ())
    });
    let plan = plan.expect("a plan");
    assert_eq!(
        plan.launches.len(),
        2,
        "the words are cleared, and the scan runs"
    );
    assert!(plan.scratch > 0);
    assert_eq!(recorder.take_fault(), Ok(None));
    let refused = recorder.plan(&[bytes], |client, handles| {
        let problem = Problem::new(shape, Gate::Raw);
        let none = Inputs::Separate(Vec::new());
        let args = Forward {
            inputs: none,
            h0: None,
            reset: None,
            h: handles[0].clone(),
        };
        forward(client, &problem, Dtype::F32, &args, None, None).map(|_| ())
    });
    assert!(matches!(refused, Err(Refused::Problem(_))));
    for seed in 0..3 {
        let random = |n: usize, seed: usize| ((n * 7919 + seed * 104_729) % 1009) as f32 / 1009.0;
        let a = fours(shape.elements(), |n| 0.5 + random(n, seed) / 2.0);
        let b = fours(shape.elements(), |n| random(n, seed + 10) - 0.5);
        let mut h = fours(shape.elements(), |_| f32::NAN);
        // SAFETY: three buffers of the sizes above.
        unsafe { run(&plan, &[at(&a), at(&b), h.as_mut_ptr() as u64]) };
        let number = |numbers: &[Four], n: usize| f64::from(numbers[n / 4].0[n % 4]);
        for lane in 0..shape.batch * shape.dim {
            let (batch, channel) = (lane / shape.dim, lane % shape.dim);
            let mut state = 0.0;
            for step in 0..shape.steps {
                let n = (batch * shape.steps + step) * shape.dim + channel;
                state = number(&a, n) * state + number(&b, n);
                // 150 steps of three roundings of states below 50.
                let error = (number(&h, n) - state).abs();
                assert!(
                    error < 450.0 * 50.0 * f64::from(f32::EPSILON),
                    "{n}: {error}"
                );
            }
        }
    }
}
