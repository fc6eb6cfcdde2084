//! The number format of a run's arithmetic.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::DynState;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use riverrun::training::{overwrite, stays_wide};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The format in which a model computes while it trains.
///
/// The weights that the optimizer moves, its moments and the loss are f32 whatever the format; below
/// f32, each step computes on a rounded copy of the weights, in which those of
/// [decays](riverrun::training::stays_wide) are as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// IEEE half precision, with the loss scaled up during the backward pass: see [`LossScale`](crate::LossScale).
    F16,
    /// bfloat16.
    Bf16,
}

impl Precision {
    /// The format of a run that asks for none: bfloat16 on a GPU that has it, 32-bit floats elsewhere. Opens the device.
    pub fn of(device: &Device) -> Self {
        let gpu = !riverrun::device::is_cpu(device);
        match gpu && riverrun::device::supports(device, DType::BF16) {
            true => Self::Bf16,
            false => Self::F32,
        }
    }

    /// Burn's name for the format.
    pub fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::F16 => FloatDType::F16,
            Self::Bf16 => FloatDType::BF16,
        }
    }

    /// The model to compute with: the model itself, or a rounded copy whose parameters keep their ids.
    pub fn working_copy<M: Module>(self, model: &M) -> M {
        match self {
            Self::F32 => model.clone(),
            Self::F16 | Self::Bf16 => model.clone().map(&mut Round {
                dtype: self.dtype(),
                wide: 0,
            }),
        }
    }

    /// A rounded copy with the weights of `model`, in the memory where it is.
    pub(crate) fn overwritten<M: Module>(copy: M, model: &M) -> M {
        let mut weights = Collect(HashMap::new());
        model.visit(&mut weights);
        copy.map(&mut Overwrite(weights.0))
    }
}

/// Collects the parameters of a model, without autodiff.
struct Collect(HashMap<ParamId, DynState>);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let value = match value.is_autodiff() {
            true => value.inner(),
            false => value,
        };
        self.0.insert(param.id, DynState::create(value, D));
    }
}

/// Rounds collected parameters into the memory of those of another model.
struct Overwrite(HashMap<ParamId, DynState>);

impl ModuleMapper for Overwrite {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.remove(&param.id) else {
            return param;
        };
        let (id, tensor, mapper) = param.consume();
        let (autodiff, tracked) = (tensor.is_autodiff(), tensor.is_require_grad());
        let dtype = tensor.dtype();
        let tensor = if autodiff { tensor.inner() } else { tensor };
        let written = overwrite(tensor, value.downcast::<Tensor<D>>().cast(dtype))
            .unwrap_or_else(riverrun::Error::raise);
        let written = match autodiff {
            true => Tensor::from_inner(written).set_require_grad(tracked),
            false => written,
        };
        Param::from_mapped_value(id, written, mapper)
    }
}

/// Rounds every parameter that does not stay wide, and makes each a leaf of its own for the backward pass.
struct Round {
    dtype: FloatDType,
    /// The modules around the parameter that stay wide.
    wide: usize,
}

impl ModuleMapper for Round {
    fn enter_module(&mut self, _name: &str, container: &str) {
        self.wide += usize::from(stays_wide(container));
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.wide -= usize::from(stays_wide(container));
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tracked = tensor.is_require_grad();
        // A copy, whose memory is not that of the weight: an update writes to both.
        let round = |tensor: Tensor<D>| match self.wide {
            0 => tensor.cast(self.dtype),
            _ => tensor.mul_scalar(1.0),
        };
        let rounded = if tensor.is_autodiff() {
            Tensor::from_inner(round(tensor.inner())).set_require_grad(tracked)
        } else {
            round(tensor)
        };
        Param::from_mapped_value(id, rounded, mapper)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            _ => Err(Error::value("dtype", name, "one of f32, f16, bf16")),
        }
    }
}
