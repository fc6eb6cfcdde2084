//! Dropout by counter.

use burn::prelude::*;
use burn::tensor::Tensor;
use riverrun::ops::dropout;

fn key(device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints([7, -3, 1 << 30, 11], device)
}

#[test]
fn dropout_drops_its_part_everywhere_alike_and_passes_gradients_elsewhere() {
    let mut first: Option<Vec<f32>> = None;
    for info in riverrun::device::list() {
        let device = info.device.clone().autodiff();
        let x = Tensor::<2>::full([64, 100], 3.0, &device).require_grad();
        let y = dropout(x.clone(), 0.25, key(&info.device), 0).unwrap();
        let gradients = y.clone().sum().backward();
        let slope: Vec<f32> = x.grad(&gradients).unwrap().into_data().iter().collect();
        let y: Vec<f32> = y.into_data().iter().collect();
        let dropped = y.iter().filter(|&&y| y == 0.0).count();
        // Four standard deviations of 6400 draws.
        assert!(
            (1461..=1739).contains(&dropped),
            "{dropped} on {}",
            info.spec
        );
        for (&y, &slope) in y.iter().zip(&slope) {
            let stays = (y - 4.0).abs() < 1e-6 && (slope - 4.0 / 3.0).abs() < 1e-6;
            assert!(stays || y == 0.0 && slope == 0.0, "{y} with slope {slope}");
        }
        let kept: Vec<f32> = y.iter().map(|&y| f32::from(y != 0.0)).collect();
        assert_eq!(
            first.get_or_insert_with(|| kept.clone()),
            &kept,
            "{}",
            info.spec
        );
        let other = dropout(x.inner(), 0.25, key(&info.device), 1)
            .unwrap()
            .into_data();
        let other: Vec<f32> = other.iter().map(|y: f32| f32::from(y != 0.0)).collect();
        assert_ne!(other, kept, "another stream on {}", info.spec);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for info in riverrun::device::list() {
        let x = Tensor::<1>::ones([4], &info.device);
        let short = Tensor::<1, Int>::from_ints([1, 2, 3], &info.device);
        assert!(dropout(x.clone(), 0.5, short, 0).is_err());
        for probability in [-0.1, 1.0, f64::NAN] {
            assert!(dropout(x.clone(), probability, key(&info.device), 0).is_err());
        }
    }
}
