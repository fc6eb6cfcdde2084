//! cuBLASLt's objects, each destroyed with its owner. The library is loaded at run time.

use std::ffi::c_void;

use cudarc::cublaslt::result;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasStatus_t, cudaDataType,
};
use cudarc::driver::sys::CUstream;

use crate::gpu::plans::Refusal;

/// The refusal of a failed call.
fn refused(what: &str) -> impl Fn(result::CublasError) -> Refusal {
    move |error| {
        let reason = format!("cuBLASLt: {what}: {:?}", error.0);
        Refusal::of_status(reason, is_lasting(error.0))
    }
}

/// Whether a status says that the library does not have what was asked for: no errors of initialisation or memory.
fn is_lasting(status: cublasStatus_t) -> bool {
    matches!(
        status,
        cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE
            | cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH
            | cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
    )
}

/// The library, opened for one device.
pub(super) struct Library(cublasLtHandle_t);

impl Library {
    /// Whether the loader finds the library.
    pub fn installed() -> bool {
        // SAFETY: loading NVIDIA's library runs its initialisers, and nothing else of it.
        unsafe { sys::is_culib_present() }
    }

    /// Opens the library for the device whose context is current.
    pub fn open() -> Result<Self, Refusal> {
        result::create_handle()
            .map(Self)
            .map_err(refused("opening"))
    }

    /// The version, as 10000 major + 100 minor + patch.
    pub fn version() -> usize {
        // SAFETY: takes and touches nothing.
        unsafe { sys::cublasLtGetVersion() }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made in `open`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// Stored matrices of one size: columns contiguous, as cuBLASLt sees them.
pub(super) struct Matrix(cublasLtMatrixLayout_t);

impl Matrix {
    pub fn new(
        dtype: cudaDataType,
        rows: usize,
        columns: usize,
        stride: usize,
    ) -> Result<Self, Refusal> {
        result::create_matrix_layout(dtype, rows as u64, columns as u64, stride as i64)
            .map(Self)
            .map_err(refused("a matrix layout"))
    }

    /// `count` of them, `distance` elements from the start of one to that of the next.
    pub fn batched(self, count: usize, distance: usize) -> Result<Self, Refusal> {
        self.set(
            LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
            count as i32,
        )?;
        let offset = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        self.set(offset, distance as i64)?;
        Ok(self)
    }

    /// Sets an attribute. `T` must be the attribute's type.
    fn set<T: Copy>(&self, attribute: LayoutAttribute, value: T) -> Result<(), Refusal> {
        let at = (&raw const value).cast::<c_void>();
        // SAFETY: `value` outlives the call, which copies it.
        unsafe { result::set_matrix_layout_attribute(self.0, attribute, at, size_of::<T>()) }
            .map_err(refused("a matrix layout"))
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// A product: arithmetic, transpositions, epilogue.
pub(super) struct Description(cublasLtMatmulDesc_t);

impl Description {
    pub fn new(arithmetic: cublasComputeType_t) -> Result<Self, Refusal> {
        result::create_matmul_desc(arithmetic, cudaDataType::CUDA_R_32F)
            .map(Self)
            .map_err(refused("a product"))
    }

    /// Sets an attribute. `T` must be the attribute's type.
    pub fn set<T: Copy>(&self, attribute: Attribute, value: T) -> Result<(), Refusal> {
        let at = (&raw const value).cast::<c_void>();
        // SAFETY: `value` outlives the call, which copies it.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, at, size_of::<T>()) }
            .map_err(refused("an attribute"))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The resources that an algorithm may use.
struct Preference(cublasLtMatmulPreference_t);

impl Preference {
    fn new(workspace: usize, alignment: u32) -> Result<Self, Refusal> {
        let this = Self(result::create_matmul_pref().map_err(refused("a preference"))?);
        this.set(
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            workspace,
        )?;
        for attribute in [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            this.set(attribute, alignment)?;
        }
        Ok(this)
    }

    fn set<T: Copy>(&self, attribute: PreferenceAttribute, value: T) -> Result<(), Refusal> {
        let at = (&raw const value).cast::<c_void>();
        // SAFETY: `value` outlives the call, which copies it.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, at, size_of::<T>()) }
            .map_err(refused("a preference"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// An algorithm of cuBLASLt for a product.
pub(super) struct Algorithm {
    algorithm: cublasLtMatmulAlgo_t,
    /// Bytes of scratch memory.
    pub workspace: usize,
}

/// A product with its chosen algorithm.
pub(super) struct Chosen {
    pub description: Description,
    pub a: Matrix,
    pub b: Matrix,
    pub d: Matrix,
    pub algorithm: Algorithm,
}

/// The addresses of a product's matrices.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub a: u64,
    pub b: u64,
    /// What is added to the product, in the layout of `d`.
    pub c: Option<u64>,
    pub d: u64,
    pub workspace: u64,
}

impl Chosen {
    /// Takes the algorithm that the heuristics say is the best. Nothing is run or measured. It may use `workspace` bytes, and
    /// buffers have `alignment`.
    pub fn new(
        library: &Library,
        description: Description,
        [a, b, d]: [Matrix; 3],
        (workspace, alignment): (usize, u32),
    ) -> Result<Self, Refusal> {
        let preference = Preference::new(workspace, alignment)?;
        // SAFETY: every object is alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                library.0,
                description.0,
                a.0,
                b.0,
                d.0,
                d.0,
                preference.0,
            )
        }
        .map_err(refused("no algorithm"))?;
        let algorithm = Algorithm {
            algorithm: found.algo,
            workspace: found.workspaceSize,
        };
        Ok(Self {
            description,
            a,
            b,
            d,
            algorithm,
        })
    }

    /// Puts the product on a stream.
    ///
    /// # Safety
    /// The addresses are those of buffers of the sizes, types and alignment of the choice, the workspace's of
    /// `algorithm.workspace` bytes, all alive until the stream has run the work; so are those in the description.
    pub unsafe fn launch(
        &self,
        library: &Library,
        at: Addresses,
        stream: CUstream,
    ) -> Result<(), Refusal> {
        let (one, part) = (1.0f32, if at.c.is_some() { 1.0f32 } else { 0.0 });
        // SAFETY: the caller's promise; the two factors are read before the call returns.
        unsafe {
            result::matmul(
                library.0,
                self.description.0,
                (&raw const one).cast(),
                (&raw const part).cast(),
                at.a as *const c_void,
                self.a.0,
                at.b as *const c_void,
                self.b.0,
                at.c.unwrap_or(at.d) as *const c_void,
                self.d.0,
                at.d as *mut c_void,
                self.d.0,
                &raw const self.algorithm.algorithm,
                at.workspace as *mut c_void,
                self.algorithm.workspace,
                stream.cast(),
            )
        }
        .map_err(refused("a product"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_memory_may_pass() {
        let lasting = |status| refused("a product")(result::CublasError(status)).is_lasting();
        assert!(lasting(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        assert!(!lasting(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED));
        assert!(!lasting(cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED));
    }
}
