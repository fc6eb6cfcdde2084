//! What the ensemble learns, and what its delta heads say.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor, TensorData};

use super::EnsembleConfig;
use super::file;
use super::lesson::{CLASSES, Lesson};
use super::net::Net;
use crate::{Error, Inputs, Objective};

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
            Some(path) => file::load(path, &self.0, device),
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
