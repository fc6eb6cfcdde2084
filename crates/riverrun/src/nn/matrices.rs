//! The matrices of a model, found by the modules that hold them.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// A matrix among a model's parameters.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The names of the fields that lead to it.
    pub path: Vec<String>,
    /// The module that holds it, as a visitor of Burn enters its fields: `Struct:Linear`.
    pub container: String,
    /// Rows and columns.
    pub sizes: [usize; 2],
}

/// The matrices of a model. None is made that has not been read yet.
pub fn matrices<M: Module>(model: &M) -> Vec<Matrix> {
    #[derive(Default)]
    struct Find {
        path: Vec<String>,
        containers: Vec<String>,
        found: Vec<Matrix>,
    }
    impl ModuleVisitor for Find {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.push(name.into());
            self.containers.push(container.into());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
            self.containers.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let ([rows, columns], Some(container)) =
                (&param.lazy_shape()[..], self.containers.last())
            {
                self.found.push(Matrix {
                    path: self.path.clone(),
                    container: container.clone(),
                    sizes: [*rows, *columns],
                });
            }
        }
    }
    let mut find = Find::default();
    model.visit(&mut find);
    find.found
}
