//! The last updates of a model's weights, on its device.
//!
//! All weights lie in one vector, those of a layer group side by side, so that a group is a range, and its inner products one
//! product of a small matrix with its transpose. Predictions are combinations of these vectors: no weight goes through
//! the host.

use std::collections::{HashMap, VecDeque};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

use super::observation::{KEPT, WINDOWS};

/// The layer groups of a model, found from its tree of modules.
///
/// A group is the parameters with one path when indices of repeated blocks and the parameter's own name are left out: the
/// input projections of all blocks are one group, their norms another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// Parameters in the order of the vector: id, elements.
    order: Vec<(ParamId, usize)>,
    /// Start of each group in the vector, and its end.
    ranges: Vec<(usize, usize)>,
}

impl Groups {
    /// The groups of a model's float parameters, in the order of their first appearance.
    pub fn of<M: Module>(model: &M) -> Self {
        #[derive(Default)]
        struct Collect {
            path: Vec<String>,
            found: Vec<(String, ParamId, usize)>,
        }
        impl ModuleVisitor for Collect {
            fn enter_module(&mut self, name: &str, _container: &str) {
                self.path.push(name.to_owned());
            }
            fn exit_module(&mut self, _name: &str, _container: &str) {
                self.path.pop();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let is_index = |part: &&String| part.parse::<usize>().is_ok();
                let own = self.path.len().saturating_sub(1);
                let path = self.path[..own].iter().filter(|part| !is_index(part));
                let name = path.map(String::as_str).collect::<Vec<_>>().join(".");
                let name = if name.is_empty() {
                    "model".to_owned()
                } else {
                    name
                };
                self.found
                    .push((name, param.id, param.lazy_shape().num_elements()));
            }
        }
        let mut collect = Collect::default();
        model.visit(&mut collect);
        let mut names: Vec<String> = Vec::new();
        for (name, ..) in &collect.found {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let (mut order, mut ranges, mut start) = (Vec::new(), Vec::new(), 0);
        for name in &names {
            let first = start;
            for (_, id, size) in collect.found.iter().filter(|(of, ..)| of == name) {
                order.push((*id, *size));
                start += size;
            }
            ranges.push((first, start));
        }
        Self { order, ranges }
    }

    /// The number of groups.
    #[cfg(feature = "check")]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// All weights of a model in one vector of f32, a copy of its own, without autodiff.
    pub fn vector<M: Module>(&self, model: &M) -> Tensor<1> {
        struct Take(HashMap<ParamId, Tensor<1>>);
        impl ModuleVisitor for Take {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = plain(param.val()).flatten(0, D - 1);
                self.0.insert(param.id, value.cast(FloatDType::F32));
            }
        }
        let mut take = Take(Default::default());
        model.visit(&mut take);
        let mut part = |(id, _): &(ParamId, usize)| take.0.remove(id).expect("the model's own");
        // A single parameter would not be copied by being joined.
        Tensor::cat(self.order.iter().map(&mut part).collect(), 0).mul_scalar(1.0)
    }

    /// The model with `change` added to its weights.
    pub fn add<M: Module>(&self, model: M, change: &Tensor<1>) -> M {
        self.map(model, change, true)
    }

    /// The model with these weights.
    pub fn put<M: Module>(&self, model: M, weights: &Tensor<1>) -> M {
        self.map(model, weights, false)
    }

    fn map<M: Module>(&self, model: M, vector: &Tensor<1>, add: bool) -> M {
        let mut starts = HashMap::new();
        let mut start = 0;
        for (id, size) in &self.order {
            starts.insert(*id, (start, *size));
            start += size;
        }
        model.map(&mut Change {
            starts,
            vector,
            add,
        })
    }
}

/// Adds a part of a vector to each parameter, or puts it in its place.
struct Change<'a> {
    starts: HashMap<ParamId, (usize, usize)>,
    vector: &'a Tensor<1>,
    add: bool,
}

