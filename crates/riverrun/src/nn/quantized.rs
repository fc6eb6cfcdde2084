//! Weights of 8 or 4 bits, for models that generate on the CPU: a step reads every weight once, and memory is what it waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Once};

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{DType, Device, FloatDType, Int, Shape, Tensor, TensorData};
use half::{bf16, f16};
use riverrun_kernels::gemm::cpu;
use riverrun_kernels::gemm::quantized::{Quantized, Sizes, quantize as quantized};

use super::matrices::{Matrix, matrices};
use crate::Error;
use crate::ops;

pub use riverrun_kernels::gemm::quantized::Bits;

/// Below this many outputs or inputs a weight stays as it is: panels of 128 columns would be mostly empty.
const SMALL: usize = 128;

/// A quantized matrix in the place of a weight. The weight itself is a view of one zero in its shape.
///
/// Integers of 8 or 4 bits, with a scale for 32 inputs of an output: 8.5 or 4.5 bits a weight.
#[derive(Module, Debug)]
pub struct QuantizedWeight {
    #[module(skip)]
    matrix: Stored,
}

/// `[inputs, outputs]`; a table of an embedding, `[tokens, channels]`, has the channels as its inputs.
#[derive(Clone)]
struct Stored {
    sizes: Sizes,
    numbers: Arc<Vec<u8>>,
    scales: Arc<Vec<bf16>>,
    table: bool,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.sizes)
    }
}

impl Stored {
    fn new(bits: Bits, weight: Tensor<2>, table: bool) -> Self {
        let [rows, columns] = weight.dims();
        let (k, n) = if table {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let sizes = Sizes { bits, k, n };
        let data = weight.into_data();
        let (numbers, scales) = match data.dtype() {
            DType::BF16 => values::<bf16>(sizes, &data, table, bf16::to_f32),
            DType::F16 => values::<f16>(sizes, &data, table, f16::to_f32),
            _ => values::<f32>(sizes, &data.convert::<f32>(), table, |x| x),
        };
        Self {
            sizes,
            numbers: Arc::new(numbers),
            scales: Arc::new(scales),
            table,
        }
    }

    fn view(&self) -> Quantized<'_> {
        Quantized {
            sizes: self.sizes,
            numbers: &self.numbers,
            scales: &self.scales,
        }
    }
}

/// Quantizes the numbers of a matrix as they are stored.
fn values<E: burn::tensor::Element + Sync>(
    sizes: Sizes,
    data: &TensorData,
    table: bool,
    wide: fn(E) -> f32,
) -> (Vec<u8>, Vec<bf16>) {
    let numbers = data.as_slice::<E>().expect("the dtype has been matched");
    let (k, n) = (sizes.k, sizes.n);
    match table {
        false => quantized(sizes, |i, j| wide(numbers[i * n + j])),
        true => quantized(sizes, |i, j| wide(numbers[j * k + i])),
    }
}

impl QuantizedWeight {
    /// The weight's matrix, where it is quantized and gradients are not asked for.
    pub(crate) fn of<'a, const D: usize>(
        weight: &'a Param<Tensor<2>>,
        x: &Tensor<D>,
    ) -> Option<&'a Self> {
        let own = weight.reparameterization::<Self>();
        own.filter(|_| !x.is_autodiff())
    }

    /// `x W + b`, `[.., outputs]`, in the dtype of `x`. Sums are in `f32`.
    pub(crate) fn product<const D: usize>(
        &self,
        x: Tensor<D>,
        bias: Option<Tensor<1>>,
    ) -> Result<Tensor<D>, Error> {
        let mut dims = x.dims();
        let Sizes { k, n, .. } = self.matrix.sizes;
        if dims[D - 1] != k {
            return Err(Error::Shape {
                what: "weight",
                expected: vec![dims[D - 1], n],
                found: vec![k, n],
            });
        }
        let (device, dtype) = (x.device(), x.dtype());
        let numbers = |data: TensorData| data.convert::<f32>().try_into_vec::<f32>();
        let fault = |error| Error::Invalid(format!("numbers of the host: {error:?}"));
        let x = numbers(x.into_data()).map_err(fault)?;
        let bias = bias.map_or(Ok(Vec::new()), |bias| numbers(bias.into_data()));
        let bias = bias.map_err(fault)?;
        dims[D - 1] = n;
        let mut y = vec![0.0; dims.iter().product()];
        cpu::quantized_product(&x, self.matrix.view(), &bias, &mut y)?;
        Ok(tensor(y, dims, &device, dtype))
    }

    /// Rows of a table, `[B, T, channels]`; any token without a row gives NaN.
    fn rows(&self, tokens: Tensor<2, Int>, dtype: DType) -> Tensor<3> {
        let ([batch, steps], device) = (tokens.dims(), tokens.device());
        let Sizes { k, n, .. } = self.matrix.sizes;
        let mut y = vec![f32::NAN; batch * steps * k];
        for (token, y) in tokens.into_data().iter::<i64>().zip(y.chunks_exact_mut(k)) {
            if let Some(row) = usize::try_from(token).ok().filter(|&row| row < n) {
                self.matrix.view().column(row, y);
            }
        }
        tensor(y, [batch, steps, k], &device, dtype)
    }
}

