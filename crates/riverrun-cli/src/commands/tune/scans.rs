//! The tunings of the look-back, class by class.

use burn::tensor::Device;
use riverrun::device::{cache, client};
use riverrun_kernels::recurrence::cost::{self, Pass};
use riverrun_kernels::recurrence::gpu::{Class, Lanes, Tuning};
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Routine};
use riverrun_testkit::{Storage, by_storage};

use super::TuneArgs;
use super::search::{faster, search};
use super::session::Session;
use crate::commands::bench::gpu::dtype_of;
use crate::commands::bench::recurrence::gpu::{Bench, check, small};
use crate::commands::bench::row::Row;
use crate::failure::Failure;

/// Measures the classes of the gates, the most usual ones first.
pub fn run(session: &mut Session, args: &TuneArgs) -> Result<(), Failure> {
    if let Some(reason) = Routine::LookBack.missing(session.client) {
        return session.report.skip(format!("recurrence: {reason}"));
    }
    let candidate = Candidate::Identity;
    let min_lstm = Gate::MinLstm {
        candidate,
        normalized: true,
    };
    let usual = [Gate::Raw, Gate::MinGru { candidate }, min_lstm, Gate::RgLru];
    let gates = match args.gates.is_empty() {
        true => &usual[..],
        false => &args.gates,
    };
    let dtypes = session
        .report
        .dtypes(&args.dtypes, &[Storage::F32, Storage::Bf16])?;
    session.report.table("recurrence");
    for lanes in Lanes::ALL {
        for &gate in gates {
            for &storage in &dtypes {
                for backward in [false, true] {
                    let class = Class {
                        gate,
                        dtype: dtype_of(storage),
                        backward,
                        lanes,
                    };
                    match session.over() {
                        true => session.miss(class),
                        false => measure(session, class, storage)?,
                    }
                }
            }
        }
    }
    Ok(())
}

/// Searches for the tuning of a class, and compares what it finds with the rule's once more.
fn measure(session: &mut Session, class: Class, storage: Storage) -> Result<(), Failure> {
    let problem = fitting(class, session.free);
    let client = session.client;
    let bench = Bench::new(client, &problem, class.dtype);
    let time = |session: &Session, budget: f64, tuning: Tuning| {
        session
            .report
            .device_time(client, budget, || run_pass(&bench, class, tuning))
    };
    let rule = Tuning::default_for(&problem, class.dtype, class.backward, Routine::LookBack);
    let found = search(class, rule, |round| {
        compile(&session.report.device, class, round);
        let mut seconds = Vec::new();
        for &tuning in round {
            if session.over() {
                break;
            }
            let mut tunings = [None; 2];
            tunings[usize::from(class.backward)] = Some(tuning);
            let checked = (Routine::LookBack, tunings);
            let right = by_storage!(
                storage,
                check(client, class.dtype, small(&problem), checked)
            );
            if let Err(failure) = right {
                eprintln!("left out, {tuning} for {class}: {failure}");
                seconds.push(None);
                continue;
            }
            let timing = time(session, 0.02, tuning)?;
            seconds.push(timing.is_steady().then_some(timing.median));
        }
        Ok(seconds)
    })?;
    if found == rule && session.over() {
        // The search was cut short: what an earlier run has found stays.
        session.miss(class);
        return Ok(());
    }
    // Before and after, so that a card that changes its clock changes both.
    let mut default = time(session, 0.1, rule)?;
    let mut kept = None;
    if found != rule {
        let best = time(session, 0.1, found)?;
        let again = time(session, 0.1, rule)?;
        if again.median < default.median {
            default = again;
        }
        kept = faster(default, best).then_some((found, best));
    }
    drop(bench);
    client.memory_cleanup().ok();
    session
        .table
        .set_scan(class, kept.map(|(tuning, _)| tuning));
    session.keep()?;
    let (tuning, best) = kept.unwrap_or((rule, default));
    let pass = match class.backward {
        true => Pass::Backward,
        false => Pass::Forward,
    };
    let bytes = cost::bytes(&problem, pass, class.dtype.size());
    let row = Row::new().wide("class", 28, class);
    let row = row.wide("default", 12, rule).wide("best", 12, tuning);
    let row = row.ms("default_time", default).ms("time", best);
    let row = row.bandwidth(bytes, best.median, session.report.copy);
    let gain = default.median / best.median - 1.0;
    session.report.add(row.percent("gain", gain))
}

fn run_pass(bench: &Bench, class: Class, tuning: Tuning) -> Result<(), riverrun_kernels::Error> {
    let (routine, tuning) = (Some(Routine::LookBack), Some(tuning));
    match class.backward {
        true => bench.backward(routine, tuning),
        false => bench.forward(routine, tuning),
    }
    .map(drop)
}

/// Compiles the kernels of a round by several threads at once, where the device can.
fn compile(device: &Device, class: Class, tunings: &[Tuning]) {
    let texts: Vec<String> = tunings.iter().map(Tuning::to_string).collect();
    let name = format!("tune {class} {}", texts.join(" "));
    cache::compile_ahead(device, &name, |device| {
        let Some(client) = client(device) else {
            return;
        };
        let bench = Bench::new(&client, &small(&class.problem()), class.dtype);
        for &tuning in tunings {
            // One that cannot run says so when it is checked.
            let _ = run_pass(&bench, class, tuning);
        }
    });
}

/// The problem of a class, with fewer steps where a third of the free memory does not hold its tensors.
fn fitting(class: Class, free: u64) -> Problem {
    let mut problem = class.problem();
    let tensors = 2 * class.gate.inputs() + 2;
    let bytes = |problem: &Problem| problem.shape.elements() * tensors * class.dtype.size();
    while bytes(&problem) as u64 > free / 3 && problem.shape.steps > 1024 {
        problem.shape.steps /= 2;
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_card_has_a_shorter_problem_of_the_same_class() {
        let class: Class = "min-lstm f32 backward more".parse().unwrap();
        assert_eq!(fitting(class, u64::MAX), class.problem());
        let problem = fitting(class, 8_000_000_000);
        assert_eq!(problem.shape.steps, 2048);
        assert_eq!(Class::of(&problem, class.dtype, true), Some(class));
    }
}
