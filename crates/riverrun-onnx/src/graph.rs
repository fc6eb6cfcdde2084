//! A graph under construction.

use burn::tensor::Tensor;
use riverrun::Error;

use crate::proto::{
    AttributeProto, Dimension, DimensionProto, GraphProto, NodeProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};

/// A value of the graph, by its name.
pub type Value = String;

/// A size of an input or output.
#[derive(Debug, Clone, Copy)]
pub enum Size {
    /// A size that the layer fixes.
    Fixed(usize),
    /// A size by name, known when the model runs.
    Dynamic(&'static str),
}

/// The sequences of a batch.
pub const BATCH: Size = Size::Dynamic("batch");
/// The steps of a sequence.
pub const TIME: Size = Size::Dynamic("time");

/// A graph under construction. Nodes are added in the order in which they are computed, and every value has a name of its own.
#[derive(Debug, Default)]
pub struct Graph {
    graph: GraphProto,
    values: usize,
    /// Before the names of values; graphs within graphs share one space of names.
    prefix: String,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        Self {
            graph: GraphProto {
                name: Some(name.into()),
                ..GraphProto::default()
            },
            values: 0,
            prefix: String::new(),
        }
    }

    /// An empty graph to be an attribute of a node in this one.
    pub fn inner(&mut self, name: &str) -> Self {
        let prefix = format!("{}/", self.fresh(name));
        Self {
            prefix,
            ..Self::new(name)
        }
    }

    fn fresh(&mut self, stem: &str) -> Value {
        self.values += 1;
        format!("{}{stem}_{}", self.prefix, self.values)
    }

    /// An input of the model, or of an inner graph.
    pub fn input(&mut self, name: &str, dtype: i32, sizes: &[Size]) -> Value {
        let name = format!("{}{name}", self.prefix);
        self.graph.input.push(described(&name, dtype, sizes));
        name
    }

    /// Gives a value out of the graph under a name.
    pub fn output(&mut self, value: &Value, name: &str, dtype: i32, sizes: &[Size]) {
        let name = format!("{}{name}", self.prefix);
        self.push("Identity", &[value], vec![name.clone()], Vec::new());
        self.graph.output.push(described(&name, dtype, sizes));
    }

    /// A constant of floats.
    pub fn floats(&mut self, stem: &str, sizes: &[usize], numbers: Vec<f32>) -> Value {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.constant(stem, sizes, data_type::FLOAT, bytes)
    }

    /// A constant of integers.
    pub fn integers(&mut self, stem: &str, numbers: &[i64]) -> Value {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.constant(stem, &[numbers.len()], data_type::INT64, bytes)
    }

    /// A constant number that takes every shape.
    pub fn scalar(&mut self, number: f32) -> Value {
        self.floats("number", &[], vec![number])
    }

    /// A constant from a tensor.
    ///
    /// # Errors
    /// A device that fails.
    pub fn tensor<const D: usize>(
        &mut self,
        stem: &str,
        tensor: &Tensor<D>,
    ) -> Result<Value, Error> {
        let sizes = tensor.dims();
        Ok(self.floats(stem, &sizes, numbers(tensor)?))
    }

    fn constant(&mut self, stem: &str, sizes: &[usize], dtype: i32, bytes: Vec<u8>) -> Value {
        let name = self.fresh(stem);
        self.graph.initializer.push(TensorProto {
            name: Some(name.clone()),
            dims: sizes.iter().map(|&size| size as i64).collect(),
            data_type: Some(dtype),
            raw_data: Some(bytes),
            ..TensorProto::default()
        });
        name
    }

    /// A node with one output.
    pub fn node(&mut self, op: &str, inputs: &[&Value], attributes: Vec<AttributeProto>) -> Value {
        let output = self.fresh(&op.to_lowercase());
        self.push(op, inputs, vec![output.clone()], attributes);
        output
    }

    /// A node with several outputs.
    pub fn node_of<const N: usize>(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: Vec<AttributeProto>,
    ) -> [Value; N] {
        let outputs = [(); N].map(|()| self.fresh(&op.to_lowercase()));
        self.push(op, inputs, outputs.to_vec(), attributes);
        outputs
    }

