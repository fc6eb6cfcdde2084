//! The cells, one file each: formula, name, CPU stages, reference and naive forms.
//!
//! To add one, write the file, name it among the modules below and put a line into the list of [`Cell`]; then its GPU form, in
//! [`gpu`](super::gpu).

mod elman;
mod gru;
mod lstm;

pub use elman::Activation;
pub use gru::ResetGate;

#[cfg(feature = "check")]
use super::check::naive;
use super::cpu::stage::{BackwardStage, ForwardStage};
#[cfg(feature = "check")]
use super::oracle;

/// Work that is compiled once for each forward stage.
pub(super) trait ForwardVisitor {
    fn visit<C: ForwardStage<G, N>, const G: usize, const N: usize>(self);
}

/// Work that is compiled once for each backward stage.
pub(super) trait BackwardVisitor {
    fn visit<C: BackwardStage<G, N>, const G: usize, const N: usize>(self);
}

/// A cell's properties and forms, except for its GPU form.
trait Formula: Copy {
    /// Every form of the cell: one for each value of its parameters.
    fn all() -> Vec<Self>;

    /// The name used in tables and on the command line.
    fn name(self) -> &'static str;

    /// `G`: blocks of `H` pre-activations a step.
    fn gates(self) -> usize;

    /// The number of dependent products with recurrent weights in a step.
    fn products(self) -> usize {
        1
    }

    /// Blocks of `H` values a step that forward saves for backward.
    fn saved_blocks(self) -> usize;

    /// Visits the stage after the last product of a step, or after the first of two.
    fn visit_forward(self, last: bool, visitor: impl ForwardVisitor);

    /// Visits the backward stage before the last product of a step, or before the first of two.
    fn visit_backward(self, last: bool, visitor: impl BackwardVisitor);

    /// A step in `f64`.
    #[cfg(feature = "check")]
    fn reference(self, inputs: &oracle::StepInputs, step: &mut oracle::Step);

    /// The gradients of a step in `f64`, with the recurrent weights `u`.
    #[cfg(feature = "check")]
    fn reference_backward(self, u: &[f64], step: &oracle::Step, d: &mut oracle::StepGradients);

    /// A step in `f32`, by the textbook's formulas.
    #[cfg(feature = "check")]
    fn naive(self, inputs: &naive::StepInputs, step: &mut naive::Step);

    /// The gradients of a step in `f32`, with the recurrent weights `u`.
    #[cfg(feature = "check")]
    fn naive_backward(self, u: &[f32], step: &naive::Step, d: &mut naive::StepGradients);
}

/// Defines [`Cell`] from the list, and forwards each call to the cell's file.
macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident $({ $($(#[$of:meta])* $field:ident: $type:ty,)* })? = $module:ident;)*) => {
        /// The cell's formula; see the [module](super).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Cell {
            $($(#[$doc])* $name $({ $($(#[$of])* $field: $type,)* })?,)*
        }

        impl Cell {
            /// Every cell in every form, for tables that run them all.
            pub fn all() -> Vec<Cell> {
                let mut cells = Vec::new();
                $(cells.extend($module::$name::all().into_iter().map(|form| {
                    let $module::$name $({ $($field),* })? = form;
                    Cell::$name $({ $($field),* })?
                }));)*
                cells
            }

            /// The name used in tables and on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.name(),)* }
            }

            /// `G`: blocks of `H` pre-activations a step.
            pub fn gates(self) -> usize {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.gates(),)* }
            }

            /// The number of dependent products with recurrent weights in a step.
            pub(crate) fn products(self) -> usize {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.products(),)* }
            }

            /// Blocks of `H` values a step that forward saves for backward.
            pub(super) fn saved_blocks(self) -> usize {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.saved_blocks(),)* }
            }

            /// Visits the stage after the last product of a step, or after the first of two.
            #[inline(always)]
            pub(super) fn visit_forward(self, last: bool, visitor: impl ForwardVisitor) {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.visit_forward(last, visitor),)* }
            }

            /// Visits the backward stage before the last product of a step, or before the first of two.
            #[inline(always)]
            pub(super) fn visit_backward(self, last: bool, visitor: impl BackwardVisitor) {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.visit_backward(last, visitor),)* }
            }

            /// A step in `f64`.
            #[cfg(feature = "check")]
            pub(super) fn reference(self, inputs: &oracle::StepInputs, step: &mut oracle::Step) {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.reference(inputs, step),)* }
            }

            /// The gradients of a step in `f64`.
            #[cfg(feature = "check")]
            pub(super) fn reference_backward(self, u: &[f64], step: &oracle::Step, d: &mut oracle::StepGradients) {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.reference_backward(u, step, d),)* }
            }

            /// A step in `f32`, by the textbook's formulas.
            #[cfg(feature = "check")]
            pub(super) fn naive(self, inputs: &naive::StepInputs, step: &mut naive::Step) {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.naive(inputs, step),)* }
            }

            /// The gradients of a step in `f32`.
            #[cfg(feature = "check")]
            pub(super) fn naive_backward(self, u: &[f32], step: &naive::Step, d: &mut naive::StepGradients) {
                match self { $(Cell::$name $({ $($field),* })? => $module::$name $({ $($field),* })?.naive_backward(u, step, d),)* }
            }
        }
    };
}

cells! {
    /// Gated recurrent unit. Gates in the order r, z, n.
    Gru {
        /// Where the reset gate acts.
        reset: ResetGate,
    } = gru;
    /// Long short-term memory. Gates in the order i, f, g, o.
    Lstm = lstm;
    /// The simple recurrent network: one block.
    Elman {
        /// Its activation.
        activation: Activation,
    } = elman;
}
