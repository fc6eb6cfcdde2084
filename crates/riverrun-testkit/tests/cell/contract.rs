//! Odd inputs of the CPU form: NaN, absent arguments, wrong lengths.

use riverrun_kernels::Error;
use riverrun_kernels::cell::check::{Case, Options, routines};
use riverrun_kernels::cell::{Cell, InputGrads, Inputs, OutputGrads, Outputs, Problem, cpu};

#[test]
fn nan_stays_in_its_sequence() {
    for cell in Cell::all() {
        let clean = Case::<f32>::random(
            Problem::new(cell, 11, 9, 37),
            Options {
                initial: true,
                ..Options::NONE
            },
            8,
        );
        for poison in [f32::NAN, f32::INFINITY] {
            let mut case = clean.clone();
            let width = case.xg.len() / 11;
            case.xg[4 * width..5 * width].fill(poison);
            for routine in routines() {
                let (a, b) = (clean.run(routine), case.run(routine));
                for (clean, found) in [
                    (&a.h, &b.h),
                    (&a.h_last, &b.h_last),
                    (&a.d_xg, &b.d_xg),
                    (&a.d_h0, &b.d_h0),
                ] {
                    let width = clean.len() / 11;
                    for i in (0..11).filter(|&i| i != 4) {
                        assert_eq!(
                            clean[i * width..][..width],
                            found[i * width..][..width],
                            "{} {i}",
                            cell.name()
                        );
                    }
                }
                assert!(
                    !poison.is_nan() || b.h_last[4 * 37..5 * 37].iter().all(|x| x.is_nan()),
                    "{}",
                    cell.name()
                );
            }
        }
    }
}

