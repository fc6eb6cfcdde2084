//! Low-rank adaptation: small factors learn beside weights that stay as they are.

use std::collections::{BTreeMap, HashSet};

use burn::config::Config;
use burn::module::{
    Initializer, Module, ModuleVisitor, Param, ParamId, Reparameterization, Reparameterizer,
};
use burn::tensor::Tensor;
use riverrun::Error;
use riverrun::internal::{Matrix, matrices};
use riverrun::ops::{self, LinearSpec};

/// Low-rank adaptation (LoRA) of a model: the weight `W` of every linear layer of its blocks becomes `W + (α / r) A B`, of which
/// the factors alone learn, `A` `[inputs, r]` and `B` `[r, outputs]`. All other parameters stay as they are.
///
/// The sum is taken before the product with the inputs, so every layer runs as it does without the factors, and
/// [`Module::materialize`] gives the plain model.
///
/// Source: Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models* (2021), section 4.1.
#[derive(Config, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoraConfig {
    /// The rank `r`.
    pub rank: usize,
    /// The factor `α`: the change is multiplied by `α / r`.
    pub alpha: f64,
}

impl LoraConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// A rank of 0; an `alpha` that is not a finite number above 0.
    pub fn check(&self) -> Result<(), Error> {
        if self.rank == 0 {
            return Err(Error::Unsupported("LoRA needs a rank of at least 1".into()));
        }
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(Error::Unsupported(format!(
                "LoRA needs a finite alpha above 0, found {}",
                self.alpha
            )));
        }
        Ok(())
    }

    /// The model with fresh factors: `A` is normal with a deviation of `1 / √inputs`, and `B` is 0, so that the model computes
    /// what it did before. All other parameters are frozen.
    pub fn adapt<M: Module>(&self, model: M) -> M {
        let adapter = Adapter {
            config: self,
            matrices: weights(&model),
        };
        model.apply_reparameterization(adapter)
    }

    /// The numbers in the factors, and those in the weights beside them.
    pub fn numbers<M: Module>(&self, model: &M) -> (u64, u64) {
        let matrices = weights(model).into_values();
        matrices.fold((0, 0), |(factors, weights), [inputs, outputs]| {
            let (inputs, outputs) = (inputs as u64, outputs as u64);
            (
                factors + self.rank as u64 * (inputs + outputs),
                weights + inputs * outputs,
            )
        })
    }
}

/// The factors beside a weight.
#[derive(Module, Debug)]
struct Factors {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
    scale: f64,
}

/// Burn's own adapter multiplies by Burn's matmul, which on a GPU is tuned for every shape.
impl Reparameterization for Factors {
    const NAME: &'static str = "lora";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let change = ops::linear(self.a.val(), self.b.val(), None, LinearSpec::default());
        let change = change.unwrap_or_else(Error::raise);
        let shape = base.shape();
        base + change.mul_scalar(self.scale).reshape(shape)
    }
}

struct Adapter<'a> {
    config: &'a LoraConfig,
    matrices: BTreeMap<String, [usize; 2]>,
}

impl Reparameterizer for Adapter<'_> {
    type Reparam = Factors;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Factors>) {
        let device = param.lazy_device();
        let factors = self.matrices.remove(path).map(|[inputs, outputs]| {
            let rank = self.config.rank;
            let normal = Initializer::Normal {
                mean: 0.0,
                std: (inputs as f64).sqrt().recip(),
            };
            Factors {
                a: normal.init([inputs, rank], &device),
                b: Initializer::Zeros.init([rank, outputs], &device),
                scale: self.config.alpha / rank as f64,
            }
        });
        (param.set_require_grad(false), factors)
    }
}

/// The weights of the linear layers of a model's blocks, by path, with their sizes.
fn weights<M: Module>(model: &M) -> BTreeMap<String, [usize; 2]> {
    let linear = |found: &Matrix| {
        found.container == "Struct:Linear" && found.path.iter().any(|name| name == "blocks")
    };
    let found = matrices(model).into_iter().filter(linear);
    found
        .map(|found| (found.path.join("."), found.sizes))
        .collect()
}

/// The parameters of a model's factors; `None` for a model without factors, of which all parameters learn.
pub fn adapted<M: Module>(model: &M) -> Option<HashSet<ParamId>> {
    #[derive(Default)]
    struct Find {
        inside: usize,
        found: HashSet<ParamId>,
    }
    impl ModuleVisitor for Find {
        fn enter_module(&mut self, _name: &str, container: &str) {
            self.inside += usize::from(container == "Reparameterization");
        }

        fn exit_module(&mut self, _name: &str, container: &str) {
            self.inside -= usize::from(container == "Reparameterization");
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.inside > 0 {
                self.found.insert(param.id);
            }
        }
    }
    let mut find = Find::default();
    model.visit(&mut find);
    Some(find.found).filter(|found| !found.is_empty())
}
