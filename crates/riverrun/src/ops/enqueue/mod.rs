//! Work of a library on the CUDA stream of its tensors.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use std::ffi::c_void;
use std::sync::Arc;

use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Device, Tensor};

use super::support::checks;
use super::support::members::{MANY, Many};
use crate::Error;

/// The most tensors that [`enqueue`] takes for reading, and for writing.
pub const ENQUEUED: usize = MANY;

/// Work for [`enqueue`].
#[derive(Clone)]
#[cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "no other devices run it")
)]
pub struct StreamWork {
    run: Arc<dyn Fn(*mut c_void, &[u64], &[u64]) -> Result<(), String> + Send + Sync>,
    beside: bool,
}

impl StreamWork {
    /// From a function that puts its work on the stream that it gets, a `CUstream`, and nowhere else. Its other arguments are the
    /// addresses of the tensors that are read and of those that are written, which hold for that work alone. It runs on a thread
    /// of the device's, with the device's context current.
    ///
    /// In a recording all such work is on one stream of its own, since a library such as NCCL wants its operations one after
    /// another.
    pub fn new(
        work: impl Fn(*mut c_void, &[u64], &[u64]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            run: Arc::new(work),
            beside: false,
        }
    }

    /// Where launches are recorded, the work runs beside those after it, up to the next work that does not; a
    /// [`Recording`](crate::Recording) cannot end before that. Until then nothing else may touch its tensors.
    #[must_use]
    pub fn beside(self) -> Self {
        Self {
            beside: true,
            ..self
        }
    }
}

/// Enqueues work that reads tensors and writes others, and returns those written; nothing is waited for. The work is ordered with
/// launches and recorded with them. Tensors are contiguous in their memory; those that are written to keep it where they have no
/// other owner, and hold what they held when the work begins. An error of the work comes with the reading of what it writes.
///
/// # Errors
/// [`Error::Device`] for tensors that are not on one device without autodiff; [`Error::Unsupported`] for another device than a
/// CUDA device, and for more than [`ENQUEUED`] tensors on either side or none to write.
pub fn enqueue(
    reads: Vec<Tensor<1>>,
    writes: Vec<Tensor<1>>,
    work: StreamWork,
) -> Result<Vec<Tensor<1>>, Error> {
    let Some(first) = writes.first() else {
        return Err(Error::Unsupported("work that writes no tensor".into()));
    };
    if reads.len().max(writes.len()) > ENQUEUED {
        return Err(Error::Unsupported(format!(
            "work on more than {ENQUEUED} tensors"
        )));
    }
    let device = first.device();
    checks::plain("a tensor", &device)?;
    for tensor in reads.iter().chain(&writes) {
        checks::device("a tensor", &device, &tensor.device())?;
    }
    cuda(&device)?;
    let all = |tensors: Vec<Tensor<1>>| {
        let tensors = tensors.into_iter().map(Tensor::into_dispatch);
        Many::from_tensors(tensors.collect())
    };
    let written = <Dispatch as EnqueueOps>::enqueue(all(reads), all(writes), work);
    let written = written.into_tensors().into_iter();
    Ok(written.map(Tensor::from_dispatch).collect())
}

/// Runs a task on the device's own thread, with the device's context current, and waits for it.
///
/// # Errors
/// The errors of the task, as `E`, and with a text that there is no CUDA device.
pub fn on_device<R: Send, E: From<String> + Send>(
    device: &Device,
    task: impl FnOnce() -> Result<R, E> + Send,
) -> Result<R, E> {
    #[cfg(feature = "cuda")]
    return found(device)?.ask(task);
    #[cfg(not(feature = "cuda"))]
    {
        drop(task);
        Err(cuda(device)
            .expect_err("no device of CUDA")
            .to_string()
            .into())
    }
}

/// The number that a CUDA device has, and no other device of any machine.
///
/// # Errors
/// [`Error::Unsupported`] for another device than a CUDA device.
pub fn uuid(device: &Device) -> Result<[u8; 16], Error> {
    #[cfg(feature = "cuda")]
    return found(device)
        .and_then(|device| device.uuid())
        .map_err(Error::Unsupported);
    #[cfg(not(feature = "cuda"))]
    cuda(device).map(|()| [0; 16])
}

#[cfg(feature = "cuda")]
fn found(device: &Device) -> Result<Arc<riverrun_kernels::gpu::cuda::Device>, String> {
    let none = || format!("{} is no CUDA device", crate::device::name(device));
    let client = crate::device::client(device).ok_or_else(none)?;
    riverrun_kernels::gpu::cuda::Device::of(&client).map_err(|_| none())
}

/// Refuses other devices than CUDA devices.
fn cuda(device: &Device) -> Result<(), Error> {
    #[cfg(feature = "cuda")]
    return found(device).map(drop).map_err(Error::Unsupported);
    #[cfg(not(feature = "cuda"))]
    Err(Error::Unsupported(format!(
        "{} is no CUDA device",
        crate::device::name(device)
    )))
}

/// [`enqueue`] on a backend. Devices have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait EnqueueOps: Backend {
    /// The tensors that were written to.
    #[fusion(meta = |_reads, writes, _work| writes.clone())]
    fn enqueue(
        #[extension_type] reads: Many<Self>,
        #[extension_type] writes: Many<Self>,
        work: StreamWork,
    ) -> Many<Self>;
}
