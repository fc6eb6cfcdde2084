//! Products by NVIDIA's cuBLASLt, on CubeCL's buffers and on CubeCL's stream (`gpu/cuda.rs` says how).
//!
//! The library is loaded at run time. For every problem its heuristics choose an algorithm once; nothing is timed. With one
//! algorithm for a problem, two runs give the same bits.

mod library;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_common::device::DeviceId;
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtMatmulDescAttributes_t as Attribute,
    cudaDataType,
};

use super::{Arithmetic, Epilogue, Layout, Order};
use crate::gpu::cuda::{Device, device_of};
use crate::gpu::plans::{Plans, Refusal};
use crate::gpu::{Dtype, expect};
use library::{Addresses, Chosen, Description, Library, Matrix};

/// Scratch memory that an algorithm may ask for: what cuBLAS itself takes on an H100.
const WORKSPACE: usize = 32 << 20;

/// Capacity of the cache of algorithms, which is cleared when full.
const PLANS: usize = 4096;

static LAUNCHED: AtomicUsize = AtomicUsize::new(0);

/// Products that this process has computed with the library.
pub fn products_launched() -> usize {
    LAUNCHED.load(Ordering::Relaxed)
}

/// Several products of one size, computed by one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The number of products, at least 1.
    pub count: usize,
    /// Elements from one matrix `A` to the next.
    pub a: usize,
    /// Elements from one matrix `B` to the next.
    pub b: usize,
    /// Elements from one matrix `D` to the next.
    pub d: usize,
}

/// A product, apart from its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows of `A` and `D`.
    pub m: usize,
    /// Columns of `A`, rows of `B`.
    pub k: usize,
    /// Columns of `B` and `D`.
    pub n: usize,
    /// The layout of `A`.
    pub a: Layout,
    /// The layout of `B`.
    pub b: Layout,
    /// Elements from one row of `D` to the next, whose elements are contiguous. `pre` has rows without gaps.
    pub d: usize,
    /// More than one product; without an epilogue.
    pub batch: Option<Batch>,
    /// The storage type of everything.
    pub dtype: Dtype,
    /// The arithmetic of `f32` products.
    pub arithmetic: Arithmetic,
    /// The epilogue.
    pub epilogue: Epilogue,
}

impl Problem {
    /// `A B` of matrices with contiguous rows.
    pub fn new([m, k, n]: [usize; 3], dtype: Dtype, epilogue: Epilogue) -> Self {
        let rows = |stride| Layout {
            order: Order::Rows,
            stride,
        };
        Self {
            m,
            k,
            n,
            a: rows(k),
            b: rows(n),
            d: n,
            batch: None,
            dtype,
            arithmetic: Arithmetic::Full,
            epilogue,
        }
    }

    /// The largest power of two, up to 256, that divides the bytes from each matrix of a batch to the next.
    fn alignment(&self) -> u32 {
        let distances = self
            .batch
            .map_or([0; 3], |batch| [batch.a, batch.b, batch.d]);
        let bytes = distances.map(|distance| (distance * self.dtype.size()) as u64);
        bytes.into_iter().fold(256, alignment)
    }
}

/// The buffers of a product.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `A`.
    pub a: Handle,
    /// `B`.
    pub b: Handle,
    /// `D`, written.
    pub d: Handle,
    /// The bias, read; or the sums, written.
    pub vector: Option<Handle>,
    /// The input of GELU: written forward, read backward; or `C`, read.
    pub pre: Option<Handle>,
}

impl Buffers {
    /// The largest power of two, up to 256, that divides every buffer's offset into its allocation.
    fn alignment(&self) -> u32 {
        let handles = [
            Some(&self.a),
            Some(&self.b),
            Some(&self.d),
            self.vector.as_ref(),
            self.pre.as_ref(),
        ];
        let offsets = handles
            .into_iter()
            .flatten()
            .filter_map(|handle| handle.offset_start);
        // CubeCL allocates at multiples of 512 on CUDA.
        offsets.fold(256, alignment)
    }
}

/// The lesser of an alignment of at most 256 bytes and that of an offset.
fn alignment(least: u32, offset: u64) -> u32 {
    least.min(1 << offset.trailing_zeros().min(8))
}

/// A chosen algorithm.
struct Plan(Chosen);

// SAFETY: cuBLASLt's objects belong to no thread. A plan's description is written to, by `launch`, on the device's
// thread alone.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

/// cuBLASLt on one device.
pub struct Vendor {
    device: Device,
    library: Library,
    plans: Plans<(Problem, u32), Plan>,
}

// SAFETY: a cuBLASLt handle may be used by several threads at once.
unsafe impl Send for Vendor {}
// SAFETY: as above.
unsafe impl Sync for Vendor {}

impl Vendor {
    /// The library on a client's device, loaded at the first call.
    ///
    /// # Errors
    /// The reason why there is none: no CUDA device, no library, or an error of the library.
    pub fn of(client: &Client) -> Result<Arc<Self>, String> {
        static DEVICES: LazyLock<Plans<DeviceId, Vendor>> = LazyLock::new(Plans::new);
        let Some(id) = device_of(client) else {
            return Err("not a CUDA device".into());
        };
        DEVICES.get(id, || Self::load(id))
    }

