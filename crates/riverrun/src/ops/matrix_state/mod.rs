//! Recurrences with a matrix for a state, as a kernel on every device.

#[cfg(feature = "autodiff")]
mod autodiff;
mod backend;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::Dispatch;
use burn::tensor::{Bool, DType, Tensor};
use riverrun_kernels::matrix_state::{Erase as EraseForm, Gate, Problem, Shape};

use super::hand_over::{State, StateKind, handed_over};
use super::support::lengths::{padding, unpadded_reset};
use super::support::{Maybe, checks};
use crate::{Error, Sequence};
use backend::{MatrixInputs, MatrixStateOps};

/// The decay of a matrix state: the logarithms of its factors, at most 0.
#[derive(Debug, Clone, Default)]
pub enum Decay {
    /// None.
    #[default]
    None,
    /// `[B, T, H]`: one for all rows of a head's state.
    Head(Tensor<3>),
    /// `[B, T, H, K]`: one for each row.
    Row(Tensor<4>),
}

/// What a step takes from a matrix state before it writes.
#[derive(Debug, Clone, Default)]
pub enum Erase {
    /// Nothing.
    #[default]
    None,
    /// `β`, `[B, T, H]`: the part `β` of what the key reads is replaced, `u = β (v - S'ᵀ k)`.
    Key(Tensor<3>),
    /// `e`, `[B, T, H, K]`: what a vector of its own reads, `u = v - S'ᵀ e`.
    Free(Tensor<4>),
    /// `a` and `b`, `[B, T, H, K]`: what `a` reads in the state before the decay is added along `b`.
    Separate([Tensor<4>; 2]),
}

/// The vectors of a recurrence with a matrix for a state.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MatrixState {
    /// `[B, T, J, K]`, any float dtype; its scale is the caller's.
    pub query: Tensor<4>,
    /// `[B, T, J, K]`, of the same dtype, here and below.
    pub key: Tensor<4>,
    /// `[B, T, H, V]`; `H` is a multiple of `J`.
    pub value: Tensor<4>,
    /// The decay.
    pub decay: Decay,
    /// The erase.
    pub erase: Erase,
    /// `[H, K]`: the output reads the state before the step, and the step's own value by this bonus.
    pub bonus: Option<Tensor<2>>,
}

