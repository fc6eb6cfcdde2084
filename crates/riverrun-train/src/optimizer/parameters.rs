//! Parameters taken out of modules for an update, and put back after it.

use std::collections::HashMap;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::optim::{AdamWState, AdaptiveMomentumState, DynState, GradientsParams};
use burn::tensor::{Tensor, TensorData};
use riverrun::training::AdamwTensors;

/// The identity of a parameter during an update.
pub(super) struct Slot {
    pub id: ParamId,
    /// Whether autodiff follows it.
    tracked: bool,
    /// The steps it will have taken.
    pub time: usize,
}

/// Takes out the parameters that have a gradient, with their moments.
pub(super) struct Take<'a> {
    pub states: &'a mut HashMap<ParamId, DynState>,
    /// Steps that the states have not counted.
    pub replayed: usize,
    pub gradients: GradientsParams,
    /// Rounded copies of parameters; those that have no gradient stay here.
    pub rounded: HashMap<ParamId, DynState>,
    pub taken: Vec<(Slot, AdamwTensors)>,
}

impl ModuleMapper for Take<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return param;
        };
        let (id, tensor, mapper) = param.consume();
        let tracked = tensor.is_require_grad();
        let tensor = tensor.inner();
        let nothing = Tensor::empty([1; D], &tensor.device());
        let state = self.states.remove(&id);
        let (moments, time) = match state.map(DynState::downcast::<AdamWState<D>>) {
            Some(AdamWState { momentum }) => (
                [momentum.moment_1, momentum.moment_2],
                momentum.time + self.replayed + 1,
            ),
            None => ([zeros(&tensor), zeros(&tensor)], 1),
        };
        let rounded = self.rounded.remove(&id);
        let tensors = AdamwTensors::new(tensor, gradient, moments, D >= 2)
            .and_then(|tensors| match rounded {
                Some(rounded) => tensors.with_rounded(rounded.downcast::<Tensor<D>>()),
                None => Ok(tensors),
            })
            .unwrap_or_else(|error| panic!("an update of a parameter: {error}"));
        self.taken.push((Slot { id, tracked, time }, tensors));
        Param::from_mapped_value(id, nothing, mapper)
    }
}

/// Elements whose zeros are sent to the device: that takes less time than compiling the kernel that would write them there,
/// of which there is one for each rank and size of a launch.
const SENT: usize = 1 << 22;

/// Zeros in the shape of a parameter.
fn zeros<const D: usize>(like: &Tensor<D>) -> Tensor<D> {
    let dims = like.dims();
    let elements: usize = dims.iter().product();
    if elements > SENT {
        return like.zeros_like();
    }
    let dtype = like.dtype();
    let data = TensorData::zeros::<f32, _>([elements]).convert_dtype(dtype);
    Tensor::<1>::from_data(data, (&like.device(), dtype)).reshape(dims)
}

/// Puts updated parameters back.
pub(super) struct Put<'a> {
    pub states: &'a mut HashMap<ParamId, DynState>,
    pub updated: HashMap<ParamId, (Slot, AdamwTensors)>,
    /// The place of their rounded copies.
    pub rounded: &'a mut HashMap<ParamId, DynState>,
}

impl ModuleMapper for Put<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((place, tensors)) = self.updated.remove(&param.id) else {
            return param;
        };
        let (id, _, mapper) = param.consume();
        let (tensor, [first, second], rounded) = tensors.into_tensors::<D>();
        let momentum = AdaptiveMomentumState::new(place.time, first, second);
        self.states
            .insert(id, DynState::create(AdamWState::new(momentum), D));
        if let Some(rounded) = rounded {
            self.rounded.insert(id, DynState::create(rounded, D));
        }
        let tensor = Tensor::from_inner(tensor).set_require_grad(place.tracked);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Takes every parameter out of a rounded copy of a model.
#[derive(Default)]
pub(super) struct TakeRounded {
    pub taken: HashMap<ParamId, DynState>,
}

impl ModuleMapper for TakeRounded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tracked = tensor.is_require_grad();
        let tensor = tensor.inner();
        let nothing = Tensor::empty([1; D], &tensor.device());
        self.taken.insert(id, DynState::create(tensor, D));
        let nothing = Tensor::from_inner(nothing).set_require_grad(tracked);
        Param::from_mapped_value(id, nothing, mapper)
    }
}

/// Puts rounded parameters back, each a leaf of its own for the next backward pass.
pub(super) struct PutRounded {
    pub updated: HashMap<ParamId, DynState>,
}

impl ModuleMapper for PutRounded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(updated) = self.updated.remove(&param.id) else {
            return param;
        };
        let (id, nothing, mapper) = param.consume();
        let tensor = Tensor::from_inner(updated.downcast::<Tensor<D>>())
            .set_require_grad(nothing.is_require_grad());
        Param::from_mapped_value(id, tensor, mapper)
    }
}
