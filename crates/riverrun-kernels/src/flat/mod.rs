//! Many tensors as one vector, which holds the elements of all of them one tensor after another: sums of such vectors added
//! to the tensors, and copies from one form to the other.
//!
//! A tensor of `n` elements at `start` has the elements `start .. start + n` of the vector. With a group `j` for each
//! tensor, directions `d₀, d₁, ...`, which are vectors, and coefficients `c` of each group, [`add`](cpu::add) changes each
//! element to `p + Σₖ c[j, k] dₖ`, summed in the order of `k`. All of these are `f32`. Copies keep every bit, in `f32`, `f16` or `bf16`.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use crate::Error;

/// The most directions of an addition.
pub const DIRECTIONS: usize = 4;

/// The place of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its first element in the vector.
    pub start: usize,
    /// Its elements.
    pub len: usize,
    /// Its group: the row of its coefficients.
    pub group: usize,
}

impl Place {
    /// Checks that the tensor lies in a vector of `total` elements.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn check(&self, what: &'static str, total: usize) -> Result<(), Error> {
        let expected = self.start.saturating_add(self.len);
        match expected <= total {
            true => Ok(()),
            false => Err(Error::Length {
                what,
                expected,
                found: total,
            }),
        }
    }
}

/// Checks the number of directions, and that the rows of coefficients reach up to a tensor's group.
///
/// # Errors
/// [`Error::Length`].
fn check_coefficients(place: &Place, directions: usize, found: usize) -> Result<(), Error> {
    if directions > DIRECTIONS {
        return Err(Error::Length {
            what: "directions, at most",
            expected: DIRECTIONS,
            found: directions,
        });
    }
    let expected = place.group.saturating_add(1).saturating_mul(directions);
    match expected <= found {
        true => Ok(()),
        false => Err(Error::Length {
            what: "coefficients",
            expected,
            found,
        }),
    }
}
