//! Wide problems on a GPU from narrow ones on the host: the device repeats every channel and returns some of the repetitions.
//! So a problem may be larger than the host could convert, or the oracle compute, in reasonable time.

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::gpu::{Dtype, buffer, grid};
use crate::transfer::{bytes, numbers};

/// Threads in a cube.
const CUBE: usize = 256;

/// `[rows, dim]` to `[rows, times · dim]`. Threads: elements of the result.
#[cube(launch_unchecked, address_type = "dynamic")]
fn repeat<F: Numeric>(
    x: &[F],
    y: &mut [F],
    dim: usize,
    times: usize,
    elements: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < elements {
        y[at] = x[at / (dim * times) * dim + at % dim];
    }
}

/// Repetition `which` of `[rows, times · dim]`, `[rows, dim]`. Threads: elements of the result.
#[cube(launch_unchecked, address_type = "dynamic")]
fn extract<F: Numeric>(
    x: &[F],
    y: &mut [F],
    dim: usize,
    times: usize,
    which: usize,
    elements: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < elements {
        y[at] = x[(at / dim * times + which) * dim + at % dim];
    }
}

/// Moves data between a narrow host and a wide device.
pub(super) struct Mover<'a> {
    pub client: &'a Client,
    pub dtype: Dtype,
    /// Channels of the host's rows.
    pub dim: usize,
    /// Repetitions on the device.
    pub times: usize,
}

impl Mover<'_> {
    fn address(&self, elements: usize) -> AddressType {
        if elements * self.dtype.size() >= 1 << 31 {
            AddressType::U64
        } else {
            AddressType::U32
        }
    }

    /// `[rows, dim]` numbers, every row repeated.
    pub fn upload(&self, data: &[f64]) -> Handle {
        let narrow = self.client.create_from_slice(&bytes(self.dtype, data));
        if self.times == 1 {
            return narrow;
        }
        self.repeated(narrow, data.len(), self.dim, self.times)
    }

    /// A buffer of `elements` on the device, every one NaN.
    pub fn poison(&self, elements: usize) -> Handle {
        let nan = self
            .client
            .create_from_slice(&bytes(self.dtype, &[f64::NAN]));
        self.repeated(nan, 1, 1, elements.max(1))
    }

    fn repeated(&self, narrow: Handle, len: usize, dim: usize, times: usize) -> Handle {
        let elements = len * times;
        let wide = self.client.empty(elements * self.dtype.size());
        if elements == 0 {
            return wide;
        }
        // Safety: the buffers have these lengths, and the kernel checks its position.
        unsafe {
            repeat::launch_unchecked(
                self.client,
                grid(self.client, elements.div_ceil(CUBE)),
                CubeDim::new_1d(CUBE as u32),
                self.address(elements),
                buffer(&narrow, len, 1),
                buffer(&wide, elements, 1),
                dim,
                times,
                elements,
                self.dtype.elem(),
            );
        }
        wide
    }

    /// Repetition `which` of a wide buffer, `len` numbers.
    pub fn download(&self, wide: &Handle, len: usize, which: usize) -> Vec<f64> {
        let narrow = if self.times == 1 || len == 0 {
            wide.clone()
        } else {
            let narrow = self.client.empty(len * self.dtype.size());
            // Safety: as above.
            unsafe {
                extract::launch_unchecked(
                    self.client,
                    grid(self.client, len.div_ceil(CUBE)),
                    CubeDim::new_1d(CUBE as u32),
                    self.address(len * self.times),
                    buffer(wide, len * self.times, 1),
                    buffer(&narrow, len, 1),
                    self.dim,
                    self.times,
                    which,
                    len,
                    self.dtype.elem(),
                );
            }
            narrow
        };
        let read = self.client.read_one(narrow).expect("reading a result back");
        numbers(self.dtype, &read[..len * self.dtype.size()])
    }
}
