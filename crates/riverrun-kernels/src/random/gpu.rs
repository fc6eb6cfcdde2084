//! The GPU form.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{GOLDEN, KEY, MULTIPLIERS};
use crate::Error;
use crate::gpu::{Dtype, address, buffer, grid};

#[cube]
fn mix(x: u32) -> u32 {
    let mut x = x;
    x ^= x >> 16u32;
    x *= comptime!(MULTIPLIERS[0]);
    x ^= x >> 15u32;
    x *= comptime!(MULTIPLIERS[1]);
    x ^ (x >> 16u32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn fill_uniform(key: &[u32], out: &mut [f32], stream: u32) {
    let i = ABSOLUTE_POS;
    if i < out.len() {
        let mut s = stream;
        #[unroll]
        for word in 0..KEY {
            s = mix(s) ^ key[comptime!(KEY - 1 - word)];
        }
        s = mix(s);
        let t = mix(s ^ comptime!(GOLDEN));
        let bits = mix(mix(u32::cast_from(i) + s) ^ t);
        out[i] = (f32::cast_from(bits >> 9u32) + 0.5f32) * comptime!(1.0 / 8_388_608.0f32);
    }
}

/// Fills the first `numbers` of `out`, in `f32`, with numbers in (0, 1). `key`: `[4]`, integers of 32 bits.
///
/// # Errors
/// [`Error::Length`] for a key of fewer words, a buffer of fewer numbers, or more than `2^32` numbers; nothing has been launched
/// then.
pub fn uniform(
    client: &Client,
    key: &Handle,
    stream: u32,
    out: &Handle,
    numbers: usize,
) -> Result<(), Error> {
    const UNITS: usize = 256;
    Dtype::F32.check(client)?;
    let words = |handle: &Handle| handle.size_in_used() as usize / 4;
    for (what, expected, found) in [
        ("key", KEY, words(key)),
        ("out", numbers, words(out)),
        ("numbers of a stream", numbers, 1 << 32),
    ] {
        if found < expected {
            return Err(Error::Length {
                what,
                expected,
                found,
            });
        }
    }
    if numbers > 0 {
        // Safety: the lengths have just been checked; the kernel checks its position against them.
        unsafe {
            fill_uniform::launch_unchecked(
                client,
                grid(client, numbers.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                address(numbers, Dtype::F32),
                buffer(key, KEY, 1),
                buffer(out, numbers, 1),
                stream,
            );
        }
    }
    Ok(())
}