fn tensor<const D: usize>(
    numbers: Vec<f32>,
    dims: [usize; D],
    device: &Device,
    dtype: DType,
) -> Tensor<D> {
    let data = TensorData::new(numbers, dims).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

impl Reparameterization for QuantizedWeight {
    const NAME: &'static str = "quantized";

    /// The whole weight, for what does not multiply by it.
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        static SAID: Once = Once::new();
        let Sizes { bits, k, n } = self.matrix.sizes;
        let bits = bits.count();
        SAID.call_once(|| tracing::warn!("a weight of {bits} bits, {k} x {n}, is made whole"));
        let mut columns = vec![0.0; n * k];
        for (j, column) in columns.chunks_exact_mut(k).enumerate() {
            self.matrix.view().column(j, column);
        }
        let columns = tensor(columns, [n, k], &base.device(), base.dtype());
        let weight = match self.matrix.table {
            true => columns,
            false => columns.transpose(),
        };
        weight.reshape(base.shape())
    }
}

/// The model with the weights of its linear layers, and the tables of its embeddings, as integers of 8 or 4 bits. Weights of fewer than
/// 128 inputs or outputs, and all other parameters, stay as they are. It computes in the dtype that it had; layers whose products are
/// not those of [`nn::linear`](super::linear()) make their weights whole at each step.
///
/// A model of such weights generates: it does not learn, and is not saved.
///
/// # Errors
/// [`Error::Unsupported`] for a device that is not the CPU.
pub fn quantize<M: Module>(model: M, bits: Bits) -> Result<M, Error> {
    if let Some(device) = model.devices().iter().find(|d| !crate::device::is_cpu(d)) {
        return Err(Error::Unsupported(format!(
            "weights of {} bits are for the CPU, not for {}",
            bits.count(),
            crate::device::name(device)
        )));
    }
    let large = |found: &Matrix| found.sizes.iter().all(|&size| size >= SMALL);
    let found = matrices(&model).into_iter().filter(large);
    let found = found.filter_map(|found| {
        let table = match &*found.container {
            "Struct:Linear" => false,
            "Struct:Embedding" => true,
            _ => return None,
        };
        Some((found.path.join("."), table))
    });
    let found = found.collect();
    Ok(model.apply_reparameterization(Replace { bits, found }))
}

struct Replace {
    bits: Bits,
    /// The paths of weights to quantize; whether they are tables.
    found: BTreeMap<String, bool>,
}

impl Reparameterizer for Replace {
    type Reparam = QuantizedWeight;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<QuantizedWeight>) {
        let Some(table) = self.found.remove(path) else {
            return (param, None);
        };
        let (id, weight, mapper) = param.consume();
        let shape: Shape = weight.shape();
        let (device, dtype) = (weight.device(), weight.dtype());
        let [rows, columns] = [shape[0], shape[1]];
        let matrix = Stored::new(self.bits, weight.reshape([rows, columns]), table);
        let zero = Tensor::<D>::zeros([1; D], &device).cast(FloatDType::from(dtype));
        let base = Param::from_mapped_value(id, zero.expand(shape), mapper);
        (base, Some(QuantizedWeight { matrix }))
    }
}

/// [`ops::embedding`](crate::ops::embedding()) of a table that may be [quantized](quantize).
///
/// # Errors
/// As there.
pub fn embedding(table: &Param<Tensor<2>>, tokens: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
    match table.reparameterization::<QuantizedWeight>() {
        Some(own) => Ok(own.rows(tokens, (**table).dtype())),
        None => ops::embedding(table.val(), tokens),
    }
}

/// `x W` with the weight of a parameter, `[I, O]`, or `[O, I]` if it is the table of an embedding, that may be
/// [quantized](quantize); `None` where it is not.
pub fn quantized_product<const D: usize>(
    weight: &Param<Tensor<2>>,
    x: &Tensor<D>,
) -> Option<Result<Tensor<D>, Error>> {
    let own = QuantizedWeight::of(weight, x)?;
    Some(own.product(x.clone(), None))
}