/// A reset forgets whatever the state holds.
#[test]
fn reset_forgets_nan() {
    for cell in Cell::all() {
        let mut case = Case::<f32>::random(
            Problem::new(cell, 3, 8, 20),
            Options {
                initial: true,
                reset: true,
                ..Options::NONE
            },
            8,
        );
        let reset = case.reset.as_mut().unwrap();
        reset.fill(false);
        (0..3).for_each(|b| reset[b * 8] = true);
        let clean = case.run(cpu::Routine::default());
        case.h0.as_mut().unwrap().fill(f32::NAN);
        if let Some(c0) = &mut case.c0 {
            c0.fill(f32::INFINITY);
        }
        for routine in routines()
            .into_iter()
            .filter(|r| r.level == Some(cpu::Level::available()[0]))
        {
            let found = case.run(routine);
            assert_eq!(found.bits(), clean.bits(), "{}", cell.name());
            assert!(found.d_h0.iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn only_what_is_asked_for() {
    for cell in Cell::all() {
        let case = Case::<f32>::random(Problem::new(cell, 3, 8, 20), Options::ALL, 8);
        let p = case.problem;
        let full = case.run(cpu::Routine::default());
        let (mut h, mut h_last, mut d_xg) =
            (full.h.clone(), full.h_last.clone(), full.d_xg.clone());
        h.fill(f32::NAN);
        let outputs = Outputs {
            h: &mut h,
            h_last: &mut h_last,
            c_last: None,
            saved: None,
        };
        cpu::forward(&p, &case.inputs(), outputs, cpu::Routine::default()).unwrap();
        assert_eq!(h, full.h);
        let mut saved = vec![0.0; p.saved()];
        let outputs = Outputs {
            h: &mut h,
            h_last: &mut h_last,
            c_last: None,
            saved: Some(&mut saved),
        };
        cpu::forward(&p, &case.inputs(), outputs, cpu::Routine::default()).unwrap();
        d_xg.fill(f32::NAN);
        let into = InputGrads {
            d_xg: &mut d_xg,
            d_u: None,
            d_bias: None,
            d_h0: None,
            d_c0: None,
        };
        cpu::backward(
            &p,
            &case.inputs(),
            &h,
            &saved,
            &case.grads(),
            into,
            cpu::Routine::default(),
        )
        .unwrap();
        assert_eq!(d_xg, full.d_xg);
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let p = Problem::new(Cell::Lstm, 2, 3, 4);
    let case = Case::<f32>::random(p, Options::ALL, 1);
    let run = |p: &Problem, inputs: &Inputs<f32>, lengths: [usize; 4]| {
        let mut v = lengths.map(|n| vec![7.0f32; n]);
        let [h, h_last, c_last, saved] = &mut v;
        let outputs = Outputs {
            h,
            h_last,
            c_last: Some(c_last),
            saved: Some(saved),
        };
        let result = cpu::forward(p, inputs, outputs, cpu::Routine::default());
        assert!(
            result.is_ok() || v.iter().flatten().all(|&x| x == 7.0),
            "something was written"
        );
        result
    };
    let right = [p.outputs(), p.state(), p.cell_state(), p.saved()];
    assert!(run(&p, &case.inputs(), right).is_ok());
    let fails = |what: &str, result: Result<(), Error>| match result {
        Err(Error::Length { what: found, .. }) => assert_eq!(found, what),
        other => panic!("{what}: {other:?}"),
    };
    for (index, what) in ["h", "h_last", "c_last", "saved"].into_iter().enumerate() {
        let mut wrong = right;
        wrong[index] -= 1;
        fails(what, run(&p, &case.inputs(), wrong));
    }
    let short = vec![0.0f32; 1];
    fails(
        "xg",
        run(
            &p,
            &Inputs {
                xg: &short,
                ..case.inputs()
            },
            right,
        ),
    );
    fails(
        "u",
        run(
            &p,
            &Inputs {
                u: &short,
                ..case.inputs()
            },
            right,
        ),
    );
    fails(
        "bias",
        run(
            &p,
            &Inputs {
                bias: Some(&short),
                ..case.inputs()
            },
            right,
        ),
    );
    fails(
        "h0",
        run(
            &p,
            &Inputs {
                h0: Some(&short),
                ..case.inputs()
            },
            right,
        ),
    );
    fails(
        "c0",
        run(
            &p,
            &Inputs {
                c0: Some(&short),
                ..case.inputs()
            },
            right,
        ),
    );
    fails(
        "reset",
        run(
            &p,
            &Inputs {
                reset: Some(&[true]),
                ..case.inputs()
            },
            right,
        ),
    );
    let none = Problem { hidden: 0, ..p };
    assert_eq!(run(&none, &case.inputs(), right), Err(Error::NoChannels));
    // A cell without a cell state takes none.
    let gru = Problem::new(Cell::all()[0], 2, 3, 4);
    let other = Case::<f32>::random(gru, Options::ALL, 1);
    let right = [gru.outputs(), gru.state(), 0, gru.saved()];
    fails(
        "c0",
        run(
            &gru,
            &Inputs {
                c0: case.c0.as_deref(),
                ..other.inputs()
            },
            right,
        ),
    );

    let back = |saved: usize, lengths: [usize; 5], grads: OutputGrads<f32>| {
        let mut v = lengths.map(|n| vec![7.0f32; n]);
        let [d_xg, d_u, d_bias, d_h0, d_c0] = &mut v;
        let into = InputGrads {
            d_xg,
            d_u: Some(d_u),
            d_bias: Some(d_bias),
            d_h0: Some(d_h0),
            d_c0: Some(d_c0),
        };
        let (h, saved) = (vec![0.0; p.outputs()], vec![0.0; saved]);
        cpu::backward(
            &p,
            &case.inputs(),
            &h,
            &saved,
            &grads,
            into,
            cpu::Routine::default(),
        )
    };
    let right = [
        case.xg.len(),
        case.u.len(),
        p.gate_width(),
        p.state(),
        p.cell_state(),
    ];
    assert!(back(p.saved(), right, case.grads()).is_ok());
    fails("saved", back(1, right, case.grads()));
    for (index, what) in ["d_xg", "d_u", "d_bias", "d_h0", "d_c0"]
        .into_iter()
        .enumerate()
    {
        let mut wrong = right;
        wrong[index] += 1;
        fails(what, back(p.saved(), wrong, case.grads()));
    }
    fails(
        "d_h",
        back(
            p.saved(),
            right,
            OutputGrads {
                d_h: Some(&short),
                ..case.grads()
            },
        ),
    );
    fails(
        "d_h_last",
        back(
            p.saved(),
            right,
            OutputGrads {
                d_h_last: Some(&short),
                ..case.grads()
            },
        ),
    );
    fails(
        "d_c_last",
        back(
            p.saved(),
            right,
            OutputGrads {
                d_c_last: Some(&short),
                ..case.grads()
            },
        ),
    );
}
