//! Tensors and operations of a cuDNN graph.

use super::ids::{attribute, data, descriptor, kind, pointwise, reduce};
use super::library::{Descriptor, Library, Raw};
use crate::gpu::plans::Refusal;

/// Sizes or strides: sequences, heads, rows, columns.
pub(super) type Four = [i64; 4];

/// The buffers of the graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Slot {
    Q,
    K,
    V,
    O,
    Lse,
    DO,
    DQ,
    DK,
    DV,
    /// `Σ_d do_id o_id`, written before it is read.
    Delta,
    /// Sums for `DQ` in `f32`, cleared by cuDNN.
    Sums,
}

impl Slot {
    pub const COUNT: usize = Self::Sums as usize + 1;
}

/// Where a tensor's numbers are.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Nowhere: between operations of one kernel.
    Virtual,
    Buffer(Slot),
    /// One number of the host.
    Value(f32),
}

/// A tensor of a graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor(usize);

struct Known {
    descriptor: Descriptor,
    sizes: Four,
    strides: Four,
}

/// The strides of contiguous rows.
pub(super) fn contiguous(sizes: Four) -> Four {
    let [_, heads, rows, columns] = sizes;
    [heads * rows * columns, rows * columns, columns, 1]
}

/// The last two dimensions exchanged.
pub(super) fn transposed([b, h, rows, columns]: Four) -> Four {
    [b, h, columns, rows]
}

/// A graph under construction.
pub(super) struct Graph {
    library: &'static Library,
    // Operations point to their parts and tensors, so they go first.
    operations: Vec<Descriptor>,
    parts: Vec<Descriptor>,
    tensors: Vec<Known>,
    /// The buffers that the graph names, by the tensor's number.
    pub slots: Vec<(i64, Slot)>,
    /// The host's numbers, by the tensor's number; their addresses are kept.
    pub values: Vec<(i64, Box<f32>)>,
}

impl Graph {
    pub fn new(library: &'static Library) -> Self {
        Self {
            library,
            operations: Vec::new(),
            parts: Vec::new(),
            tensors: Vec::new(),
            slots: Vec::new(),
            values: Vec::new(),
        }
    }

    fn tensor(
        &mut self,
        sizes: Four,
        strides: Four,
        data: u32,
        place: Place,
    ) -> Result<Tensor, Refusal> {
        let number = self.tensors.len() as i64 + 1;
        let tensor = Descriptor::new(self.library, descriptor::TENSOR, "a tensor")?;
        tensor
            .set(attribute::TENSOR_DATA_TYPE, kind::DATA_TYPE, &[data])?
            .set(attribute::TENSOR_DIMENSIONS, kind::INT64, &sizes)?
            .set(attribute::TENSOR_STRIDES, kind::INT64, &strides)?
            .set(attribute::TENSOR_UNIQUE_ID, kind::INT64, &[number])?
            .set(attribute::TENSOR_BYTE_ALIGNMENT, kind::INT64, &[16i64])?;
        match place {
            Place::Virtual => {
                tensor.set(attribute::TENSOR_IS_VIRTUAL, kind::BOOLEAN, &[true])?;
            }
            Place::Buffer(slot) => self.slots.push((number, slot)),
            Place::Value(value) => {
                tensor.set(attribute::TENSOR_IS_BY_VALUE, kind::BOOLEAN, &[true])?;
                self.values.push((number, Box::new(value)));
            }
        }
        self.tensors.push(Known {
            descriptor: tensor.finalized()?,
            sizes,
            strides,
        });
        Ok(Tensor(self.tensors.len() - 1))
    }

    /// A tensor in a buffer.
    pub fn buffer(
        &mut self,
        slot: Slot,
        sizes: Four,
        strides: Four,
        data: u32,
    ) -> Result<Tensor, Refusal> {
        self.tensor(sizes, strides, data, Place::Buffer(slot))
    }

    /// A number of the host's.
    pub fn value(&mut self, value: f32) -> Result<Tensor, Refusal> {
        self.tensor([1; 4], [1; 4], data::FLOAT, Place::Value(value))
    }

    /// A tensor between operations.
    pub fn between(&mut self, sizes: Four, data: u32) -> Result<Tensor, Refusal> {
        self.tensor(sizes, contiguous(sizes), data, Place::Virtual)
    }

    /// The same with other strides, which address nothing but tell engines apart.
    pub fn between_with(
        &mut self,
        sizes: Four,
        strides: Four,
        data: u32,
    ) -> Result<Tensor, Refusal> {
        self.tensor(sizes, strides, data, Place::Virtual)
    }

