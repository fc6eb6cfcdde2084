//! The embedding: what it refuses, rows that are not finite, and threads.

#[cfg(feature = "gpu")]
mod gpu;

use riverrun_kernels::Error;
use riverrun_kernels::embedding::{Shape, cpu};
use riverrun_kernels::gemm::Order;
use riverrun_testkit::Case;
use riverrun_testkit::embedding::{Embedding, Tokens};

#[test]
fn wrong_lengths_are_refused_before_anything_is_written() {
    let shape = Shape::new(3, 4, 2);
    let (mut y, mut d_weight) = ([7_f32; 6], [7_f32; 8]);
    let wrong = |what, expected, found| {
        Err(Error::Length {
            what,
            expected,
            found,
        })
    };
    assert_eq!(
        cpu::forward(shape, (&[0.0; 7], Order::Rows), &[0; 3], &mut y),
        wrong("weight", 8, 7)
    );
    assert_eq!(
        cpu::forward(shape, (&[0.0; 8], Order::Rows), &[0; 2], &mut y),
        wrong("tokens", 3, 2)
    );
    assert_eq!(
        cpu::backward(shape, &[0.0; 5], &[0; 3], &mut d_weight),
        wrong("d_y", 6, 5)
    );
    assert_eq!(y, [7.0; 6]);
    assert_eq!(d_weight, [7.0; 8]);
    let none = Shape::new(3, 0, 2);
    assert_eq!(
        cpu::forward(none, (&[], Order::Rows), &[0; 3], &mut y),
        Err(Error::NoChannels)
    );
}

#[test]
fn a_table_by_columns_has_the_rows_of_one_by_rows() {
    let shape = Shape::new(5, 4, 3);
    let rows: [f32; 12] = std::array::from_fn(|i| i as f32);
    let columns: [f32; 12] = std::array::from_fn(|i| rows[i % 4 * 3 + i / 4]);
    let mut found = [[7_f32; 15]; 2];
    let [by_rows, by_columns] = &mut found;
    let tokens = [2, 0, 9, 3, -1];
    cpu::forward(shape, (&rows, Order::Rows), &tokens, by_rows).unwrap();
    cpu::forward(shape, (&columns, Order::Columns), &tokens, by_columns).unwrap();
    assert_eq!(by_rows.map(f32::to_bits), by_columns.map(f32::to_bits));
    assert_eq!(by_rows[..3], [6.0, 7.0, 8.0]);
    assert!(by_rows[6].is_nan());
}

#[test]
fn a_row_that_is_not_finite_stays_in_its_row() {
    let shape = Shape::new(4, 3, 2);
    let d_y = [1.0_f32, 1.0, f32::NAN, f32::INFINITY, 1.0, 1.0, 1.0, 1.0];
    let mut d_weight = [7_f32; 6];
    cpu::backward(shape, &d_y, &[0, 1, 0, 2], &mut d_weight).unwrap();
    assert_eq!(d_weight[..2], [2.0, 2.0]);
    assert!(d_weight[2].is_nan() && d_weight[3] == f32::INFINITY);
    assert_eq!(d_weight[4..], [1.0, 1.0]);
}

#[test]
fn threads_do_not_change_a_bit() {
    let case = Embedding::random(Shape::new(20_000, 65, 24), Tokens::Skewed, 5);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.build().unwrap();
        pool.install(|| case.cpu::<f32>().unwrap())
    };
    assert!(with(1).same_bits(&with(3)));
}
