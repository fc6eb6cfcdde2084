//! The recurrent networks of the ensemble, and their loss.

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor, TensorData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riverrun::ops::{Decode, Ensemble, Rollout, rollout};
use riverrun_kernels::rollout::HEADS;

use super::EnsembleConfig;
use super::lesson::{CLASSES, Lesson};
use crate::hybrid::FEATURES;
use crate::{Error, Inputs, Objective};

/// The weights of all members, in the layout of [`Ensemble`].
#[derive(Module, Debug)]
pub(crate) struct Net {
    /// `[E, 3H, 64]`.
    pub w: Param<Tensor<3>>,
    /// `[E, 3H, H]`.
    pub u: Param<Tensor<3>>,
    /// `[E, 3H]`.
    pub bias: Param<Tensor<2>>,
    /// `[11, H + S]`: all members share it.
    pub heads: Param<Tensor<2>>,
}

impl Net {
    /// Random weights: each member from numbers of its own, so that they differ.
    fn random(config: &EnsembleConfig, device: &Device) -> Self {
        let (members, hidden) = (config.members, config.hidden);
        let mut random = ChaCha8Rng::seed_from_u64(0x7273_736d);
        let mut draw = |count: usize, bound: f32| -> Vec<f32> {
            let one = |_| random.random_range(-1.0f32..1.0) * bound;
            (0..count).map(one).collect()
        };
        let bound = 1.0 / (hidden as f32).sqrt();
        let numbers = [
            draw(members * 3 * hidden * FEATURES, bound),
            draw(members * 3 * hidden * hidden, bound),
            vec![0.0; members * 3 * hidden],
            draw(HEADS * config.combined(), 0.01),
        ];
        Self::new(config, numbers, device)
    }

    /// From the numbers of each tensor.
    ///
    /// # Panics
    /// If there are more or fewer than the sizes ask for.
    pub fn new(config: &EnsembleConfig, numbers: [Vec<f32>; 4], device: &Device) -> Self {
        let (members, hidden) = (config.members, config.hidden);
        let [w, u, bias, heads] = numbers;
        fn param<const D: usize>(
            data: Vec<f32>,
            shape: [usize; D],
            device: &Device,
        ) -> Param<Tensor<D>> {
            Param::from_tensor(Tensor::from_data(TensorData::new(data, shape), device))
        }
        Self {
            w: param(w, [members, 3 * hidden, FEATURES], device),
            u: param(u, [members, 3 * hidden, hidden], device),
            bias: param(bias, [members, 3 * hidden], device),
            heads: param(heads, [HEADS, config.combined()], device),
        }
    }

    /// Forecasts the loss, in units of the loss now, window by window. Every member begins from the tanh of the features,
    /// repeated for its hidden units.
    ///
    /// # Errors
    /// As [`rollout`].
    pub fn forecast(&self, features: Tensor<1>, windows: usize) -> Result<Rollout, Error> {
        let ensemble = Ensemble::new(
            self.w.val(),
            self.u.val(),
            self.bias.val(),
            self.heads.val(),
        );
        let [members, _, hidden] = ensemble.u.dims();
        let start = features.clone().tanh().reshape([1, FEATURES]);
        let start = start.repeat_dim(1, hidden.div_ceil(FEATURES));
        let start = start.narrow(1, 0, hidden).repeat_dim(0, members);
        let now = features.ones_like().narrow(0, 0, 1);
        let found = rollout(&ensemble, start, features, now, windows, Decode::LogLoss)?;
        Ok(found)
    }
}

/// The lessons of an ensemble.
///
/// The delta head's outputs `y` mean: `m_l = 2 (1 + tanh y_0) σ(y_{2+l})` is the multiple of the mean update that the last
/// window adds in class `l` of the layer groups, and `σ(y_1)` is how likely the loss falls in it. The loss of a lesson is
/// `Σ_k f_k (ln L_k - ln l_k)² / 2 + Σ_l (m_l - n_l)² / 16 + (σ(y_1) - fell)² / 2`, of the losses `L` forecast and `l` found with
/// the weights `f` of the lesson, and of the multiples `n` found; the mean over the members.
pub(crate) struct Lessons(pub EnsembleConfig);

impl Objective for Lessons {
    type Model = Net;
    type Batch = Lesson;

    fn init(&self, device: &Device) -> Net {
        Net::random(&self.0, device)
    }

    fn start(&self, device: &Device) -> Result<Net, Error> {
        match &self.0.start {
            None => Ok(self.init(device)),
            Some(path) => super::file::load(path, &self.0, device),
        }
    }

    fn tensors(&self, lesson: &Lesson) -> Vec<TensorData> {
        let mut outputs = vec![f32::from(lesson.fell)];
        outputs.extend(lesson.multiples);
        [
            lesson.features.clone(),
            lesson.losses.clone(),
            lesson.weights(),
            outputs,
        ]
        .map(|numbers| {
            let count = numbers.len();
            TensorData::new(numbers, [count])
        })
        .into()
    }

    fn loss(&self, net: &Net, inputs: &Inputs) -> Tensor<1> {
        let found = inputs.float::<1>(1);
        let windows = found.dims()[0];
        let forecast = net.forecast(inputs.float::<1>(0), windows);
        let forecast = forecast.unwrap_or_else(|error| panic!("the shapes fit: {error}"));
        let errors = forecast.trajectory.narrow(1, 1, windows).log() - found.unsqueeze();
        let weights = inputs.float::<1>(2).unsqueeze::<2>();
        let losses = (errors.clone() * errors * weights).sum_dim(1).mean();
        let delta = forecast.delta;
        let whole = (delta.clone().narrow(1, 0, 1).tanh() + 1.0) * 2.0;
        let multiples = sigmoid(delta.clone().narrow(1, 2, CLASSES)) * whole;
        let fell = sigmoid(delta.narrow(1, 1, 1));
        let outputs = inputs.float::<1>(3).unsqueeze::<2>();
        let off = |found: Tensor<2>, start: usize| {
            let width = found.dims()[1];
            let off = found - outputs.clone().narrow(1, start, width);
            (off.clone() * off).mean()
        };
        (losses + off(multiples, 1) + off(fell, 0)) * 0.5
    }

    fn draws(&self) -> bool {
        false
    }
}

/// The multiples of each class of layer groups that the delta heads of all members say, and how likely the loss falls: means over
/// the members.
pub(super) fn read_deltas<'a>(
    members: impl ExactSizeIterator<Item = &'a [f32]>,
) -> ([f64; CLASSES], f64) {
    let sigmoid = |x: f32| 1.0 / (1.0 + f64::from(-x).exp());
    let count = members.len().max(1) as f64;
    let (mut multiples, mut falls) = ([0.0; CLASSES], 0.0);
    for y in members {
        let whole = 2.0 * (1.0 + f64::from(y[0]).tanh());
        for (sum, y) in multiples.iter_mut().zip(&y[2..]) {
            *sum += whole * sigmoid(*y) / count;
        }
        falls += sigmoid(y[1]) / count;
    }
    (multiples, falls)
}
