//! Launch settings derived from a problem: vector width, strides, grid, scratch.

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::handover::LANES;
use super::storage::Storage;
use super::tile::{Config, GeometryLaunch};
use super::{Inputs, Strided, Tuning, workspace};
use crate::Error;
use crate::gpu::Dtype;
use crate::gpu::{buffer, ptx};
use crate::recurrence::{Gate, Problem};

/// The launch settings that both passes derive from their arguments.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) tuning: Tuning,
    pub(super) vector: usize,
    pub(super) cols: usize,
    pub(super) buffers: [(Handle, usize); 3],
    pub(super) geometry: [(usize, usize, usize); 3],
    pub(super) address: AddressType,
    /// The types of the kernels' elements, and of the reset mask's.
    pub(super) types: [ElemType; 2],
}

impl Plan {
    pub(super) fn new(
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        inputs: &Inputs,
        tuning: Tuning,
        flags: (bool, bool, bool),
    ) -> Result<Self, Error> {
        let (initial, h0, reset) = flags;
        let shape = problem.shape;
        let (views, packed): (Vec<Strided>, bool) = match inputs {
            Inputs::Separate(views) => (views.clone(), false),
            Inputs::Packed(view) => {
                let view = |i| Strided {
                    offset: view.offset + i * shape.dim,
                    ..view.clone()
                };
                ((0..problem.gate.inputs()).map(view).collect(), true)
            }
        };
        problem.check(views.len())?;
        if !packed && problem.gate != Gate::Raw {
            return Err(Error::Inputs {
                gate: problem.gate.name(),
                expected: 1,
                found: views.len(),
            });
        }
        for view in &views {
            let end = (shape.batch - 1)
                .saturating_mul(view.batch_stride)
                .saturating_add((shape.steps - 1).saturating_mul(view.step_stride))
                .saturating_add(view.offset)
                .saturating_add(shape.dim);
            if end > view.len {
                return Err(Error::Length {
                    what: "gate input",
                    expected: end,
                    found: view.len,
                });
            }
        }
        let widest = tuning
            .vector
            .min(client.properties().hardware.max_vector_size);
        let vector = (0..=3)
            .rev()
            .map(|power| 1usize << power)
            .find(|v| {
                *v <= widest
                    && shape.dim.is_multiple_of(*v)
                    && views.iter().all(|view| {
                        [view.offset, view.batch_stride, view.step_stride, view.len]
                            .iter()
                            .all(|n| n % v == 0)
                    })
            })
            .unwrap_or(1);
        let ptx = ptx(client);
        let storage = Storage::choose(client, dtype, vector);
        let at = |i: usize| &views[i.min(views.len() - 1)];
        let most = views
            .iter()
            .map(|view| view.len)
            .max()
            .unwrap_or(0)
            .max(shape.elements());
        // Indices count vectors, but must reach every byte.
        let far = most * dtype.size() >= 1 << 31;
        Ok(Self {
            config: Config {
                gate: problem.gate,
                reverse: problem.reverse,
                packed,
                initial,
                h0,
                reset,
                len: tuning.len,
                storage,
                registers: tuning.registers,
                ptx,
            },
            tuning,
            vector,
            cols: shape.dim / vector,
            buffers: [0, 1, 2].map(|i| (at(i).handle.clone(), at(i).len / vector)),
            geometry: [0, 1, 2].map(|i| {
                (
                    at(i).offset / vector,
                    at(i).batch_stride / vector,
                    at(i).step_stride / vector,
                )
            }),
            types: [storage.elem(dtype), dtype.elem()],
            address: if far {
                AddressType::U64
            } else {
                AddressType::U32
            },
        })
    }

    pub(super) fn geometry(&self, steps: usize) -> GeometryLaunch {
        let [g0, g1, g2] = self.geometry;
        GeometryLaunch::new(
            self.cols, steps, g0.0, g0.1, g0.2, g1.0, g1.1, g1.2, g2.0, g2.1, g2.2,
        )
    }

    pub(super) fn input(&self, i: usize) -> BufferArg {
        // Safety: `Plan::new` has checked that the view ends inside the buffer.
        unsafe { BufferArg::from_raw_parts(self.buffers[i].0.clone(), self.buffers[i].1) }
    }

    /// An optional buffer; if absent, another buffer, which the kernel does not read.
    pub(super) fn optional(
        &self,
        handle: &Option<Handle>,
        elements: usize,
        vector: usize,
    ) -> BufferArg {
        match handle {
            Some(handle) => buffer(handle, elements, vector),
            None => self.input(0),
        }
    }
}

/// The grid and the scratch memory of a look-back launch.
pub(super) struct Chain {
    pub(super) dim: CubeDim,
    pub(super) cubes: usize,
    pub(super) chunks: usize,
    pub(super) lease: workspace::Lease,
}

impl Chain {
    pub(super) fn new(client: &Client, plan: &Plan, problem: &Problem) -> Self {
        let Tuning {
            len,
            planes,
            lookback,
            ..
        } = plan.tuning;
        let tiles = problem.shape.batch * plan.cols.div_ceil(LANES);
        let chunks = problem.shape.steps.div_ceil(len * planes);
        let row = tiles * LANES * plan.vector;
        // One state a group; where there are groups, also two rows a tile for its map.
        let rows = match lookback {
            0 => chunks,
            _ => chunks.div_ceil(planes * lookback) + 2 * chunks,
        };
        Self {
            dim: CubeDim::new_2d(LANES as u32, planes as u32),
            cubes: tiles * chunks,
            chunks,
            lease: workspace::lease(client, rows * row),
        }
    }
}
