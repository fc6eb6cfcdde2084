//! The CPU's products against the oracle.

use half::{bf16, f16};
use riverrun_kernels::{CpuElement, Error};
use riverrun_testkit::gemm::Epilogue;
use riverrun_testkit::gemm::check::Case;
use riverrun_testkit::gemm::cpu::{Factor, product};
use riverrun_testkit::{Case as _, judge};

fn check<E: CpuElement>(sizes: [usize; 3], seed: u64) {
    for epilogue in Epilogue::ALL {
        let case = Case::random(sizes, epilogue, seed).rounded::<E>();
        for turns in [[false, true], [true, false], [true, true], [false, false]] {
            let verdict = judge::<E, _>(&case, || case.turned::<E>(turns)).unwrap();
            assert!(
                verdict.passes(),
                "{sizes:?} {turns:?} {epilogue:?} {verdict:?}"
            );
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
        check::<f16>(sizes, seed as u64);
        check::<bf16>(sizes, seed as u64);
    }
}

/// A row's results do not depend on the other rows, however `B` is stored.
#[test]
fn one_row_is_a_row_of_many() {
    fn check<E: CpuElement>() {
        let [m, k, n] = [37, 165, 2100];
        let case = Case::random([m, k, n], Epilogue::Bias, 7).rounded::<E>();
        for transposed in [false, true] {
            let all = case.turned::<E>([false, transposed]).unwrap();
            for rows in [0..1, 5..6, 30..37] {
                let few = Case {
                    sizes: [rows.len(), k, n],
                    a: case.a[rows.start * k..rows.end * k].to_vec(),
                    pre: case.pre[..rows.len() * n].to_vec(),
                    ..case.clone()
                };
                let few = few.turned::<E>([false, transposed]).unwrap();
                let expected = &all.get("d")[rows.start * n..rows.end * n];
                assert_eq!(few.get("d"), expected, "{} {rows:?} {transposed}", E::NAME);
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
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
