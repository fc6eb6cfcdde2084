//! Shared by the GPU kernels of all operations: storage types, buffers, elementary functions, sums over the threads of a row,
//! waits between cubes.

pub(crate) mod address;
pub(crate) mod batches;
pub(crate) mod buffer;
pub(crate) mod chain;
pub(crate) mod cluster;
pub(crate) mod copy;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod cuda;
mod dtype;
pub(crate) mod exchange;
pub(crate) mod fault;
pub(crate) mod full_plane;
pub(crate) mod group;
pub(crate) mod lock;
pub(crate) mod math;
pub(crate) mod mma;
pub(crate) mod overlap;
#[cfg(feature = "cuda")]
pub(crate) mod plans;
pub(crate) mod residency;
pub(crate) mod storage;
pub(crate) mod strips;
pub(crate) mod tensor;
pub(crate) mod warpgroup;
pub(crate) mod words;

pub(crate) use buffer::{address, expect, vector_width};
#[doc(hidden)]
pub use buffer::{buffer, grid};
pub use dtype::Dtype;
pub use fault::take_fault;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use {fault::fault_words, residency::know_clusters};

use cubecl::client::Client;

/// The multiprocessors of the device, or an estimate.
pub(crate) fn multiprocessors(client: &Client) -> usize {
    let known = client.properties().hardware.num_streaming_multiprocessors;
    known.map_or(32, |n| n as usize)
}

/// Whether kernels may hold PTX instructions: the CUDA runtime.
pub(crate) fn ptx(client: &Client) -> bool {
    client.name() == "cuda"
}

/// The compute capability of an NVIDIA card times ten (`90` for 9.0); `None` on other runtimes.
///
/// Conversions of two numbers to a word of 16-bit floats, bf16 arithmetic and TF32 or bf16 `mma` need 80.
pub fn capability(client: &Client) -> Option<u32> {
    if !ptx(client) {
        return None;
    }
    let target = &client.properties().identity.fingerprint;
    target.strip_prefix("ptx_sm")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use cubecl::client::Client;

    /// The default device's client, also of a software GPU; prints a message if there is none.
    pub(crate) fn client() -> Option<Client> {
        let client = std::panic::catch_unwind(|| cubecl::Device::default().client()).ok();
        if client.is_none() {
            println!("skipped: no GPU on this machine, not even a software one");
        }
        client
    }
}
