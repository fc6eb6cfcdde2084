//! On the CPU: vector instructions over channels, threads over groups of rows.
//!
//! The groups do not depend on the number of threads, and their parts of `d_γ` and `d_β` are added up in order: results
//! are bit-equal from run to run.

mod backward;
mod forward;
mod row;

pub use backward::{Backward, backward};
pub use forward::{Forward, forward};

use super::Spec;
use crate::Error;
use crate::element::compiled_here;
use crate::error::expect_length;
use backward::normalize_back;
use forward::normalize;

compiled_here! {
    Kernels<E> {
        fn normalize(spec: &Spec, args: Forward<'_, E>) -> Result<(), Error> = normalize;
        fn normalize_back(spec: &Spec, args: Backward<'_, E>) -> Result<(), Error> = normalize_back;
    }
}

/// Rows a task.
const GROUP: usize = 64;

/// Whether everything has the length that whole rows of `dim` channels have.
fn check(dim: usize, x: usize, others: &[(&'static str, Option<usize>)]) -> Result<(), Error> {
    if dim == 0 {
        return Err(Error::NoChannels);
    }
    let whole = x.next_multiple_of(dim);
    expect_length("x, in whole rows", whole, x)?;
    others
        .iter()
        .filter_map(|&(what, found)| Some((what, found?)))
        .try_for_each(|(what, found)| expect_length(what, whole, found))
}
