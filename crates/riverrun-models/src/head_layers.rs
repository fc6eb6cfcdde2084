//! Layers whose state is divided among heads, chosen by name. To add one, put a line into the table.

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use riverrun::nn::{
    DeltaNet, DeltaNetConfig, GatedDeltaNet, GatedDeltaNetConfig, Gla, GlaConfig, Hgrn2,
    Hgrn2Config, Kda, KdaConfig, MLstm, MLstmConfig, Mamba2, Mamba2Config, Recurrent, RetNet,
    RetNetConfig, Rwkv6, Rwkv6Config, Rwkv7, Rwkv7Config, SLstm, SLstmConfig,
};
use riverrun::{Error, Sequence};
use serde::{Deserialize, Serialize};

use super::RecurrentState;
use super::forward::of_kind;
use super::size::{divides, invalid};

/// Channels of a head at most, where the number of heads is not given.
const CHANNELS: usize = 64;

/// The sizes of a layer with heads, from `width` features to as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadSizes {
    /// Features of input and output.
    pub width: usize,
    /// Heads, a divisor of the width.
    pub heads: usize,
    /// Channels of a head's query or key.
    pub key: usize,
    /// Channels of a head's value.
    pub value: usize,
}

impl HeadSizes {
    /// With `width / heads` channels of a key and `expansion` times as many of a value; without a number of heads, the fewest with
    /// at most 64 channels of a value.
    pub fn new(width: usize, heads: Option<usize>, expansion: usize) -> Self {
        let least = width.saturating_mul(expansion).div_ceil(CHANNELS).max(1);
        // Widths that no machine has memory for are refused later, by their size.
        let mut near = (least..=width).take(4096);
        let chosen = || near.find(|heads| width.is_multiple_of(*heads));
        let heads = heads.or_else(chosen).unwrap_or(width);
        let key = width / heads.max(1);
        Self {
            width,
            heads,
            key,
            value: key.saturating_mul(expansion),
        }
    }

    /// Refuses heads that do not divide the width.
    pub(super) fn check(self) -> Result<(), Error> {
        divides("heads", self.heads, "the width", self.width)
    }
}

/// Defines the kinds, the layer of any kind and its methods from the table. A line has the layer, its configuration, the variant
/// of [`RecurrentState`], the name, whether an expansion changes the layer, and its configuration for [`HeadSizes`].
macro_rules! head_layers {
    ($($(#[$doc:meta])* $layer:ident $config:ident $state:ident $name:literal $wide:literal |$sizes:ident| $make:expr;)*) => {
        /// The kinds of layers with heads.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum HeadKind {
            $($(#[$doc])* #[serde(rename = $name)] $layer,)*
        }

        impl HeadKind {
            /// Every kind.
            pub const ALL: &'static [HeadKind] = &[$(HeadKind::$layer,)*];

            /// The name on the command line and in configuration files.
            pub fn name(self) -> &'static str {
                match self { $(Self::$layer => $name,)* }
            }

            /// Whether the layer has more channels of values for a larger expansion.
            pub fn widens(self) -> bool {
                match self { $(Self::$layer => $wide,)* }
            }

            /// Checks the sizes.
            ///
            /// # Errors
            /// [`Error::Invalid`] naming the first one that is out of range.
            pub fn check(self, sizes: HeadSizes) -> Result<(), Error> {
                sizes.check()?;
                match self { $(Self::$layer => { let $sizes = sizes; $make.check() })* }
            }

            /// Parameters, and numbers that a step saves for the backward pass; `None` if they do not fit into 64 bits.
            pub(super) fn size(self, sizes: HeadSizes) -> Option<[u64; 2]> {
                match self { $(Self::$layer => { let $sizes = sizes; $make.size() })* }
            }

            /// A layer with fresh weights.
            ///
            /// # Panics
            /// Where [`check`](Self::check) returns an error.
            pub fn init(self, sizes: HeadSizes, device: &Device) -> AnyHeadLayer {
                self.check(sizes).unwrap_or_else(|error| panic!("{error}"));
                match self {
                    $(Self::$layer => {
                        let $sizes = sizes;
                        AnyHeadLayer::$layer($make.init(device))
                    })*
                }
            }
        }

        /// A layer with heads, of any kind.
        #[expect(
            clippy::large_enum_variant,
            reason = "a model has a handful, and what is large is small beside their weights"
        )]
        #[derive(Module, Debug)]
        pub enum AnyHeadLayer {
            $($(#[$doc])* $layer($layer),)*
        }

        impl Recurrent for AnyHeadLayer {
            type State = RecurrentState;

            riverrun::run_checked!();

            fn checked_run(
                &self,
                x: Tensor<3>,
                sequence: Sequence<RecurrentState>,
            ) -> Result<(Tensor<3>, RecurrentState), Error> {
                match self {
                    $(Self::$layer(layer) => {
                        let start = of_kind(
                            sequence,
                            |state| match state {
                                RecurrentState::$state(state) => Some(state),
                                _ => None,
                            },
                            concat!("a layer ", $name, " with the state of another"),
                        )?;
                        let (y, state) = layer.checked_run(x, start)?;
                        Ok((y, RecurrentState::$state(state)))
                    })*
                }
            }
        }
    };
}

head_layers! {
    /// [`GatedDeltaNet`].
    GatedDeltaNet GatedDeltaNetConfig Matrix "gated-delta-net" true
        |s| GatedDeltaNetConfig::new(s.width, s.heads, s.key, s.value);
    /// [`Kda`].
    Kda KdaConfig Matrix "kda" true |s| KdaConfig::new(s.width, s.heads, s.key, s.value);
    /// [`DeltaNet`].
    DeltaNet DeltaNetConfig Matrix "delta-net" true |s| DeltaNetConfig::new(s.width, s.heads, s.key, s.value);
    /// [`Mamba2`], with states of twice as many rows as a key has channels.
    Mamba2 Mamba2Config Matrix "mamba2" true
        |s| Mamba2Config::new(s.width, s.heads, s.value).with_d_state((2 * s.key).min(256));
    /// [`Gla`].
    Gla GlaConfig Matrix "gla" true |s| GlaConfig::new(s.width, s.heads, s.key, s.value);
    /// [`RetNet`].
    RetNet RetNetConfig Matrix "ret-net" true |s| RetNetConfig::new(s.width, s.heads, s.key, s.value);
    /// [`Hgrn2`].
    Hgrn2 Hgrn2Config Matrix "hgrn2" true |s| Hgrn2Config::new(s.width, s.heads, s.key, s.value);
    /// [`MLstm`].
    MLstm MLstmConfig Matrix "mlstm" true |s| MLstmConfig::new(s.width, s.heads, s.key, s.value);
    /// [`Rwkv6`].
    Rwkv6 Rwkv6Config Matrix "rwkv6" false |s| Rwkv6Config::new(s.width, s.heads);
    /// [`Rwkv7`].
    Rwkv7 Rwkv7Config Matrix "rwkv7" false |s| Rwkv7Config::new(s.width, s.heads);
    /// [`SLstm`].
    SLstm SLstmConfig SLstm "slstm" false |s| SLstmConfig::new(s.width, s.width, s.heads);
}

impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for HeadKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let kind = Self::ALL.iter().find(|kind| kind.name() == name);
        kind.copied().ok_or_else(|| {
            let names = Self::ALL.iter().map(|kind| kind.name());
            invalid("model", name, &names.collect::<Vec<_>>().join(", "))
        })
    }
}
