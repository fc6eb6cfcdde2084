//! A model's gradients as vectors.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use riverrun::training::Early;

/// The parameters that gradients were taken of, in the order of the model.
pub(super) struct Vectors(Vec<ParamId>);

impl Vectors {
    /// Takes gradients out, each as a vector, with `wide` in f32.
    pub fn take<M: Module>(
        model: &M,
        gradients: GradientsParams,
        wide: bool,
    ) -> (Self, Vec<Tensor<1>>) {
        let mut take = Take {
            gradients,
            wide,
            ids: Vec::new(),
            vectors: Vec::new(),
        };
        model.visit(&mut take);
        (Self(take.ids), take.vectors)
    }

    /// Vectors of zeros, as long as the gradients of all parameters.
    pub fn zeros<M: Module>(model: &M, dtype: FloatDType, device: &Device) -> Vec<Tensor<1>> {
        struct Zeros<'a>(Vec<Tensor<1>>, FloatDType, &'a Device);
        impl ModuleVisitor for Zeros<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let elements = param.lazy_shape().num_elements();
                let vector = Tensor::<1>::zeros([elements], self.2);
                self.0.push(vector.cast(self.1));
            }
        }
        let mut zeros = Zeros(Vec::new(), dtype, device);
        model.visit(&mut zeros);
        zeros.0
    }

    /// Puts them back in the shapes of their parameters, and adds the gradients that were summed early.
    pub fn put<M: Module>(
        self,
        model: &M,
        vectors: Vec<Tensor<1>>,
        early: Option<&Early>,
    ) -> GradientsParams {
        let mut put = Put {
            vectors: self.0.into_iter().zip(vectors).collect(),
            early,
            gradients: GradientsParams::new(),
        };
        model.visit(&mut put);
        put.gradients
    }
}

struct Take {
    gradients: GradientsParams,
    wide: bool,
    ids: Vec<ParamId>,
    vectors: Vec<Tensor<1>>,
}

impl ModuleVisitor for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let gradient = match self.wide {
                true => gradient.cast(FloatDType::F32),
                false => gradient,
            };
            let elements: usize = gradient.dims().iter().product();
            self.ids.push(param.id);
            self.vectors.push(gradient.reshape([elements]));
        }
    }
}

struct Put<'a> {
    vectors: HashMap<ParamId, Tensor<1>>,
    early: Option<&'a Early>,
    gradients: GradientsParams,
}

impl ModuleVisitor for Put<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let vector = self.vectors.remove(&param.id);
        let vector = vector.map(|vector| vector.reshape(param.lazy_shape()));
        let early = self.early.and_then(|early| early.take(param.val()));
        let early = early.map(Tensor::inner);
        if let Some(gradient) = vector.into_iter().chain(early).reduce(|a, b| a + b) {
            self.gradients.register::<D>(param.id, gradient);
        }
    }
}
