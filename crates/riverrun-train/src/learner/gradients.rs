//! The norms of gradients, by groups of parameters.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use super::LossScale;
use crate::Error;

/// Names of a path that identify a group: `blocks.0.cell` contains all parameters below it.
const DEPTH: usize = 3;

/// Norms of the gradients of one step, before clipping.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientNorms {
    /// The norm of all gradients together.
    pub total: f64,
    /// The norms of groups, by the path of the module that has the parameters, cut to three names.
    pub groups: BTreeMap<String, f64>,
}

/// The sums of squares of a step's gradients, on the device.
pub(super) struct Squares {
    groups: Vec<String>,
    /// One for each group, in f32.
    sums: Tensor<1>,
}

impl Squares {
    /// Sums up the gradients of a loss scaled by `scale`. `None` without gradients.
    pub fn of<M: Module>(
        model: &M,
        gradients: &GradientsParams,
        scale: &LossScale,
    ) -> Option<Self> {
        let mut sum = Sum {
            gradients,
            path: Vec::new(),
            sums: BTreeMap::new(),
        };
        model.visit(&mut sum);
        let (groups, sums): (Vec<_>, Vec<_>) = sum.sums.into_iter().unzip();
        (!sums.is_empty()).then(|| Self {
            groups,
            sums: scale.unscaled(Tensor::cat(sums, 0)),
        })
    }

    /// Reads the norms from the device.
    pub fn read(&self) -> Result<GradientNorms, Error> {
        let data = riverrun::device::read(self.sums.clone())?;
        let squares: Vec<f64> = data.iter::<f64>().collect();
        let names = self.groups.iter().cloned();
        Ok(GradientNorms {
            total: squares.iter().sum::<f64>().sqrt(),
            groups: names
                .zip(squares.iter().map(|square| square.sqrt()))
                .collect(),
        })
    }
}

struct Sum<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    sums: BTreeMap<String, Tensor<1>>,
}

impl ModuleVisitor for Sum<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else {
            return;
        };
        let gradient = gradient.cast(FloatDType::F32);
        let square = (gradient.clone() * gradient).sum();
        // The last name is the parameter's own.
        let module = &self.path[..self.path.len().saturating_sub(1).min(DEPTH)];
        let sum = match self.sums.remove(&module.join(".")) {
            Some(before) => before + square,
            None => square,
        };
        self.sums.insert(module.join("."), sum);
    }
}