    fn push(
        &mut self,
        op: &str,
        inputs: &[&Value],
        output: Vec<Value>,
        attributes: Vec<AttributeProto>,
    ) {
        let name = format!("{}{}", self.prefix, self.graph.node.len());
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.clone()).collect(),
            output,
            name: Some(format!("{op}_{name}")),
            op_type: Some(op.into()),
            attribute: attributes,
        });
    }

    /// `length` elements of a value along `axis`, from `start` on.
    pub fn narrow(&mut self, value: &Value, axis: usize, start: usize, length: usize) -> Value {
        let start = start as i64;
        let bounds = [start, start + length as i64, axis as i64];
        let [start, end, axis] = bounds.map(|bound| self.integers("bound", &[bound]));
        self.node("Slice", &[value, &start, &end, &axis], Vec::new())
    }

    /// A value with a dimension of 1 more.
    pub fn unsqueeze(&mut self, value: &Value, axis: i64) -> Value {
        let axes = self.integers("axes", &[axis]);
        self.node("Unsqueeze", &[value, &axes], Vec::new())
    }

    /// A value without a dimension of 1.
    pub fn squeeze(&mut self, value: &Value, axis: i64) -> Value {
        let axes = self.integers("axes", &[axis]);
        self.node("Squeeze", &[value, &axes], Vec::new())
    }

    /// A value with its first two dimensions in the other order.
    pub fn swap_batch_and_time(&mut self, value: &Value) -> Value {
        self.node("Transpose", &[value], vec![ints("perm", &[1, 0, 2])])
    }

    /// `x W + b`; the weight is `[in, out]`.
    ///
    /// # Errors
    /// A device that fails.
    pub fn linear(
        &mut self,
        x: &Value,
        weight: &Tensor<2>,
        bias: Option<&Tensor<1>>,
    ) -> Result<Value, Error> {
        let weight = self.tensor("weight", weight)?;
        let y = self.node("MatMul", &[x, &weight], Vec::new());
        match bias {
            None => Ok(y),
            Some(bias) => {
                let bias = self.tensor("bias", bias)?;
                Ok(self.node("Add", &[&y, &bias], Vec::new()))
            }
        }
    }

    /// The finished graph.
    pub fn finish(self) -> GraphProto {
        self.graph
    }
}

/// The numbers of a tensor, widened to `f32`.
///
/// # Errors
/// A device that fails.
pub fn numbers<const D: usize>(tensor: &Tensor<D>) -> Result<Vec<f32>, Error> {
    Ok(riverrun::device::read(tensor.clone())?
        .iter::<f32>()
        .collect())
}

fn described(name: &str, dtype: i32, sizes: &[Size]) -> ValueInfoProto {
    let dimension = |size: &Size| DimensionProto {
        value: Some(match size {
            Size::Fixed(size) => Dimension::Value(*size as i64),
            Size::Dynamic(name) => Dimension::Param((*name).into()),
        }),
    };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: Some(dtype),
                shape: Some(TensorShapeProto {
                    dim: sizes.iter().map(dimension).collect(),
                }),
            }),
        }),
    }
}

/// An attribute of one integer.
pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        i: Some(i),
        r#type: Some(attribute_type::INT),
        ..AttributeProto::default()
    }
}

/// An attribute of integers.
pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        ints: ints.to_vec(),
        r#type: Some(attribute_type::INTS),
        ..AttributeProto::default()
    }
}

/// An attribute of a text.
pub fn text(name: &str, text: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        s: Some(text.into()),
        r#type: Some(attribute_type::STRING),
        ..AttributeProto::default()
    }
}

/// An attribute of texts.
pub fn texts(name: &str, texts: &[&str]) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        strings: texts.iter().map(|text| text.as_bytes().to_vec()).collect(),
        r#type: Some(attribute_type::STRINGS),
        ..AttributeProto::default()
    }
}

/// An attribute of a graph.
pub fn graph(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        g: Some(graph),
        r#type: Some(attribute_type::GRAPH),
        ..AttributeProto::default()
    }
}
