//! What every operation promises: empty batches, sequences of different lengths, refusals before a launch, products of
//! `f32` in `f32`.

mod embedding;
mod empty;
mod lengths;
mod padding;
mod plain;
mod products;
mod refusals;
