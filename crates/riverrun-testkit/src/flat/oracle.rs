//! The reference, in `f64`.

use riverrun_kernels::flat::Place;

/// Adds the sum of directions, times the coefficients of its group, to a tensor.
pub fn add(place: Place, p: &mut [f64], directions: &[&[f64]], coefficients: &[f64]) {
    let row = &coefficients[place.group * directions.len()..];
    for (i, p) in p.iter_mut().enumerate() {
        for (direction, c) in directions.iter().zip(row) {
            *p += c * direction[place.start + i];
        }
    }
}
