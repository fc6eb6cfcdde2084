//! Attention by NVIDIA's cuDNN, on CubeCL's buffers and on CubeCL's stream (`gpu/cuda.rs` says how).
//!
//! The library is loaded at run time: `libcudnn.so.9` where the loader looks, or the file that the environment variable
//! `RIVERRUN_CUDNN` names; `RIVERRUN_CUDNN=off` leaves it out. A pass of a problem is described as a graph of operations, in the
//! form that the library's fused engines know, compiled at its first use, in some tenths of a second, and kept for the life
//! of the process: recorded launches refer to it. Record work only after it has run.
//!
//! Taken are `f16` and `bf16`, as many keys as queries, any grouping of heads, causal masks and windows.
//!
//! **The same bits.** A backward pass keeps `ds`, `2 B H T²` bytes, in scratch memory, and two runs give the same bits. Where that
//! is more than a sixteenth of the device's memory, a deterministic problem is refused, and `dq` of any other is summed up by
//! atomics, in `4 B H T D` bytes.
//!
//! **NaN.** The products run over tiles of keys, with factors of 0 for keys that a query does not see. A NaN in `k` or `v` therefore
//! reaches every query of its sequence that sees another key of the tile. The other routes keep it from queries that do not see it.

mod build;
mod graph;
mod ids;
mod key;
mod library;
mod plan;

use std::sync::{Arc, LazyLock};

use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_common::device::DeviceId;

use super::gpu::{Backward, Forward};
use super::{Problem, Shape};
use crate::gpu::cuda::{Device, device_of};
use crate::gpu::plans::{Plans, Refusal};
use crate::gpu::{Dtype, expect};
use graph::Slot;
use key::{Direction, Key, ordered_bytes, refusal, refusal_backward};
use library::{Library, Raw};
use plan::Plan;

/// Where queries, keys and values lie, and their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// In tensors of their own, `[B, T, H, D]` and `[B, T, Hk, D]`.
    Separate,
    /// Beside each other in one tensor, `[B, T, H + 2 Hk, D]`: see [`packed_parts`].
    Packed,
}

/// Queries, keys and values of a tensor `[B, T, H + 2 Hk, D]`, for [`Layout::Packed`].
pub fn packed_parts(qkv: &Handle, shape: Shape, dtype: Dtype) -> [Handle; 3] {
    let first = |heads: usize| (heads * shape.dim * dtype.size()) as u64;
    [0, shape.heads, shape.heads + shape.key_heads]
        .map(|heads| qkv.clone().offset_start(first(heads)))
}

/// How a backward pass adds up the gradients of the queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// By a product: two runs give the same bits. Scratch memory of `2 B H T²` bytes.
    Ordered,
    /// By atomics, in any order. Scratch memory of `4 B H T D` bytes.
    Atomic,
}

/// The most plans. They are never dropped; further problems are refused.
const PLANS: usize = 512;

/// The part of the device's memory that a backward pass may take to give the same bits each time.
const ROOM: u64 = 16;

/// Its size where the device's memory is not known.
const LEAST_ROOM: u64 = 1 << 30;

/// A plan that several threads may hold.
struct Shared<T>(T);

// SAFETY: cuDNN's objects belong to no thread. A finished plan is only read, and a handle used on the device's thread alone.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// The object itself, which a closure would otherwise take apart from its promise.
    fn get(&self) -> T {
        self.0
    }
}

/// cuDNN on one device.
pub struct Vendor {
    device: Device,
    library: &'static Library,
    handle: Shared<Raw>,
    /// Bytes that a backward pass may take.
    room: usize,
    plans: Plans<Key, Shared<Plan>>,
}

