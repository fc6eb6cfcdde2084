//! Edges of a recorded graph along which a launch begins before the one at their start has ended. See `gpu/overlap.rs`.

use std::ffi::{c_uint, c_ulonglong};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureStatus, cuGraphGetNodes, culib,
};

use crate::gpu::chain::Chain;

/// `CUgraphEdgeData`, which headers have from CUDA 12.3 on.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Edge {
    from_port: u8,
    to_port: u8,
    kind: u8,
    reserved: [u8; 5],
}

/// From where all cubes let the next launch begin, or have ended.
const EARLY: Edge = Edge {
    from_port: 1,
    to_port: 0,
    kind: 1,
    reserved: [0; 5],
};

/// Replaces what the next work of a stream waits for.
const SET: c_uint = 1;

type CaptureInfo = unsafe extern "C" fn(
    CUstream,
    *mut CUstreamCaptureStatus,
    *mut c_ulonglong,
    *mut CUgraph,
    *mut *const CUgraphNode,
    *mut *const Edge,
    *mut usize,
) -> CUresult;
type UpdateDependencies =
    unsafe extern "C" fn(CUstream, *mut CUgraphNode, *const Edge, usize, c_uint) -> CUresult;

/// The driver's functions, if it is new enough.
#[derive(Clone, Copy)]
struct Functions {
    info: CaptureInfo,
    update: UpdateDependencies,
}

impl Functions {
    fn get() -> Option<Self> {
        static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            // SAFETY: CubeCL has loaded the driver, and these are the signatures of CUDA's headers.
            unsafe {
                let library = culib();
                Some(Self {
                    info: *library.get(b"cuStreamGetCaptureInfo_v3\0").ok()?,
                    update: *library
                        .get(b"cuStreamUpdateCaptureDependencies_v2\0")
                        .ok()?,
                })
            }
        })
    }
}

/// Before a launch that waits, on a stream that may record: lets it overlap the launch before it, if the chain allows it.
pub(super) fn before(
    chain: &mut Chain,
    stream: CUstream,
    early: &[Range<u64>],
    writes: Vec<Range<u64>>,
    let_first: bool,
) -> Result<(), String> {
    let Some(functions) = Functions::get() else {
        return Ok(());
    };
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut recording, mut graph) = (0, null_mut());
    let (mut dependencies, mut edges) = (null(), null());
    let (mut count, mut nodes) = (0, 0);
    // SAFETY: the stream is CubeCL's, and the driver keeps the arrays until the stream's next call.
    unsafe {
        let info = (functions.info)(
            stream,
            &mut status,
            &mut recording,
            &mut graph,
            &mut dependencies,
            &mut edges,
            &mut count,
        );
        info.result().map_err(failed)?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            return Ok(());
        }
        let got = cuGraphGetNodes(graph, null_mut(), &mut nodes);
        got.result().map_err(failed)?;
        if chain.add(recording, nodes, early, writes, let_first) && count == 1 {
            let mut before = *dependencies;
            let updated = (functions.update)(stream, &mut before, &EARLY, 1, SET);
            updated.result().map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(error: cudarc::driver::DriverError) -> String {
    format!("a launch cannot overlap the one before it: {error}")
}
