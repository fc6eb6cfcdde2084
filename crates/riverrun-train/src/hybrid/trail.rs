//! The last updates of a model's weights, on its device.
//!
//! All weights lie in one vector, those of a layer group side by side, so that a group is a range. Predictions are
//! combinations of these vectors, added to the parameters by [`add_directions`]: no weight goes through the host.

use std::collections::{HashMap, VecDeque};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun::training::{FlatTensor, add_directions, from_flat, to_flat};

use super::observation::{KEPT, WINDOWS};

/// The layer groups of a model, found from its tree of modules.
///
/// A group is the parameters with one path when indices of repeated blocks and the parameter's own name are left out: the
/// input projections of all blocks are one group, their norms another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// The place of each parameter: its start in the vector, and its group.
    places: HashMap<ParamId, (usize, usize)>,
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
        let (mut places, mut ranges, mut start) = (HashMap::new(), Vec::new(), 0);
        for (group, name) in names.iter().enumerate() {
            let first = start;
            for (_, id, size) in collect.found.iter().filter(|(of, ..)| of == name) {
                places.insert(*id, (start, group));
                start += size;
            }
            ranges.push((first, start));
        }
        Self { places, ranges }
    }

    /// The number of groups.
    #[cfg(feature = "check")]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// All weights of a model in one vector of f32, a copy of its own, without autodiff.
    pub fn vector<M: Module>(&self, model: &M) -> Tensor<1> {
        struct Collect<'a> {
            groups: &'a Groups,
            found: Vec<FlatTensor>,
            device: Option<Device>,
        }
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = plain(param.val());
                self.device.get_or_insert_with(|| value.device());
                self.found.extend(self.groups.flat(param.id, value));
            }
        }
        let mut collect = Collect {
            groups: self,
            found: Vec::new(),
            device: None,
        };
        model.visit(&mut collect);
        let total = self.ranges.last().map_or(0, |&(_, end)| end);
        let device = collect.device.unwrap_or_default();
        to_flat(
            &collect.found,
            Tensor::empty([total], (&device, DType::F32)),
        )
        .unwrap_or_else(riverrun::Error::raise)
    }

    /// The model with the sum of directions, times the coefficients of each group, added to its weights. With `kept`, they
    /// stay in their memory.
    ///
    /// # Panics
    /// If there are not as many coefficients as groups.
    pub fn add<M: Module>(
        &self,
        model: M,
        directions: &[Tensor<1>],
        coefficients: &[[f64; WINDOWS]],
        kept: bool,
    ) -> M {
        assert!(coefficients.len() == self.ranges.len());
        self.change(model, kept, |tensors| {
            let Some(device) = directions.first().map(Tensor::device) else {
                return tensors;
            };
            let numbers: Vec<f32> = coefficients.iter().flatten().map(|&c| c as f32).collect();
            let shape = [coefficients.len(), WINDOWS];
            let numbers = Tensor::from_data(TensorData::new(numbers, shape), (&device, DType::F32));
            add_directions(tensors, directions, numbers).unwrap_or_else(riverrun::Error::raise)
        })
    }

    /// The model with these weights. With `kept`, they stay in their memory.
    pub fn put<M: Module>(&self, model: M, weights: &Tensor<1>, kept: bool) -> M {
        self.change(model, kept, |tensors| {
            from_flat(tensors, weights).unwrap_or_else(riverrun::Error::raise)
        })
    }

    fn flat<const D: usize>(&self, id: ParamId, value: Tensor<D>) -> Option<FlatTensor> {
        let (start, group) = *self.places.get(&id)?;
        let flat = FlatTensor::new(value, start, group);
        Some(flat.unwrap_or_else(|error| panic!("a weight: {error}")))
    }

    /// Changes all weights by one call. With one owner, they are changed in place: so they are taken out of the model, and put
    /// back.
    fn change<M: Module>(
        &self,
        model: M,
        kept: bool,
        change: impl FnOnce(Vec<FlatTensor>) -> Vec<FlatTensor>,
    ) -> M {
        let mut take = Take {
            groups: self,
            ids: Vec::new(),
            tensors: Vec::new(),
        };
        let model = model.map(&mut take);
        let mut tensors = take.tensors;
        if kept {
            tensors = tensors
                .into_iter()
                .map(FlatTensor::with_kept_memory)
                .collect();
        }
        let changed = change(tensors);
        model.map(&mut Put(take.ids.into_iter().zip(changed).collect()))
    }
}

/// Takes the weights out of a model.
struct Take<'a> {
    groups: &'a Groups,
    ids: Vec<ParamId>,
    tensors: Vec<FlatTensor>,
}

impl ModuleMapper for Take<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.groups.places.contains_key(&param.id) {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let (autodiff, leaf) = (tensor.is_autodiff(), tensor.is_require_grad());
        let tensor = plain(tensor);
        let nothing = Tensor::empty([1; D], &tensor.device());
        self.ids.push(id);
        self.tensors.extend(self.groups.flat(id, tensor));
        // The empty tensor keeps what autodiff knew of the weight.
        let nothing = match autodiff {
            true => Tensor::from_inner(nothing).set_require_grad(leaf),
            false => nothing,
        };
        Param::from_mapped_value(id, nothing, mapper)
    }
}

/// Puts changed weights back.
struct Put(HashMap<ParamId, FlatTensor>);

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(changed) = self.0.remove(&param.id) else {
            return param;
        };
        let (id, nothing, mapper) = param.consume();
        let changed = changed.into_tensor::<D>();
        let changed = match nothing.is_autodiff() {
            true => Tensor::from_inner(changed).set_require_grad(nothing.is_require_grad()),
            false => changed,
        };
        Param::from_mapped_value(id, changed, mapper)
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

    /// The last updates, which coefficients refer to.
    ///
    /// # Panics
    /// If there are fewer than [`WINDOWS`].
    pub fn directions(&self) -> Vec<Tensor<1>> {
        let last = self.updates.len() - WINDOWS;
        self.updates.range(last..).cloned().collect()
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
