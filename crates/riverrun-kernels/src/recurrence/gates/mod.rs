//! Gates, which turn the inputs of a step into the coefficients of the scan.
//!
//! A gate is one file of this folder: its parameters and name ([`Formula`]), the CPU's coefficients ([`Coefficients`]),
//! the GPU's (`coefficients` and `gradients`), its reference and naive forms, its cost. To add one, write the file, name
//! it among the modules below and put a line into the list of [`Gate`]. Kernels, checks, `verify` and `bench` take it from
//! there.

mod candidate;
mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
mod min_gru;
mod min_lstm;
mod raw;
#[cfg(feature = "check")]
pub mod reference;
mod rg_lru;
mod sigmoid;

pub use candidate::Candidate;
pub(super) use cpu::{Coefficients, Visitor};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::cost::Pass;
#[cfg(feature = "check")]
use crate::Element;
#[cfg(feature = "check")]
use reference::{NaiveStep, Step};

/// The sigmoid of it is exactly 1, and that of its negative exactly 0, in every storage type; `f16` can hold it.
const SATURATED: f64 = 1e4;

/// A gate's properties and forms, except for its GPU form.
trait Formula: Copy {
    /// Every form of the gate: one for each value of its parameters.
    fn all() -> Vec<Self>;

    /// The name used in tables and on the command line.
    fn name(self) -> &'static str;

    /// The number of `[B, T, D]` inputs, 2 or 3.
    fn inputs(self) -> usize;

    /// For each input, a value with which `a = 1` and `b = 0` exactly, in every storage type: the step keeps the state, as a
    /// padded step has to.
    fn holding(self) -> Vec<f64>;

    /// How many of the inputs, from the first on, the gradients depend on.
    fn backward_reads(self) -> usize {
        self.inputs()
    }

    /// Whether the coefficients take no longer to compute a second time than to keep in registers.
    #[cfg(feature = "gpu")]
    fn cheap(self) -> bool;

    /// Arithmetic operations of an element, apart from the scan's own, counted as [`cost::flops`](super::cost::flops)
    /// does.
    fn flops(self, pass: Pass) -> usize;

    /// Calls `visitor` with the type that has the CPU's coefficients.
    fn visit<V: Visitor>(self, visitor: V) -> V::Output;

    /// The coefficients of one element and their derivatives, in `f64`, from the formulas.
    #[cfg(feature = "check")]
    fn reference(self, inputs: &[f64]) -> Step;

    /// The textbook formulas with every operation rounded to `E`.
    #[cfg(feature = "check")]
    fn naive<E: Element>(self, inputs: &[f64], h_prev: f64, d: f64) -> NaiveStep;

    /// A typical value of input `input`, for `x` uniform in `[-1, 1)`: pre-activations from nearly closed to nearly open,
    /// values up to 2.
    #[cfg(feature = "check")]
    fn sample(self, input: usize, x: f64) -> f64 {
        if input + 1 == self.inputs() {
            2.0 * x
        } else {
            5.0 * x
        }
    }
}