    fn load(id: DeviceId) -> Result<Self, Refusal> {
        if !Library::installed() {
            let reason = "libcublasLt is not installed where the loader looks";
            return Err(Refusal::lasting(reason));
        }
        let device = Device::new(id)?;
        let library = device.ask(|| Library::open().map(Shared))?.0;
        tracing::info!(version = Library::version(), "products by cuBLASLt");
        Ok(Self {
            device,
            library,
            plans: Plans::new(),
        })
    }

    /// Whether the library has an algorithm for a problem, with buffers at the start of their allocations.
    ///
    /// # Errors
    /// Why not.
    pub fn supports(&self, problem: &Problem) -> Result<(), String> {
        self.plan(problem, problem.alignment()).map(|_| ())
    }

    /// The algorithm for a problem, chosen at the first call.
    fn plan(&self, problem: &Problem, alignment: u32) -> Result<Arc<Plan>, String> {
        self.plans.get((*problem, alignment), || {
            if self.plans.len() >= PLANS {
                self.plans.clear();
            }
            self.device
                .ask(|| choose(&self.library, problem, alignment))
        })
    }

    /// Enqueues a product on the stream of `buffers.d`, and returns at once. An error of the device comes with the
    /// reading of `D`, as for a kernel.
    ///
    /// # Errors
    /// Where the library has no algorithm for the problem, or a buffer is missing or too small; nothing has been enqueued
    /// then.
    pub fn launch(
        self: &Arc<Self>,
        client: &Client,
        problem: &Problem,
        buffers: Buffers,
    ) -> Result<(), String> {
        expect_sizes(problem, &buffers)?;
        let alignment = buffers.alignment().min(problem.alignment());
        let plan = self.plan(problem, alignment)?;
        let epilogue = problem.epilogue;
        let workspace = plan.0.algorithm.workspace;
        let mut reads = vec![buffers.a, buffers.b];
        let mut writes = vec![buffers.d];
        // The workspace is memory of the pool like any other: each call has its own, given back when the stream is done.
        let scratch = (workspace > 0).then(|| client.empty(workspace));
        writes.extend(scratch);
        let vector = slot(
            buffers.vector,
            epilogue.writes_vector(),
            &mut reads,
            &mut writes,
        );
        let saves = matches!(epilogue, Epilogue::Gelu { .. });
        let pre = slot(buffers.pre, saves, &mut reads, &mut writes);
        let vendor = self.clone();
        LAUNCHED.fetch_add(1, Ordering::Relaxed);
        self.device
            .enqueue(reads, writes, move |stream, reads, writes| {
                let at = |slot: Slot| match slot {
                    Slot::Read(i) => reads[i],
                    Slot::Written(i) => writes[i],
                };
                let description = &plan.0.description;
                if let Some(vector) = vector {
                    description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at(vector))?;
                }
                let added = pre.filter(|_| epilogue == Epilogue::Add);
                if let (Some(pre), None) = (pre, added) {
                    description.set(
                        Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                        at(pre),
                    )?;
                }
                // Row-major matrices are their own transposes to cuBLASLt: D^T = B^T A^T.
                let addresses = Addresses {
                    a: reads[1],
                    b: reads[0],
                    c: added.map(at),
                    d: writes[0],
                    workspace: if workspace > 0 { writes[1] } else { 0 },
                };
                // SAFETY: `expect_sizes` has checked the buffers, the choice is valid for their alignment, and the stream keeps
                // them until it has run the work.
                unsafe { plan.0.launch(&vendor.library, addresses, stream) }.map_err(String::from)
            });
        Ok(())
    }
}

/// The position of a buffer in a task's lists.
#[derive(Clone, Copy)]
enum Slot {
    Read(usize),
    Written(usize),
}

fn slot(
    buffer: Option<Handle>,
    written: bool,
    reads: &mut Vec<Handle>,
    writes: &mut Vec<Handle>,
) -> Option<Slot> {
    let buffer = buffer?;
    Some(if written {
        writes.push(buffer);
        Slot::Written(writes.len() - 1)
    } else {
        reads.push(buffer);
        Slot::Read(reads.len() - 1)
    })
}

/// An object that may cross threads, see [`Vendor`].
struct Shared<T>(T);

// SAFETY: see `Vendor` and `Plan`.
unsafe impl<T> Send for Shared<T> {}