impl ModuleMapper for Change<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((start, size)) = self.starts.get(&param.id).copied() else {
            return param;
        };
        let part = self.vector.clone().narrow(0, start, size);
        param.map(|value| {
            let (autodiff, leaf) = (value.is_autodiff(), value.is_require_grad());
            let part = part.reshape(value.dims()).cast(value.dtype());
            let changed = match self.add {
                true => plain(value) + part,
                // A copy: the vector's own memory must not be updated with the parameter.
                false => part.mul_scalar(1.0),
            };
            match autodiff {
                true => Tensor::from_inner(changed).set_require_grad(leaf),
                false => changed,
            }
        })
    }
}

/// A tensor without autodiff.
fn plain<const D: usize>(value: Tensor<D>) -> Tensor<D> {
    match value.is_autodiff() {
        true => value.inner(),
        false => value,
    }
}

/// The last window updates of a model, and its weights at the end of the last window.
#[derive(Debug, Clone)]
pub struct Trail {
    base: Tensor<1>,
    updates: VecDeque<Tensor<1>>,
}

impl Trail {
    /// Starts from these weights, without updates.
    pub fn new(weights: Tensor<1>) -> Self {
        Self {
            base: weights,
            updates: VecDeque::with_capacity(KEPT),
        }
    }

    /// The update of a window that ends at these weights.
    pub fn update(&self, weights: &Tensor<1>) -> Tensor<1> {
        weights.clone() - self.base.clone()
    }

    /// The inner products of each group's update with those before it and, last, with itself, [`KEPT`] numbers a group, in
    /// f32 on the device; 0 for updates that are not there.
    pub fn products(&self, groups: &Groups, update: &Tensor<1>) -> Tensor<1> {
        let before = self.updates.iter().rev().take(WINDOWS).rev();
        let missing = KEPT - 1 - before.len();
        let device = update.device();
        // Without a matmul, whose inputs a device may round.
        let products: Vec<Tensor<1>> = before
            .chain([update])
            .map(|other| other.clone() * update.clone())
            .collect();
        let rows = groups.ranges.iter().map(|&(start, end)| {
            let sums = products
                .iter()
                .map(|product| product.clone().narrow(0, start, end - start).sum());
            let zeros = (missing > 0).then(|| Tensor::zeros([missing], &device));
            Tensor::cat(zeros.into_iter().chain(sums).collect(), 0)
        });
        Tensor::cat(rows.collect(), 0)
    }

    /// Ends a window at these weights, with this update.
    pub fn end_window(&mut self, weights: Tensor<1>, update: Tensor<1>) {
        if self.updates.len() == KEPT {
            self.updates.pop_front();
        }
        self.updates.push_back(update);
        self.base = weights;
    }

    /// Starts the next window from other weights; the updates stay.
    pub fn start_from(&mut self, weights: Tensor<1>) {
        self.base = weights;
    }

    /// `Σ_i c_i U_i` of the last updates, with the coefficients of each group.
    ///
    /// # Panics
    /// If there are fewer than [`WINDOWS`] updates, or not as many coefficients as groups.
    pub fn combine(&self, groups: &Groups, coefficients: &[[f64; WINDOWS]]) -> Tensor<1> {
        assert!(coefficients.len() == groups.ranges.len());
        let last = self.updates.len() - WINDOWS;
        let parts = groups.ranges.iter().zip(coefficients);
        let parts = parts.map(|(&(start, end), coefficients)| {
            let updates = self.updates.range(last..).zip(coefficients);
            let scaled = updates.map(|(update, coefficient)| {
                let part = update.clone().narrow(0, start, end - start);
                part.mul_scalar(*coefficient)
            });
            scaled
                .reduce(|sum, part| sum + part)
                .expect("there are updates")
        });
        Tensor::cat(parts.collect(), 0)
    }

    /// The updates, the oldest first.
    pub fn updates(&self) -> impl Iterator<Item = Tensor<1>> {
        self.updates.iter().cloned()
    }

    /// Puts the updates of a checkpoint in their place.
    pub fn set_updates(&mut self, updates: Vec<Tensor<1>>) {
        self.updates = updates.into();
    }
}
