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

/// The most numbers of all rows for which a step is faster than with the vendor's products, whose launches it saves: measured for models
/// of 1024 features.
const NUMBERS: usize = 4096;

/// Whether a step of a model should take the kernel for its rows, of `width` numbers of a dtype; on no CPU, and not under autodiff.
pub fn takes_few_rows(device: &Device, dtype: DType, [rows, width]: [usize; 2]) -> bool {
    rows * width <= NUMBERS && has_few_rows(device, dtype, rows)
}

/// Whether a device has the kernel for rows of a dtype; none has it under autodiff.
fn has_few_rows(device: &Device, dtype: DType, rows: usize) -> bool {
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
        if !has_few_rows(&x.device(), x.dtype(), rows) {
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

    /// The product and those of other matrices without a bias, after one norm: `[rows, N]` of each.
    ///
    /// # Errors
    /// As [`product`](Self::product).
    pub fn beside(&self, others: [&Linear; 2], x: Tensor<2>) -> Result<[Tensor<2>; 3], Error> {
        self.checked(&x, 1)?;
        for other in others {
            let other = FewRows {
                norm: None,
                product: other,
            };
            other.checked(&x, 1)?;
        }
        self.unbiased(&others)?;
        let [second, third] = others.map(|other| other.weight.val().into_dispatch());
        let (y, y2, y3) = <Dispatch as FewRowsOps>::few_rows_beside(
            x.into_dispatch(),
            self.gamma(),
            self.product.weight.val().into_dispatch(),
            second,
            third,
            self.spec(Then::Nothing),
        );
        Ok([y, y2, y3].map(Tensor::from_dispatch))
    }

    /// `SiLU(p) q` of this product `p` and that of another matrix of its shape, `q`; both without a bias.
    ///
    /// # Errors
    /// As [`product`](Self::product).
    pub fn gated(&self, up: &Linear, x: Tensor<2>) -> Result<Tensor<2>, Error> {
        self.checked(&x, 1)?;
        checks::fits("up", &x, &up.weight.val(), &self.product.weight.dims())?;
        self.unbiased(&[up])?;
        let y = <Dispatch as FewRowsOps>::few_rows_gated(
            x.into_dispatch(),
            self.gamma(),
            self.product.weight.val().into_dispatch(),
            up.weight.val().into_dispatch(),
            self.spec(Then::Gated),
        );
        Ok(Tensor::from_dispatch(y))
    }

    /// Refuses biases, which products beside each other do not have.
    fn unbiased(&self, others: &[&Linear]) -> Result<(), Error> {
        let mut all = others.iter().chain([&self.product]);
        match all.any(|product| product.bias.is_some()) {
            true => Err(Error::Unsupported("biases of several products".into())),
            false => Ok(()),
        }
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
    /// [`Error::Unsupported`] where a device has no such kernel; shapes and dtypes that do not fit.
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

    /// `[rows, N]` of each matrix.
    #[fusion(meta = |x, _gamma, weight, second, third, _spec| (fused::product(x, weight), fused::product(x, second), fused::product(x, third)))]
    fn few_rows_beside(
        x: FloatTensor<Self>,
        #[extension_type] gamma: Maybe<Self>,
        weight: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        spec: FewRowsSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `[rows, N]`.
    #[fusion(meta = |x, _gamma, gate, _up, _spec| fused::product(x, gate))]
    fn few_rows_gated(
        x: FloatTensor<Self>,
        #[extension_type] gamma: Maybe<Self>,
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
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
