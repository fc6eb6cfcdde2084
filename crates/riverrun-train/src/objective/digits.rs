//! Classification of digits: by convolution, row by row, or pixel by pixel.

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use riverrun::Sequence;
use riverrun::nn::{Gru, GruConfig, MinGru, MinGruConfig, Recurrent};
use serde::{Deserialize, Serialize};

use super::{Inputs, Objective, Score, count_correct, cross_entropy};
use crate::tasks::{Images, PIXELS, SIDE};

/// Classes.
const DIGITS: usize = 10;
/// Hidden units of the recurrent networks.
const HIDDEN: usize = 128;

/// A network that reads images of digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DigitsNet {
    /// A convolution of 5 × 5 to 16 channels, ReLU, a maximum over 2 × 2, and a linear layer: 23,466 parameters.
    #[default]
    Conv,
    /// Two of these convolutions, to 16 and to 32 channels, each with ReLU and the maximum: 18,378 parameters.
    Conv2,
    /// A GRU over the 28 rows.
    Rows,
    /// A minGRU over the 784 pixels in a fixed random order.
    Pixels,
}

impl DigitsNet {
    /// All networks.
    pub const ALL: [DigitsNet; 4] = [
        DigitsNet::Conv,
        DigitsNet::Conv2,
        DigitsNet::Rows,
        DigitsNet::Pixels,
    ];

    /// Whether images go through convolutions, whose channels can be normalised.
    pub fn convolves(self) -> bool {
        matches!(self, DigitsNet::Conv | DigitsNet::Conv2)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DigitsNet::Conv => "conv",
            DigitsNet::Conv2 => "conv2",
            DigitsNet::Rows => "rows",
            DigitsNet::Pixels => "pixels",
        }
    }
}

impl fmt::Display for DigitsNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DigitsNet {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let find = |net: &DigitsNet| net.name() == name;
        Self::ALL
            .into_iter()
            .find(find)
            .ok_or_else(|| format!("unknown network `{name}`; one of: conv, conv2, rows, pixels"))
    }
}

/// The network of a run: one of the three parts is present.
#[derive(Module, Debug)]
pub struct DigitsModel {
    conv: Option<ConvNet>,
    rows: Option<RowsNet>,
    pixels: Option<PixelsNet>,
}

#[derive(Module, Debug)]
struct ConvNet {
    conv: Conv2d,
    /// Between the convolution and the ReLU.
    norm: Option<BatchNorm>,
    pool: MaxPool2d,
    second: Option<ConvLayer>,
    out: Linear,
}

#[derive(Module, Debug)]
struct ConvLayer {
    conv: Conv2d,
    norm: Option<BatchNorm>,
}

#[derive(Module, Debug)]
struct RowsNet {
    gru: Gru,
    out: Linear,
}

#[derive(Module, Debug)]
struct PixelsNet {
    first: MinGru,
    second: MinGru,
    out: Linear,
}

impl DigitsModel {
    fn new(net: DigitsNet, batch_norm: bool, device: &Device) -> Self {
        let out = |inputs| LinearConfig::new(inputs, DIGITS).init(device);
        let side = (SIDE - 4) / 2;
        let conv = |from, to| Conv2dConfig::new([from, to], [5, 5]).init(device);
        let norm = |channels| batch_norm.then(|| BatchNormConfig::new(channels).init(device));
        let two = net == DigitsNet::Conv2;
        Self {
            conv: net.convolves().then(|| ConvNet {
                conv: conv(1, 16),
                norm: norm(16),
                pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
                second: two.then(|| ConvLayer {
                    conv: conv(16, 32),
                    norm: norm(32),
                }),
                out: out(match two {
                    false => 16 * side * side,
                    true => 32 * (side - 4) / 2 * ((side - 4) / 2),
                }),
            }),
            rows: (net == DigitsNet::Rows).then(|| RowsNet {
                gru: GruConfig::new(SIDE, HIDDEN).init(device),
                out: out(HIDDEN),
            }),
            pixels: (net == DigitsNet::Pixels).then(|| PixelsNet {
                first: MinGruConfig::new(1, HIDDEN).init(device),
                second: MinGruConfig::new(HIDDEN, HIDDEN).init(device),
                out: out(HIDDEN),
            }),
        }
    }