    fn descriptor(&self, tensor: Tensor) -> &Descriptor {
        &self.tensors[tensor.0].descriptor
    }

    /// `out = mode(x, b, t)`, element by element, in `compute`.
    pub fn pointwise_to(
        &mut self,
        mode: u32,
        compute: u32,
        axis: Option<i64>,
        inputs: &[Tensor],
        out: Tensor,
    ) -> Result<(), Refusal> {
        let part = Descriptor::new(
            self.library,
            descriptor::POINTWISE,
            "an elementwise operation",
        )?;
        part.set(attribute::POINTWISE_MODE, kind::POINTWISE_MODE, &[mode])?
            .set(attribute::POINTWISE_MATH_PREC, kind::DATA_TYPE, &[compute])?;
        if let Some(axis) = axis {
            part.set(attribute::POINTWISE_AXIS, kind::INT64, &[axis])?;
        }
        let part = part.finalized()?;
        let operation = Descriptor::new(
            self.library,
            descriptor::OPERATION_POINTWISE,
            "an elementwise operation",
        )?;
        operation.link(attribute::OPERATION_POINTWISE_PW_DESCRIPTOR, &part)?;
        let places = [
            attribute::OPERATION_POINTWISE_XDESC,
            attribute::OPERATION_POINTWISE_BDESC,
            attribute::OPERATION_POINTWISE_TDESC,
        ];
        for (place, &input) in places.into_iter().zip(inputs) {
            operation.link(place, self.descriptor(input))?;
        }
        operation
            .link(attribute::OPERATION_POINTWISE_YDESC, self.descriptor(out))?
            .set(
                attribute::OPERATION_POINTWISE_ALPHA1,
                kind::FLOAT,
                &[1.0f32],
            )?
            .set(
                attribute::OPERATION_POINTWISE_ALPHA2,
                kind::FLOAT,
                &[1.0f32],
            )?;
        self.operations.push(operation.finalized()?);
        self.parts.push(part);
        Ok(())
    }

    /// The same into a tensor between operations, of the first input's shape.
    fn pointwise(
        &mut self,
        mode: u32,
        (compute, data): (u32, u32),
        axis: Option<i64>,
        inputs: &[Tensor],
    ) -> Result<Tensor, Refusal> {
        let first = &self.tensors[inputs[0].0];
        let (sizes, strides) = (first.sizes, first.strides);
        let out = self.tensor(sizes, strides, data, Place::Virtual)?;
        self.pointwise_to(mode, compute, axis, inputs, out)?;
        Ok(out)
    }

    /// The same in `f32`.
    pub fn map(&mut self, mode: u32, inputs: &[Tensor]) -> Result<Tensor, Refusal> {
        self.pointwise(mode, (data::FLOAT, data::FLOAT), None, inputs)
    }

    /// `out = a b`, the matrices of each head.
    pub fn product(&mut self, a: Tensor, b: Tensor, out: Tensor) -> Result<(), Refusal> {
        let part = Descriptor::new(self.library, descriptor::MATMUL, "a product")?;
        part.set(attribute::MATMUL_COMP_TYPE, kind::DATA_TYPE, &[data::FLOAT])?;
        let part = part.finalized()?;
        let operation = Descriptor::new(self.library, descriptor::OPERATION_MATMUL, "a product")?;
        operation
            .link(attribute::OPERATION_MATMUL_ADESC, self.descriptor(a))?
            .link(attribute::OPERATION_MATMUL_BDESC, self.descriptor(b))?
            .link(attribute::OPERATION_MATMUL_CDESC, self.descriptor(out))?
            .link(attribute::OPERATION_MATMUL_DESC, &part)?;
        self.operations.push(operation.finalized()?);
        self.parts.push(part);
        Ok(())
    }

    /// `out` = `x` reduced over the dimensions in which `out` has size 1, or over groups of heads.
    pub fn reduce(&mut self, operator: u32, x: Tensor, out: Tensor) -> Result<(), Refusal> {
        let part = Descriptor::new(self.library, descriptor::REDUCTION, "a reduction")?;
        part.set(
            attribute::REDUCTION_COMP_TYPE,
            kind::DATA_TYPE,
            &[data::FLOAT],
        )?
        .set(
            attribute::REDUCTION_OPERATOR,
            kind::REDUCTION_OPERATOR,
            &[operator],
        )?;
        let part = part.finalized()?;
        let operation =
            Descriptor::new(self.library, descriptor::OPERATION_REDUCTION, "a reduction")?;
        operation
            .link(attribute::OPERATION_REDUCTION_DESC, &part)?
            .link(attribute::OPERATION_REDUCTION_XDESC, self.descriptor(x))?
            .link(attribute::OPERATION_REDUCTION_YDESC, self.descriptor(out))?;
        self.operations.push(operation.finalized()?);
        self.parts.push(part);
        Ok(())
    }

