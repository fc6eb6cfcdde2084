//! Uniform random numbers by counter: number `i` is a function of a key and of `i` alone
//!
//! ```text
//! mix(x)  = lowbias32: x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16
//! s       = mix(k_0 ^ mix(k_1 ^ mix(k_2 ^ mix(k_3 ^ mix(stream)))))     t = mix(s ^ 0x9e3779b9)
//! u_i     = (⌊mix(mix(i + s) ^ t) / 2^9⌋ + 1/2) / 2^23                  0 < u_i < 1
//! ```
//!
//! The same numbers come out on every device, for any number of threads, and in recorded launches that are replayed with
//! another key. Not for cryptography. Up to `2^32` numbers for a key and a stream, of which no two have the same 32 bits.
//!
//! Source of `mix`: Wellons, *hash-prospector* (2018).

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// Words of a key.
pub const KEY: usize = 4;

pub(crate) const MULTIPLIERS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];
pub(crate) const GOLDEN: u32 = 0x9e37_79b9;