impl MatrixState {
    /// Without decay, erase and bonus: linear attention.
    pub fn new(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Self {
        Self {
            query,
            key,
            value,
            decay: Decay::None,
            erase: Erase::None,
            bonus: None,
        }
    }

    /// With a decay.
    pub fn with_decay(mut self, decay: Decay) -> Self {
        self.decay = decay;
        self
    }

    /// With an erase.
    pub fn with_erase(mut self, erase: Erase) -> Self {
        self.erase = erase;
        self
    }

    /// With a bonus.
    pub fn with_bonus(mut self, bonus: Tensor<2>) -> Self {
        self.bonus = Some(bonus);
        self
    }
}

/// `S' = Diag(exp g_t) S_{t-1}`, `u_t = v_t - S'ᵀ e_t`, `S_t = S' + k_t u_tᵀ`, `o_t = S_tᵀ q_t` for each of `H` heads: the
/// recurrence of Gated DeltaNet, Kimi Delta Attention, Mamba-2, GLA, RetNet, DeltaNet, RWKV-6 and -7. See
/// [`riverrun_kernels::matrix_state`] for the forms, and the order of sums.
///
/// # Arguments
/// - `inputs`: `K` and `V` from 1 to 256.
/// - `sequence`: the state before the first step, `[B, H, K, V]`, `f64` for `f64` and else `f32`; resets and lengths.
///
/// # Returns
/// `[B, T, H, V]` in the dtype of the inputs and the last state. The backward pass saves the inputs and no states.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
///
/// Sources: Yang et al., *Gated Delta Networks* (2024), section 3; Dao and Gu, *Transformers are SSMs* (2024), section 3.
pub fn matrix_state(
    inputs: MatrixState,
    sequence: Sequence<Tensor<4>>,
) -> Result<(Tensor<4>, Tensor<4>), Error> {
    let problem = check(&inputs, &sequence)?;
    let Shape { batch, steps, .. } = problem.shape;
    let device = inputs.value.device();
    let (mut inputs, mut sequence) = (inputs, sequence);
    let mut reset = sequence.reset.take();
    if let Some(padding) = padding(sequence.lengths.as_deref(), steps, &device) {
        inputs = without(inputs, &padding);
        reset = unpadded_reset(reset, &padding);
    }
    let dtype = inputs.value.dtype();
    let MatrixState {
        query,
        key: key_vectors,
        value,
        decay,
        erase,
        bonus,
    } = inputs;
    let g = match decay {
        Decay::None => None,
        Decay::Head(g) => Some(g.unsqueeze_dim(3)),
        Decay::Row(g) => Some(g),
    };
    let (beta, erase, write) = match erase {
        Erase::None => (None, None, None),
        Erase::Key(beta) => (Some(beta.unsqueeze_dim(3)), None, None),
        Erase::Free(erase) => (None, Some(erase), None),
        Erase::Separate([read, write]) => (None, Some(read), Some(write)),
    };
    let reset = reset.map(|reset| reset.float().cast(dtype).reshape([batch, steps, 1, 1]));
    let Shape {
        heads,
        key,
        value: columns,
        ..
    } = problem.shape;
    let state = State {
        kind: StateKind::Matrix,
        shape: [batch, heads, key, columns],
        dtype: state_dtype(dtype),
        reverse: false,
    };
    handed_over(state, steps, value.clone(), sequence, |sequence| {
        let present =
            |tensor: Option<Tensor<4>>| Maybe::from_option(tensor.map(Tensor::into_dispatch));
        let (o, last) = <Dispatch as MatrixStateOps>::matrix_state(
            MatrixInputs {
                q: query.into_dispatch(),
                k: key_vectors.into_dispatch(),
                v: value.into_dispatch(),
                g: present(g),
                beta: present(beta),
                erase: present(erase),
                write: present(write),
                bonus: Maybe::from_option(bonus.map(Tensor::into_dispatch)),
                initial: present(sequence.state),
                reset: present(reset),
            },
            problem,
        );
        Ok((Tensor::from_dispatch(o), Tensor::from_dispatch(last)))
    })
}

/// The problem, after all checks.
fn check(inputs: &MatrixState, sequence: &Sequence<Tensor<4>>) -> Result<Problem, Error> {
    let value = &inputs.value;
    let ([batch, steps, heads, columns], [_, _, key_heads, key]) =
        (value.dims(), inputs.query.dims());
    checks::supported("the value", &value.device(), value.dtype())?;
    checks::fits(
        "the query",
        value,
        &inputs.query,
        &[batch, steps, key_heads, key],
    )?;
    checks::fits(
        "the key",
        value,
        &inputs.key,
        &[batch, steps, key_heads, key],
    )?;
    let (single, rows) = ([batch, steps, heads], [batch, steps, heads, key]);
    let gate = match &inputs.decay {
        Decay::None => Gate::None,
        Decay::Head(g) => {
            checks::fits("the decay", value, g, &single)?;
            Gate::Head
        }
        Decay::Row(g) => {
            checks::fits("the decay", value, g, &rows)?;
            Gate::Row
        }
    };
    let erase = match &inputs.erase {
        Erase::None => EraseForm::None,
        Erase::Key(beta) => {
            checks::fits("β", value, beta, &single)?;
            EraseForm::Key
        }
        Erase::Free(erase) => {
            checks::fits("the erase", value, erase, &rows)?;
            EraseForm::Free
        }
        Erase::Separate(vectors) => {
            for vector in vectors {
                checks::fits("the erase", value, vector, &rows)?;
            }
            EraseForm::Separate
        }
    };
    checks::optional("the bonus", value, inputs.bonus.as_ref(), &[heads, key])?;
    let problem = Problem {
        shape: Shape {
            batch,
            steps,
            key_heads,
            heads,
            key,
            value: columns,
        },
        gate,
        erase,
        bonus: inputs.bonus.is_some(),
    };
    problem.check(&problem.lengths())?;
    if let Some(state) = &sequence.state {
        checks::shape("the state", &[batch, heads, key, columns], &state.dims())?;
        checks::dtype("the state", state_dtype(value.dtype()), state.dtype())?;
        checks::device("the state", &value.device(), &state.device())?;
    }
    checks::reset(value, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    Ok(problem)
}

/// The dtype of the state beside inputs of this one.
pub(crate) fn state_dtype(inputs: DType) -> DType {
    match inputs {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The inputs with zeros at the padded steps, which then neither change the state nor read it.
fn without(inputs: MatrixState, padding: &Tensor<3, Bool>) -> MatrixState {
    let fill = |x: Tensor<4>| {
        let shape = x.dims();
        // Burn expands to no dimension of 0.
        if shape.contains(&0) {
            return x;
        }
        x.mask_fill(padding.clone().unsqueeze_dim::<4>(3).expand(shape), 0.0)
    };
    let fill_heads = |x: Tensor<3>| fill(x.unsqueeze_dim(3)).squeeze_dim(3);
    MatrixState {
        query: fill(inputs.query),
        key: fill(inputs.key),
        value: fill(inputs.value),
        decay: match inputs.decay {
            Decay::None => Decay::None,
            Decay::Head(g) => Decay::Head(fill_heads(g)),
            Decay::Row(g) => Decay::Row(fill(g)),
        },
        erase: match inputs.erase {
            Erase::None => Erase::None,
            Erase::Key(beta) => Erase::Key(fill_heads(beta)),
            Erase::Free(erase) => Erase::Free(fill(erase)),
            Erase::Separate(vectors) => Erase::Separate(vectors.map(fill)),
        },
        bonus: inputs.bonus,
    }
}