    /// `x` with its last two dimensions exchanged.
    pub fn transpose(&mut self, x: Tensor, data: u32) -> Result<Tensor, Refusal> {
        let known = &self.tensors[x.0];
        let (sizes, strides) = (transposed(known.sizes), transposed(known.strides));
        let out = self.tensor(sizes, strides, data, Place::Virtual)?;
        let operation = Descriptor::new(
            self.library,
            descriptor::OPERATION_RESHAPE,
            "a transposition",
        )?;
        operation
            .link(attribute::OPERATION_RESHAPE_XDESC, self.descriptor(x))?
            .link(attribute::OPERATION_RESHAPE_YDESC, self.descriptor(out))?;
        self.operations.push(operation.finalized()?);
        Ok(out)
    }

    /// The scores with -∞ where a query does not see a key: after its position, or `window` or more before it. cuDNN's engines
    /// know this form, one comparison of indices and one selection a bound.
    pub fn mask(
        &mut self,
        scores: Tensor,
        causal: bool,
        window: Option<usize>,
    ) -> Result<Tensor, Refusal> {
        let mut scores = scores;
        if causal {
            let [row, column] = self.indices(scores)?;
            let seen = self.pointwise(
                pointwise::CMP_GE,
                (data::BOOLEAN, data::BOOLEAN),
                None,
                &[row, column],
            )?;
            scores = self.select(scores, seen)?;
        }
        if let Some(window) = window {
            let [row, column] = self.indices(scores)?;
            let window = self.value(window as f32)?;
            let end = self.pointwise(
                pointwise::ADD,
                (data::FLOAT, data::FLOAT),
                Some(3),
                &[column, window],
            )?;
            let seen = self.pointwise(
                pointwise::CMP_GT,
                (data::BOOLEAN, data::BOOLEAN),
                None,
                &[end, row],
            )?;
            scores = self.select(scores, seen)?;
        }
        Ok(scores)
    }

    fn indices(&mut self, scores: Tensor) -> Result<[Tensor; 2], Refusal> {
        let types = (data::FLOAT, data::INT32);
        let row = self.pointwise(pointwise::GEN_INDEX, types, Some(2), &[scores])?;
        let column = self.pointwise(pointwise::GEN_INDEX, types, Some(3), &[scores])?;
        Ok([row, column])
    }

    fn select(&mut self, scores: Tensor, seen: Tensor) -> Result<Tensor, Refusal> {
        let never = self.value(f32::NEG_INFINITY)?;
        self.map(pointwise::BINARY_SELECT, &[scores, never, seen])
    }

    /// The softmax of each row, in `data`; the log-sum-exp goes to `lse`.
    pub fn softmax(&mut self, scores: Tensor, lse: Tensor, data: u32) -> Result<Tensor, Refusal> {
        let sizes = self.tensors[scores.0].sizes;
        let [b, h, rows, _] = sizes;
        let largest = self.between([b, h, rows, 1], data::FLOAT)?;
        self.reduce(reduce::MAX, scores, largest)?;
        let less = self.map(pointwise::SUB, &[scores, largest])?;
        let powers = self.map(pointwise::EXP, &[less])?;
        let sum = self.between([b, h, rows, 1], data::FLOAT)?;
        self.reduce(reduce::ADD, powers, sum)?;
        let log = self.map(pointwise::LOG, &[sum])?;
        self.pointwise_to(pointwise::ADD, data::FLOAT, None, &[largest, log], lse)?;
        let out = self.between(sizes, data)?;
        self.pointwise_to(pointwise::DIV, data::FLOAT, None, &[powers, sum], out)?;
        Ok(out)
    }

    /// The finished graph.
    pub fn finalized(&self, handle: Raw) -> Result<Descriptor, Refusal> {
        let graph = Descriptor::new(self.library, descriptor::OPERATIONGRAPH, "a graph")?;
        let operations: Vec<Raw> = self.operations.iter().map(Descriptor::raw).collect();
        graph.set(
            attribute::OPERATIONGRAPH_OPS,
            kind::BACKEND_DESCRIPTOR,
            &operations,
        )?;
        if !handle.is_null() {
            graph.set(attribute::OPERATIONGRAPH_HANDLE, kind::HANDLE, &[handle])?;
        }
        graph.finalized()
    }
}