/// Defines [`Gate`] from the list, and forwards each call to the gate's file.
macro_rules! gates {
    ($($(#[$doc:meta])* $name:ident $({ $($(#[$of:meta])* $field:ident: $type:ty,)* })? = $module:ident;)*) => {
        /// How `[B, T, D]` inputs become the coefficients `a` and `b`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Gate {
            $($(#[$doc])* $name $({ $($(#[$of])* $field: $type,)* })?,)*
        }

        impl Gate {
            /// Every gate in every form, for tables that run them all.
            pub fn all() -> Vec<Gate> {
                let mut gates = Vec::new();
                $(gates.extend($module::$name::all().into_iter().map(|form| {
                    let $module::$name $({ $($field),* })? = form;
                    Gate::$name $({ $($field),* })?
                }));)*
                gates
            }

            /// The name used in tables and on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.name(),)* }
            }

            /// The number of `[B, T, D]` inputs.
            pub fn inputs(self) -> usize {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.inputs(),)* }
            }

            /// For each input, a value with which a step keeps the state exactly.
            #[doc(hidden)]
            pub fn holding(self) -> Vec<f64> {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.holding(),)* }
            }

            /// How many of the inputs, from the first on, the gradients depend on.
            pub(super) fn backward_reads(self) -> usize {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.backward_reads(),)* }
            }

            /// Whether the coefficients take no longer to compute a second time than to keep in registers.
            #[cfg(feature = "gpu")]
            pub(super) fn cheap(self) -> bool {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.cheap(),)* }
            }

            /// Arithmetic operations of an element, apart from the scan's own.
            pub(super) fn flops(self, pass: Pass) -> usize {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.flops(pass),)* }
            }

            /// Calls `visitor` with the type that has the CPU's coefficients.
            pub(super) fn visit<V: Visitor>(self, visitor: V) -> V::Output {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.visit(visitor),)* }
            }

            /// The coefficients of one element and their derivatives.
            #[cfg(feature = "check")]
            pub fn reference(self, inputs: &[f64]) -> Step {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.reference(inputs),)* }
            }

            /// A step in the storage type itself.
            #[cfg(feature = "check")]
            pub fn naive<E: Element>(self, inputs: &[f64], h_prev: f64, d: f64) -> NaiveStep {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.naive::<E>(inputs, h_prev, d),)* }
            }

            /// A typical value of input `input`.
            #[cfg(feature = "check")]
            pub fn sample(self, input: usize, x: f64) -> f64 {
                match self { $(Gate::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.sample(input, x),)* }
            }
        }

        #[cfg(feature = "gpu")]
        mod on_gpu {
            use cubecl::prelude::*;

            use super::gpu::{Affine, InputGradients, Math};
            use super::*;

            /// The coefficients `(a, b)` of a step.
            #[cube]
            pub(crate) fn coefficients<N: Size>(
                p0: Vector<f32, N>,
                p1: Vector<f32, N>,
                p2: Vector<f32, N>,
                #[comptime] gate: Gate,
                #[comptime] math: Math,
            ) -> Affine<N> {
                match gate {
                    $(Gate::$name $({ $($field),* })? => super::$module::coefficients::<N>(
                        p0, p1, p2, comptime!(super::$module::$name $({ $($field),* })?), math,
                    ),)*
                }
            }

            /// The gradients of the inputs from the previous state and `d = ∂L/∂h_t` in full (later steps included).
            #[cube]
            pub(crate) fn gradients<N: Size>(
                p0: Vector<f32, N>,
                p1: Vector<f32, N>,
                p2: Vector<f32, N>,
                h_prev: Vector<f32, N>,
                d: Vector<f32, N>,
                #[comptime] gate: Gate,
                #[comptime] math: Math,
            ) -> InputGradients<N> {
                match gate {
                    $(Gate::$name $({ $($field),* })? => super::$module::gradients::<N>(
                        p0, p1, p2, h_prev, d, comptime!(super::$module::$name $({ $($field),* })?), math,
                    ),)*
                }
            }
        }
    };
}

gates! {
    /// Two inputs `(a, b)`, used as they are.
    Raw = raw;
    /// Two inputs `(k_a, b)`: `a = σ(k_a)`, `b` as it is. The gated linear RNN.
    Sigmoid = sigmoid;
    /// Two inputs `(k_z, k_h)`: `z = σ(k_z)`, `a = 1 - z`, `b = z · act(k_h)`. Feng et al. (2024), section 3.1.
    MinGru {
        /// The candidate's activation.
        candidate: Candidate,
    } = min_gru;
    /// Three inputs `(k_f, k_i, k_h)`: `f = σ(k_f)`, `i = σ(k_i)`, and `a = f'`, `b = i' · act(k_h)` with
    /// `f' = f / (f + i)`, `i' = i / (f + i)` if normalised, else `f`, `i`. Feng et al. (2024), section 3.2.
    MinLstm {
        /// The candidate's activation.
        candidate: Candidate,
        /// Whether `f' + i' = 1`.
        normalized: bool,
    } = min_lstm;
    /// Two inputs `(s, u)`: `a = e^-s`, `b = √(1 - a²) · u`, the RG-LRU of Griffin; `s` is the rate of decay, `c · softplus(Λ)
    /// · σ(r)` there. One below 0 counts as 0, which keeps the state and adds nothing. The slope of the square root is taken as
    /// [`Gate::STEEPEST_ROOT`] at most, as the authors' own code does. De et al. (2024), section 2.4 and appendix A.
    RgLru = rg_lru;
}

#[cfg(feature = "gpu")]
pub(crate) use on_gpu::{coefficients, gradients};

/// By name.
impl Serialize for Gate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Gate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown gate `{name}`")))
    }
}

impl Gate {
    /// The largest slope of the square root in the gradients of [`Gate::RgLru`].
    pub const STEEPEST_ROOT: f64 = 1000.0;

    /// The gate of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|gate| gate.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_apart_and_find_their_gates() {
        for gate in Gate::all() {
            assert_eq!(Gate::from_name(gate.name()), Some(gate));
        }
        assert_eq!(Gate::from_name("no-gate"), None);
    }

    #[test]
    #[cfg(feature = "check")]
    fn a_held_state_stays() {
        for gate in Gate::all() {
            let inputs = gate.holding();
            assert_eq!(inputs.len(), gate.inputs(), "{gate:?}");
            let step = gate.reference(&inputs);
            assert_eq!((step.a, step.b), (1.0, 0.0), "{gate:?}");
        }
    }
}
