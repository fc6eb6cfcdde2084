//! The parameters of a module, or their gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use crate::common::numbers;

struct Collect<'a> {
    gradients: Option<&'a Gradients>,
    path: Vec<String>,
    found: Vec<(String, Vec<f64>)>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _kind: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = match self.gradients {
            Some(gradients) => numbers(param.val().grad(gradients).expect("a gradient")),
            None => numbers(param.val()),
        };
        self.found.push((self.path.join("."), values));
    }
}

/// The parameters of a module, or with `gradients` theirs, by the names that its fields have.
pub fn parameters(module: &impl Module, gradients: Option<&Gradients>) -> Vec<(String, Vec<f64>)> {
    let (path, found) = Default::default();
    let mut collect = Collect {
        gradients,
        path,
        found,
    };
    module.visit(&mut collect);
    collect.found
}