    /// Logits `[rows, 10]` of images `[rows, 784]`.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let rows = images.dims()[0];
        if let Some(net) = &self.conv {
            let layer = |conv: &Conv2d, norm: &Option<BatchNorm>, x| {
                let x = conv.forward(x);
                let x = match norm {
                    Some(norm) => norm.forward(x),
                    None => x,
                };
                net.pool.forward(relu(x))
            };
            let images = images.reshape([rows, 1, SIDE, SIDE]);
            let mut x = layer(&net.conv, &net.norm, images);
            if let Some(second) = &net.second {
                x = layer(&second.conv, &second.norm, x);
            }
            return net.out.forward(x.flatten(1, 3));
        }
        if let Some(net) = &self.rows {
            let (y, _) = net
                .gru
                .run(images.reshape([rows, SIDE, SIDE]), Sequence::new());
            return net.out.forward(last(y));
        }
        let net = self.pixels.as_ref().expect("a model has one of its parts");
        let order = order(&images.device());
        let x = images.select(1, order).unsqueeze_dim(2);
        let (x, _) = net.first.run(x, Sequence::new());
        let (x, _) = net.second.run(x, Sequence::new());
        net.out.forward(last(x))
    }
}

/// The last step of `[B, T, D]`.
fn last(y: Tensor<3>) -> Tensor<2> {
    let steps = y.dims()[1];
    y.narrow(1, steps - 1, 1).squeeze_dim(1)
}

/// The order of the pixels: a permutation that all runs share.
fn order(device: &Device) -> Tensor<1, Int> {
    let mut order: Vec<i32> = (0..PIXELS as i32).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(0));
    Tensor::from_data(TensorData::new(order, [PIXELS]), device)
}

/// Learns digits by cross-entropy.
#[derive(Debug, Clone, Copy)]
pub struct DigitsObjective {
    net: DigitsNet,
    batch_norm: bool,
    /// Images of a batch.
    images: usize,
}

impl DigitsObjective {
    /// An objective with a model of this kind and batches of `images`. `batch_norm` normalises the channels of convolutions over
    /// each batch: Ioffe & Szegedy, *Batch Normalization* (2015), algorithms 1 and 2.
    pub fn new(net: DigitsNet, batch_norm: bool, images: usize) -> Self {
        Self {
            net,
            batch_norm,
            images,
        }
    }
}

impl DigitsObjective {
    fn logits(&self, model: &DigitsModel, inputs: &Inputs) -> (Tensor<3>, Tensor<2, Int>) {
        let digits = inputs.int::<1>(1);
        let counted = digits.dims()[0];
        let logits = model.forward(inputs.float::<2>(0)).narrow(0, 0, counted);
        (logits.unsqueeze_dim(0), digits.unsqueeze_dim(0))
    }
}

impl Objective for DigitsObjective {
    type Model = DigitsModel;
    type Batch = Images;

    fn init(&self, device: &Device) -> DigitsModel {
        DigitsModel::new(self.net, self.batch_norm, device)
    }

    fn tensors(&self, images: &Images) -> Vec<TensorData> {
        let rows = images.digits.len();
        vec![
            TensorData::new(images.pixels.clone(), [rows, PIXELS]),
            TensorData::new(images.digits[..images.counted].to_vec(), [images.counted]),
        ]
    }

    fn loss(&self, model: &DigitsModel, inputs: &Inputs) -> Tensor<1> {
        let (logits, digits) = self.logits(model, inputs);
        cross_entropy(logits, digits)
    }

    fn score(&self, model: &DigitsModel, inputs: &Inputs) -> Score {
        let (logits, digits) = self.logits(model, inputs);
        Score {
            loss: cross_entropy(logits.clone(), digits.clone()),
            correct: Some(count_correct(logits, digits)),
        }
    }

    fn scored(&self, images: &Images) -> usize {
        images.counted
    }

    fn items(&self, images: &Images) -> usize {
        images.counted
    }

    fn draws(&self) -> bool {
        false
    }

    fn keeps_statistics(&self) -> bool {
        self.batch_norm
    }

    fn bytes(&self) -> Option<u128> {
        // Of each image its pixels, and what the first layer makes of them.
        let first = match self.net {
            DigitsNet::Conv | DigitsNet::Conv2 => 16 * (SIDE - 4) * (SIDE - 4),
            DigitsNet::Rows => SIDE * HIDDEN,
            DigitsNet::Pixels => PIXELS * HIDDEN,
        };
        Some(4 * (PIXELS + first) as u128 * self.images as u128)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn networks_have_their_shapes() {
        let device = Device::flex();
        for (net, parameters) in [
            (DigitsNet::Conv, 23_466),
            (DigitsNet::Conv2, 18_378),
            (
                DigitsNet::Rows,
                3 * HIDDEN * (SIDE + HIDDEN + 2) + (HIDDEN + 1) * DIGITS,
            ),
        ] {
            assert_eq!(
                DigitsModel::new(net, false, &device).num_params(),
                parameters,
                "{net}"
            );
            assert_eq!(net.name().parse(), Ok(net));
        }
        for net in DigitsNet::ALL {
            let model = DigitsModel::new(net, net.convolves(), &device);
            let logits = model.forward(Tensor::zeros([3, PIXELS], &device));
            assert_eq!(logits.dims(), [3, DIGITS], "{net}");
        }
    }
}