impl Vendor {
    /// The library on a client's device, loaded at the first call.
    ///
    /// # Errors
    /// The reason why there is none: no CUDA device, no library or one that is switched off, or an error of the library.
    pub fn of(client: &Client) -> Result<Arc<Self>, String> {
        static DEVICES: LazyLock<Plans<DeviceId, Vendor>> = LazyLock::new(Plans::new);
        let Some(id) = device_of(client) else {
            return Err("not a CUDA device".into());
        };
        DEVICES.get(id, || Self::load(client, id))
    }

    fn load(client: &Client, id: DeviceId) -> Result<Self, Refusal> {
        let library = Library::get().map_err(Refusal::lasting)?;
        let device = Device::new(id)?;
        let handle = device.ask(|| library.handle().map(Shared))?;
        let memory = client.properties().memory.max_memory();
        let room = memory.map_or(LEAST_ROOM, |bytes| bytes / ROOM);
        tracing::info!(version = library.version_name(), "attention by cuDNN");
        Ok(Self {
            device,
            library,
            handle,
            room: usize::try_from(room).unwrap_or(usize::MAX),
            plans: Plans::new(),
        })
    }

    /// The library's version, as major.minor.patch.
    pub fn version(&self) -> String {
        self.library.version_name()
    }

    /// The plan of a pass, compiled at the first call.
    fn plan(&self, key: Key) -> Result<Arc<Shared<Plan>>, String> {
        self.plans.get(key, || {
            if self.plans.len() >= PLANS {
                return Err(format!("{PLANS} plans of cuDNN are kept, and no more").into());
            }
            let plan = self.device.ask(|| {
                let handle = self.handle.get();
                Plan::new(self.library, handle, &key).map(Shared)
            });
            plan.inspect_err(|refusal: &Refusal| {
                let reason = refusal.to_string();
                tracing::info!(?key, reason, "no plan of cuDNN");
            })
        })
    }

    /// Enqueues a forward pass on the stream of `args.o`, and returns at once. An error of the device comes with the reading
    /// of the result, as for a kernel.
    ///
    /// # Errors
    /// Where the library does not take the problem, or a buffer is too small or off 16 bytes; nothing has been enqueued then.
    pub fn forward(
        self: &Arc<Self>,
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        args: &Forward,
        layout: Layout,
    ) -> Result<(), String> {
        refusal(problem, dtype, args.reset.is_some())?;
        let shape = problem.shape;
        let (queries, keys) = (shape.query_elements(), shape.key_elements());
        let buffers = [
            ("q", &args.q, queries),
            ("k", &args.k, keys),
            ("v", &args.v, keys),
            ("o", &args.o, queries),
        ];
        fitting(dtype.size(), &buffers)?;
        fitting(4, &[("lse", &args.lse, shape.rows())])?;
        let plan = self.plan(Key::new(problem, dtype, Direction::Forward, layout))?;
        let reads = vec![
            (Slot::Q, args.q.clone()),
            (Slot::K, args.k.clone()),
            (Slot::V, args.v.clone()),
        ];
        let writes = vec![(Slot::O, args.o.clone()), (Slot::Lse, args.lse.clone())];
        self.enqueue(client, plan, reads, writes);
        Ok(())
    }