fn expect_sizes(problem: &Problem, buffers: &Buffers) -> Result<(), String> {
    let Problem { m, k, n, d, .. } = *problem;
    let batch = problem.batch.unwrap_or(Batch {
        count: 1,
        a: 0,
        b: 0,
        d: 0,
    });
    if problem.batch.is_some() && problem.epilogue != Epilogue::Plain {
        return Err("a batch of products has no epilogue".into());
    }
    let extent = |rows: usize, columns: usize, layout: Layout, distance: usize| {
        let (lines, length) = match layout.order {
            Order::Rows => (rows, columns),
            Order::Columns => (columns, rows),
        };
        if layout.stride < length {
            let stride = layout.stride;
            return Err(format!(
                "a line of {length} elements in a stride of {stride}"
            ));
        }
        let last = (batch.count.max(1) - 1).saturating_mul(distance);
        Ok((lines.max(1) - 1)
            .saturating_mul(layout.stride)
            .saturating_add(length)
            .saturating_add(last))
    };
    if m == 0 || k == 0 || n == 0 || batch.count == 0 {
        return Err(format!(
            "{} products of [{m}, {k}] and [{k}, {n}] have nothing to compute",
            batch.count
        ));
    }
    let other = problem.epilogue.has_pre() || problem.epilogue.reads_matrix();
    if other && d != n {
        return Err("the input of GELU, or C, has rows without gaps".into());
    }
    let vector = problem.epilogue.vector(m, n);
    if buffers.vector.is_some() != (vector > 0) {
        return Err(format!("a bias or sums: expected {vector} elements"));
    }
    if buffers.pre.is_some() != other {
        return Err("the input of GELU, or C, is given where there is none, or missing".into());
    }
    let rows = |stride| Layout {
        order: Order::Rows,
        stride,
    };
    let sizes = [
        ("A", Some(&buffers.a), extent(m, k, problem.a, batch.a)?),
        ("B", Some(&buffers.b), extent(k, n, problem.b, batch.b)?),
        ("D", Some(&buffers.d), extent(m, n, rows(d), batch.d)?),
        ("a bias or sums", buffers.vector.as_ref(), vector),
        (
            "the input of GELU, or C",
            buffers.pre.as_ref(),
            m.saturating_mul(n),
        ),
    ];
    expect(problem.dtype.size(), sizes).map_err(|error| error.to_string())
}

/// Chooses the algorithm, the first that the heuristics give, on the device's thread.
fn choose(library: &Library, problem: &Problem, alignment: u32) -> Result<Plan, Refusal> {
    let Problem {
        m,
        k,
        n,
        a,
        b,
        epilogue,
        ..
    } = *problem;
    let dtype = match problem.dtype {
        Dtype::F32 => cudaDataType::CUDA_R_32F,
        Dtype::F16 => cudaDataType::CUDA_R_16F,
        Dtype::Bf16 => cudaDataType::CUDA_R_16BF,
    };
    let arithmetic = match (problem.dtype, problem.arithmetic) {
        (Dtype::F32, Arithmetic::Tf32) => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    // Its error reaches 3e-6 instead of 1e-7: enough for 16 bits and TF32 only.
    let gelu = matches!(
        epilogue,
        Epilogue::Gelu { .. } | Epilogue::GeluBackward { .. }
    );
    if gelu && problem.dtype == Dtype::F32 && problem.arithmetic == Arithmetic::Full {
        let reason = "cuBLASLt: its GELU has fewer digits than f32";
        return Err(Refusal::lasting(reason));
    }
    // It chooses algorithms for other types too, and refuses to run them.
    if epilogue.has_pre() && !n.is_multiple_of(8) {
        let reason = "cuBLASLt: what GELU took has rows of a multiple of 8 numbers";
        return Err(Refusal::lasting(reason));
    }
    let description = Description::new(arithmetic)?;
    // cuBLASLt has columns contiguous, so it computes D^T = B^T A^T: its first matrix is our second. One whose rows
    // are contiguous here is already the transpose that it wants.
    let transpose = |order| i32::from(order == Order::Columns);
    description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transpose(b.order))?;
    description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, transpose(a.order))?;
    description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, code(epilogue))?;
    if epilogue.has_pre() {
        description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, n as i64)?;
    }
    let stored = |rows: usize, columns: usize, layout: Layout| match layout.order {
        Order::Rows => Matrix::new(dtype, columns, rows, layout.stride),
        Order::Columns => Matrix::new(dtype, rows, columns, layout.stride),
    };
    let mut matrices = [
        stored(k, n, b)?,
        stored(m, k, a)?,
        Matrix::new(dtype, n, m, problem.d)?,
    ];
    if let Some(Batch { count, a, b, d }) = problem.batch {
        let [first, second, result] = matrices;
        matrices = [
            first.batched(count, b)?,
            second.batched(count, a)?,
            result.batched(count, d)?,
        ];
    }
    let chosen = Chosen::new(library, description, matrices, (WORKSPACE, alignment))?;
    Ok(Plan(chosen))
}

fn code(epilogue: Epilogue) -> u32 {
    let code = match epilogue {
        Epilogue::Plain | Epilogue::Add => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::Gelu {
            bias: false,
            save: false,
        } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU,
        Epilogue::Gelu {
            bias: true,
            save: false,
        } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
        Epilogue::Gelu {
            bias: false,
            save: true,
        } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX,
        Epilogue::Gelu {
            bias: true,
            save: true,
        } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        Epilogue::GeluBackward { sums: false } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
        Epilogue::GeluBackward { sums: true } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU_BGRAD,
        // The transposes swap the two.
        Epilogue::SumsOfA => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
        Epilogue::SumsOfB => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADA,
    };
    code as u32
}
