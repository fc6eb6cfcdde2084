//! Products of a few rows, in one launch with the norm before and what follows: on GPUs, for models that take one step at a time.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::nn::Linear;
use burn::tensor::{DType, Device, Tensor};
use riverrun_kernels::few_rows::Then;

use super::support::{Maybe, checks};
use crate::Error;
use crate::nn::RmsNorm;
use crate::ops::Gate;

/// The norm before a product, if any, and the product's weights.
#[derive(Clone, Copy)]
pub struct FewRows<'a> {
    /// Over the product's inputs.
    pub norm: Option<&'a RmsNorm>,
    /// `[K, N]`, with or without a bias.
    pub product: &'a Linear,
}

/// Options that a kernel knows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FewRowsSpec {
    /// `ε` of the norm.
    epsilon: Option<f64>,
    then: Then,
}

/// Whether a device has the kernel for rows of a dtype; none has it under autodiff.
pub fn takes_few_rows(device: &Device, dtype: DType, rows: usize) -> bool {
    #[cfg(feature = "cube")]
    if let burn::backend::DispatchDevice::Cube(_) = device.as_dispatch() {
        return (1..=riverrun_kernels::few_rows::gpu::ROWS).contains(&rows)
            && super::support::cube::known(dtype).is_some();
    }
    let _ = (device, dtype, rows);
    false
}

impl FewRows<'_> {
    fn checked(&self, x: &Tensor<2>, parts: usize) -> Result<[usize; 2], Error> {
        let ([rows, inputs], weight) = (x.dims(), self.product.weight.val());
        let [_, products] = weight.dims();
        if !takes_few_rows(&x.device(), x.dtype(), rows) {
            let reason = "a product of few rows is for GPUs, without autodiff";
            return Err(Error::Unsupported(reason.into()));
        }
        checks::fits("weight", x, &weight, &[inputs, products / parts * parts])?;
        let bias = self.product.bias.as_ref().map(|bias| bias.val());
        checks::optional("bias", x, bias.as_ref(), &[products])?;
        if let Some(norm) = self.norm {
            checks::fits("gamma", x, &norm.gamma.val(), &[inputs])?;
        }
        Ok([rows, products / parts])
    }

    fn spec(&self, then: Then) -> FewRowsSpec {
        FewRowsSpec {
            epsilon: self.norm.map(|norm| norm.epsilon),
            then,
        }
    }

    fn gamma(&self) -> Maybe<Dispatch> {
        Maybe::from_option(self.norm.map(|norm| norm.gamma.val().into_dispatch()))
    }

    fn bias(&self) -> Maybe<Dispatch> {
        let bias = self.product.bias.as_ref();
        Maybe::from_option(bias.map(|bias| bias.val().into_dispatch()))
    }

    fn run(&self, x: Tensor<2>, added: Option<Tensor<2>>, then: Then) -> Result<Tensor<2>, Error> {
        let [rows, width] = self.checked(&x, 1)?;
        checks::optional("added", &x, added.as_ref(), &[rows, width])?;
        let y = <Dispatch as FewRowsOps>::few_rows(
            x.into_dispatch(),
            self.gamma(),
            self.product.weight.val().into_dispatch(),
            self.bias(),
            Maybe::from_option(added.map(Tensor::into_dispatch)),
            self.spec(then),
        );
        Ok(Tensor::from_dispatch(y))
    }

    /// `norm(x) W + b` of `x`, `[rows, K]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where [`takes_few_rows`] says no; shapes and dtypes that do not fit.
    pub fn product(&self, x: Tensor<2>) -> Result<Tensor<2>, Error> {
        self.run(x, None, Then::Nothing)
    }

    /// GELU of it.
    ///
    /// # Errors
    /// As [`product`](Self::product).
    pub fn gelu(&self, x: Tensor<2>) -> Result<Tensor<2>, Error> {
        self.run(x, None, Then::Gelu)
    }

    /// The sum of it and other rows, `[rows, N]`.
    ///
    /// # Errors
    /// As [`product`](Self::product).
    pub fn add(&self, x: Tensor<2>, rows: Tensor<2>) -> Result<Tensor<2>, Error> {
        self.run(x, Some(rows), Then::Add)
    }

    /// A step of a gated scan from the state `[rows, K]`, with the product as the gate's inputs: `x + h` and `h`. The next state
    /// takes the memory of the state where no other tensor shares it.
    ///
    /// # Errors
    /// As [`product`](Self::product).
    pub fn step(
        &self,
        x: Tensor<2>,
        state: Tensor<2>,
        gate: Gate,
    ) -> Result<(Tensor<2>, Tensor<2>), Error> {
        let [rows, width] = self.checked(&x, gate.inputs())?;
        checks::fits("x", &state, &x, &[rows, width])?;
        checks::fits("state", &x, &state, &[rows, width])?;
        let (y, state) = <Dispatch as FewRowsOps>::few_rows_step(
            x.into_dispatch(),
            self.gamma(),
            self.product.weight.val().into_dispatch(),
            self.bias(),
            state.into_dispatch(),
            self.spec(Then::Step(gate)),
        );
        Ok((Tensor::from_dispatch(y), Tensor::from_dispatch(state)))
    }
}

#[cfg(feature = "cube")]
mod fused {
    //! The shape of the output, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    pub(super) fn product(x: &TensorSpec, weight: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([x.shape[0], weight.shape[1]]), x.dtype)
    }
}

/// The products on a backend. Shapes, dtypes and the device have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait FewRowsOps: Backend {
    /// `[rows, N]`.
    #[fusion(meta = |x, _gamma, weight, _bias, _added, _spec| fused::product(x, weight))]
    fn few_rows(
        x: FloatTensor<Self>,
        #[extension_type] gamma: Maybe<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] added: Maybe<Self>,
        spec: FewRowsSpec,
    ) -> FloatTensor<Self>;

    /// `x + h` and `h`.
    #[fusion(meta = |x, _gamma, _weight, _bias, state, _spec| (x.clone(), state.clone()))]
    fn few_rows_step(
        x: FloatTensor<Self>,
        #[extension_type] gamma: Maybe<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        state: FloatTensor<Self>,
        spec: FewRowsSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}