    /// Enqueues a backward pass on the stream of `args.d_q`, as [`forward`](Self::forward). Without `sums`, they are ordered where the
    /// scratch memory is at most a sixteenth of the device's, and else atomic if the problem need not be deterministic.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); without `sums`, a deterministic problem whose sums have no room.
    pub fn backward(
        self: &Arc<Self>,
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        args: &Backward,
        sums: Option<Sums>,
        layout: Layout,
    ) -> Result<(), String> {
        refusal(problem, dtype, args.reset.is_some())?;
        let shape = problem.shape;
        refusal_backward(shape, self.library.version())?;
        let (queries, keys, rows) = (shape.query_elements(), shape.key_elements(), shape.rows());
        let buffers = [
            ("q", &args.q, queries),
            ("k", &args.k, keys),
            ("v", &args.v, keys),
            ("o", &args.o, queries),
            ("d_o", &args.d_o, queries),
            ("d_q", &args.d_q, queries),
            ("d_k", &args.d_k, keys),
            ("d_v", &args.d_v, keys),
        ];
        fitting(dtype.size(), &buffers)?;
        fitting(4, &[("lse", &args.lse, rows)])?;
        let sums = match sums {
            Some(sums) => sums,
            None => key::sums(problem, self.room)?,
        };
        let ordered = sums == Sums::Ordered;
        let plan = self.plan(Key::new(
            problem,
            dtype,
            Direction::Backward { ordered },
            layout,
        ))?;
        let reads = vec![
            (Slot::Q, args.q.clone()),
            (Slot::K, args.k.clone()),
            (Slot::V, args.v.clone()),
            (Slot::O, args.o.clone()),
            (Slot::Lse, args.lse.clone()),
            (Slot::DO, args.d_o.clone()),
        ];
        let mut writes = vec![
            (Slot::DQ, args.d_q.clone()),
            (Slot::DK, args.d_k.clone()),
            (Slot::DV, args.d_v.clone()),
            (Slot::Delta, client.empty(4 * rows)),
        ];
        if !ordered {
            writes.push((Slot::Sums, client.empty(4 * queries)));
        }
        self.enqueue(client, plan, reads, writes);
        Ok(())
    }

    /// Bytes of scratch memory that the backward pass of a problem takes; 0 for one that is refused.
    pub fn scratch(&self, problem: &Problem, dtype: Dtype) -> usize {
        let taken = refusal(problem, dtype, false)
            .and_then(|()| refusal_backward(problem.shape, self.library.version()));
        match taken.and_then(|()| key::sums(problem, self.room)) {
            Ok(Sums::Ordered) => ordered_bytes(problem.shape),
            Ok(Sums::Atomic) => problem.shape.query_elements().saturating_mul(4),
            Err(_) => 0,
        }
    }

    /// Enqueues a plan with its buffers and its scratch memory, which is memory of the pool like any other: each call has its own,
    /// given back when the stream is done.
    fn enqueue(
        self: &Arc<Self>,
        client: &Client,
        plan: Arc<Shared<Plan>>,
        reads: Vec<(Slot, Handle)>,
        writes: Vec<(Slot, Handle)>,
    ) {
        let (inputs, reads): (Vec<Slot>, Vec<Handle>) = reads.into_iter().unzip();
        let (outputs, mut writes): (Vec<Slot>, Vec<Handle>) = writes.into_iter().unzip();
        let workspace = plan.0.workspace;
        writes.extend((workspace > 0).then(|| client.empty(workspace)));
        let vendor = self.clone();
        self.device
            .enqueue(reads, writes, move |stream, reads, writes| {
                let mut slots = [0; Slot::COUNT];
                for (slot, &address) in inputs.iter().zip(reads).chain(outputs.iter().zip(writes)) {
                    slots[*slot as usize] = address;
                }
                let scratch = writes.get(outputs.len()).copied().unwrap_or(0);
                // SAFETY: this is the device's thread; the buffers have been checked or made for the problem, and the stream keeps
                // them until it has run the work.
                let done = unsafe {
                    plan.0
                        .run((vendor.handle.get(), stream.cast()), &slots, scratch)
                };
                done.map_err(String::from)
            });
    }
}

/// Whether buffers are large enough, and aligned as the plans expect. CubeCL allocates at multiples of 512 on CUDA.
fn fitting(element: usize, buffers: &[(&'static str, &Handle, usize)]) -> Result<(), String> {
    for &(name, handle, elements) in buffers {
        expect(element, [(name, Some(handle), elements)]).map_err(|error| error.to_string())?;
        if !handle.offset_start.unwrap_or(0).is_multiple_of(16) {
            return Err(format!("`{name}` does not begin at a multiple of 16 bytes"));
        }
    }
    Ok(())
}
