//! Plans: recorded once, run on other memory.

use std::sync::LazyLock;

use riverrun_gpu_sim::simulated::plan::{recorder, run};
use riverrun_guest::call::{Array, Scan, ScanBack, View, scan, scan_back};
use riverrun_guest::{Recorder, Refused};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::recurrence::gpu::{Forward, Inputs, Strided, forward};
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape};

/// There may be one.
static RECORDER: LazyLock<Recorder> = LazyLock::new(recorder);

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
    let recorder = &RECORDER;
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
    let places = |at: u64| plan.launches[1].addresses(&[at; 3], at).collect::<Vec<_>>();
    let places = places(1 << 20).into_iter().zip(places(2 << 20));
    let kept: Vec<_> = places.filter(|(one, two)| one == two).collect();
    let &[(fault, _)] = kept.as_slice() else {
        panic!("two calls at once share the fault alone, not {kept:?}")
    };
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
        // Whatever another call has left there.
        // SAFETY: a word that is kept.
        unsafe { *(fault as *mut u32) = seed as u32 };
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
    let fault = recorder.take_fault();
    assert_eq!(fault, Ok(Some("the recurrence's look-back")));
}

/// Every array of a scan in its place, forward and backward.
#[test]
fn calls_bind_their_arrays() {
    let shape = Shape::new(2, 5, 8);
    let problem = Problem::new(shape, Gate::Raw);
    let (all, state) = (shape.elements(), shape.state());
    let mixed = |n: usize, seed: usize| ((n * 7919 + seed * 104_729) % 1009) as f32 / 1009.0;
    let [a, b, d_h] = [1, 2, 3].map(|seed| fours(all, |n| mixed(n, seed)));
    let [h0, d_last] = [4, 5].map(|seed| fours(state, |n| mixed(n, seed)));
    let reset = fours(12, |n| f32::from(u8::from(n == 3)));
    let [h, d_a, d_b] = [0; 3].map(|_| fours(all, |_| f32::NAN));
    let d_h0 = fours(state, |_| f32::NAN);
    let whole = |x: &[Four]| View::contiguous(at(x) as usize, shape);
    let array = |x: &[Four], elements: usize| Array(at(x) as usize, elements);
    let inputs = [whole(&a), whole(&b)];
    let forward = scan(
        Dtype::F32,
        problem,
        &Scan {
            inputs: &inputs,
            packed: false,
            h0: Some(array(&h0, state)),
            reset: Some(array(&reset, shape.rows())),
            h: array(&h, all),
        },
    );
    let plan = RECORDER.plan(forward.sizes(), forward.record());
    // SAFETY: buffers of these sizes.
    unsafe { run(&plan.expect("a plan"), forward.addresses()) };
    let backward = scan_back(
        Dtype::F32,
        problem,
        &ScanBack {
            inputs: &inputs,
            h0: Some(array(&h0, state)),
            reset: Some(array(&reset, shape.rows())),
            h: whole(&h),
            d_h: whole(&d_h),
            d_h_last: Some(array(&d_last, state)),
            d_inputs: &[array(&d_a, all), array(&d_b, all)],
            d_h0: Some(array(&d_h0, state)),
        },
    );
    let plan = RECORDER.plan(backward.sizes(), backward.record());
    // SAFETY: as above.
    unsafe { run(&plan.expect("a plan"), backward.addresses()) };
    let number = |x: &[Four], n: usize| x[n / 4].0[n % 4];
    // At most ten roundings of numbers below 32.
    let same = |what: &str, found: f32, expected: f32| {
        let error = (found - expected).abs();
        assert!(error < 320.0 * f32::EPSILON, "{what}: {found}, {expected}");
    };
    for lane in 0..state {
        let (batch, channel) = (lane / shape.dim, lane % shape.dim);
        let place = |step| (batch * shape.steps + step) * shape.dim + channel;
        let mut before = number(&h0, lane);
        let mut states = Vec::new();
        for step in 0..shape.steps {
            if number(&reset, batch * shape.steps + step) != 0.0 {
                before = 0.0;
            }
            states.push(before);
            before = number(&a, place(step)) * before + number(&b, place(step));
            same("h", number(&h, place(step)), before);
        }
        let mut d = number(&d_last, lane);
        for step in (0..shape.steps).rev() {
            let n = place(step);
            d += number(&d_h, n);
            same("the gradient of b", number(&d_b, n), d);
            same("the gradient of a", number(&d_a, n), d * states[step]);
            let cut = number(&reset, batch * shape.steps + step) != 0.0;
            d = if cut { 0.0 } else { d * number(&a, n) };
        }
        same("the gradient of h0", number(&d_h0, lane), d);
    }
}
