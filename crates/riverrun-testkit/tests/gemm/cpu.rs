//! The CPU's products against the oracle.

use riverrun_kernels::{CpuElement, Error};
use riverrun_testkit::check::stored;
use riverrun_testkit::gemm::Epilogue;
use riverrun_testkit::gemm::check::Case;
use riverrun_testkit::gemm::cpu::{Factor, product};
use riverrun_testkit::gemm::oracle::{Outputs, transpose};

fn run<E: CpuElement>(case: &Case, [a_transposed, b_transposed]: [bool; 2]) -> Outputs {
    let [m, k, n] = case.sizes;
    let epilogue = case.epilogue;
    let wide = |x: Vec<E>| x.into_iter().map(E::to_f64).collect::<Vec<f64>>();
    let factor_of = |x: &[f64], rows, columns, turn| match turn {
        true => stored::<E>(&transpose(x, rows, columns)),
        false => stored(x),
    };
    let (a, b) = (
        factor_of(&case.a, m, k, a_transposed),
        factor_of(&case.b, k, n, b_transposed),
    );
    let (bias, pre) = (stored::<E>(&case.bias), stored::<E>(&case.pre));
    let reads_bias = epilogue.vector(m, n) > 0 && !epilogue.writes_vector();
    let backward = matches!(epilogue, Epilogue::GeluBackward { .. });
    let nan = |len: usize| vec![E::from_f64(f64::NAN); len];
    let mut d = nan(m * n);
    let saves = matches!(epilogue, Epilogue::Gelu { save: true, .. });
    let mut second = match saves {
        true => Some(nan(m * n)),
        false => epilogue.writes_vector().then(|| nan(epilogue.vector(m, n))),
    };
    let factor = |data, transposed| Factor { data, transposed };
    product(
        case.sizes,
        factor(&a, a_transposed),
        factor(&b, b_transposed),
        epilogue,
        [
            reads_bias.then_some(&bias[..]),
            backward.then_some(&pre[..]),
        ],
        &mut d,
        second.as_deref_mut(),
    )
    .unwrap();
    let second = second.map(wide);
    Outputs {
        d: wide(d),
        pre: second.clone().filter(|_| saves),
        sums: second.filter(|_| !saves),
    }
}

fn check<E: CpuElement>(sizes: [usize; 3], seed: u64) {
    for epilogue in Epilogue::ALL {
        let case = Case::random(sizes, epilogue, seed).rounded::<E>();
        let first = run::<E>(&case, [false, false]);
        for turns in [[false, true], [true, false], [true, true], [false, false]] {
            let found = run::<E>(&case, turns);
            for comparison in case.compare::<E>(&found) {
                assert!(
                    comparison.passes(),
                    "{sizes:?} {turns:?} {epilogue:?} {comparison:?}"
                );
            }
            if turns == [false, false] {
                assert_eq!(found, first, "a second run differs");
            }
        }
    }
}

#[test]
fn every_epilogue_and_transpose() {
    for (seed, sizes) in [
        [1, 1, 1],
        [1, 33, 70],
        [5, 3, 17],
        [16, 16, 16],
        [67, 40, 65],
        [130, 700, 33],
        [520, 9, 100],
    ]
    .into_iter()
    .enumerate()
    {
        check::<f32>(sizes, seed as u64);
        check::<f64>(sizes, seed as u64);
    }
}

/// A row's results do not depend on the other rows.
#[test]
fn one_row_is_a_row_of_many() {
    let [m, k, n] = [37, 65, 2100];
    let case = Case::random([m, k, n], Epilogue::Bias, 7).rounded::<f32>();
    let all = run::<f32>(&case, [false, false]).d;
    for row in [0, 5, 36] {
        let one = Case {
            sizes: [1, k, n],
            a: case.a[row * k..][..k].to_vec(),
            pre: case.pre[..n].to_vec(),
            ..case.clone()
        };
        let one = run::<f32>(&one, [false, false]).d;
        assert_eq!(one, all[row * n..][..n], "row {row}");
    }
}

#[test]
fn empty_products() {
    for sizes in [[0, 3, 4], [3, 0, 4], [3, 4, 0], [0, 0, 0]] {
        let [m, k, n] = sizes;
        for transposed in [[false, false], [true, true]] {
            let (a, b) = (vec![1.0f32; m * k], vec![1.0f32; k * n]);
            let bias = vec![2.0f32; n];
            let mut d = vec![f32::NAN; m * n];
            product(
                sizes,
                Factor {
                    data: &a,
                    transposed: transposed[0],
                },
                Factor {
                    data: &b,
                    transposed: transposed[1],
                },
                Epilogue::Bias,
                [Some(&bias), None],
                &mut d,
                None,
            )
            .unwrap();
            assert!(d.iter().all(|&x| x == 2.0), "{sizes:?}");
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let factor = |data| Factor {
        data,
        transposed: false,
    };
    let (x, mut d) = ([1.0f32; 6], [7.0f32; 4]);
    let result = product(
        [2, 3, 2],
        factor(&x),
        factor(&x[1..]),
        Epilogue::Plain,
        [None, None],
        &mut d,
        None,
    );
    assert!(matches!(result, Err(Error::Length { what: "b", .. })));
    let result = product(
        [usize::MAX, 3, 2],
        factor(&x),
        factor(&x),
        Epilogue::Plain,
        [None, None],
        &mut d,
        None,
    );
    assert!(result.is_err());
    assert_eq!(d, [7.0; 4]);
}
