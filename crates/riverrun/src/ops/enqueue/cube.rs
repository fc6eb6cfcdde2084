//! CUDA, through CubeCL.

use burn_cubecl::CubeBackend;

use super::{EnqueueOps, StreamWork};
use crate::ops::support::members::Many;

#[cfg(feature = "cuda")]
impl EnqueueOps for CubeBackend {
    fn enqueue(reads: Many<Self>, writes: Many<Self>, work: StreamWork) -> Many<Self> {
        use burn_cubecl::tensor::CubeTensor;
        use cubecl::server::Handle;
        use riverrun_kernels::gpu::cuda::{Device, Way};

        use crate::ops::support::cube::{into_contiguous, own_for_now};

        let reads = reads.into_tensors().into_iter().map(into_contiguous);
        let writes = writes.into_tensors().into_iter().map(own_for_now);
        let (reads, writes): (Vec<CubeTensor>, Vec<CubeTensor>) =
            (reads.collect(), writes.collect());
        let device = Device::of(&writes[0].client).unwrap_or_else(|error| panic!("{error}"));
        let handles = |tensors: &[CubeTensor]| -> Vec<Handle> {
            tensors.iter().map(|tensor| tensor.handle.clone()).collect()
        };
        let (mut read, written) = (handles(&reads), handles(&writes));
        // The work may read what it writes to: an error of those who made that must stop it.
        read.extend(written.iter().cloned());
        let way = match work.beside {
            true => Way::Beside,
            false => Way::Joined,
        };
        device.enqueue_by(way, read, written, move |stream, read, written| {
            (work.run)(stream.cast(), &read[..read.len() - written.len()], written)
        });
        Many::from_tensors(writes)
    }
}

#[cfg(not(feature = "cuda"))]
impl EnqueueOps for CubeBackend {
    fn enqueue(_reads: Many<Self>, _writes: Many<Self>, _work: StreamWork) -> Many<Self> {
        unreachable!("other devices than CUDA devices are refused before")
    }
}
