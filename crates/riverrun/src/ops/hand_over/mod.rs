//! Hand-overs of states between ranks that have consecutive pieces of the same sequences.
//!
//! A recurrence asks for the state that the rank before has sent, runs, and sends its own last state on. With autodiff both are
//! nodes of the graph: the one that receives a state sends its gradient back, and the one that sends a state stands behind the
//! recurrence's output, so that the backward pass waits for the gradient of the state just before it needs it. Messages go
//! through the host, when the operation is called and not when the device comes to it, and so in the order of the program. Where
//! there is a [`StreamTransport`], that is so for their labels; states and gradients are sent and received by the devices' streams.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod message;
mod neighbours;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape, Tensor, TensorData, try_read_sync};

use crate::device::failure::one_line;
use crate::{Error, Sequence};
use message::{Direction, Label};

use super::enqueue::EnqueueOps;
use super::support::members::Many;

pub(crate) use message::StateKind;
pub use neighbours::{Neighbours, StateTransport, StreamTransport};

/// A state to be handed over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State<const D: usize> {
    pub kind: StateKind,
    pub shape: [usize; D],
    pub dtype: DType,
    /// Whether the recurrence runs from the last step to the first.
    pub reverse: bool,
}

/// Runs a recurrence, `run`, on a piece of `steps` steps: from the state of the rank before, and passes the last state on to the rank
/// after; without neighbours from the sequence's own. `input` is an input of the recurrence.
///
/// # Errors
/// A recurrence in reverse, an initial state on another rank than the first, a piece without steps; those of `run`.
pub(crate) fn handed_over<const I: usize, const O: usize, const D: usize>(
    state: State<D>,
    steps: usize,
    input: Tensor<I>,
    mut sequence: Sequence<Tensor<D>>,
    run: impl FnOnce(Sequence<Tensor<D>>) -> Result<(Tensor<O>, Tensor<D>), Error>,
) -> Result<(Tensor<O>, Tensor<D>), Error> {
    sequence.check_piece(steps)?;
    let neighbours = sequence.neighbours.take();
    let Some(neighbours) = neighbours.filter(|neighbours| neighbours.size() > 1) else {
        // It would share its memory with the input of the recurrence.
        drop(input);
        return run(sequence);
    };
    if state.reverse {
        return Err(refusal("a recurrence in reverse"));
    }
    // Of no sequences, or a convolution that sees its own step alone: all ranks have nothing to hand over.
    if state.shape.contains(&0) {
        return run(sequence);
    }
    let point = HandOver {
        number: neighbours.next(),
        kind: state.kind,
        shape: Shape::new(state.shape),
        dtype: state.dtype,
        neighbours,
    };
    if !point.neighbours.is_first() {
        let start = <Dispatch as HandOverOps>::receive_state(input.into_dispatch(), point.clone());
        sequence.state = Some(Tensor::from_dispatch(start));
    }
    let (y, last) = run(sequence)?;
    if point.neighbours.is_last() {
        return Ok((y, last));
    }
    let sent = last.clone().into_dispatch();
    let y = <Dispatch as HandOverOps>::send_state(y.into_dispatch(), sent, point);
    Ok((Tensor::from_dispatch(y), last))
}

/// The error for what cannot go on from a state of the rank before.
pub(crate) fn refusal(what: &str) -> Error {
    Error::Unsupported(format!(
        "{what} cannot be divided among ranks along time: it is no recurrence from the first step to the last"
    ))
}

/// One hand-over: the state, and between whom.
#[derive(Debug, Clone)]
pub struct HandOver {
    neighbours: Neighbours,
    kind: StateKind,
    number: u32,
    shape: Shape,
    dtype: DType,
}

impl HandOver {
    fn label(&self, direction: Direction, answer: bool) -> Label {
        Label {
            direction,
            kind: self.kind,
            number: self.number,
            answer,
        }
    }

    /// Sends the state to the rank after, or its gradient to the rank before.
    fn send<B: EnqueueOps>(&self, direction: Direction, tensor: FloatTensor<B>, answer: bool) {
        let rank = self.neighbours.rank();
        let to = match direction {
            Direction::Forward => rank + 1,
            Direction::Backward => rank - 1,
        };
        let label = self.label(direction, answer);
        if let Some(stream) = self.neighbours.stream() {
            self.neighbours.send(label, &nothing(), to);
            match stream.send(self.dtype, self.shape.num_elements(), to) {
                Err(error) => self.neighbours.fail(error),
                Ok(_) if self.neighbours.check().is_err() => {}
                Ok(work) => {
                    let token = B::float_empty([1].into(), &tensor.device(), self.dtype.into());
                    let token = Many::from_tensors(vec![token]);
                    B::enqueue(Many::from_tensors(vec![tensor]), token, work);
                }
            }
            return;
        }
        let error = match try_read_sync(B::float_into_data(tensor)) {
            Some(Ok(data)) => return self.neighbours.send(label, &data, to),
            Some(Err(error)) => Error::Execution(one_line(error.reason())),
            None => Error::HandOver("a state cannot be waited for on this platform".into()),
        };
        self.neighbours.fail(error);
    }

    /// Receives the state of the rank before, or the gradient from the rank after, and whether that waits for an answer.
    fn receive<B: EnqueueOps>(
        &self,
        direction: Direction,
        device: &B::Device,
    ) -> (FloatTensor<B>, bool) {
        let rank = self.neighbours.rank();
        let from = match direction {
            Direction::Forward => rank - 1,
            Direction::Backward => rank + 1,
        };
        let (label, neighbours) = (self.label(direction, false), &self.neighbours);
        let Some(stream) = neighbours.stream() else {
            let (data, answer) = neighbours.receive(label, &self.shape, self.dtype, from);
            return (B::float_from_data(data, device), answer);
        };
        let (_, answer) = neighbours.receive(label, &[0].into(), self.dtype, from);
        let work = stream.receive(self.dtype, self.shape.num_elements(), from);
        let work = work.and_then(|work| neighbours.check().map(|()| work));
        let received = match work {
            Ok(work) => {
                let place = B::float_empty(self.shape.clone(), device, self.dtype.into());
                let written = B::enqueue(
                    Many::from_tensors(vec![]),
                    Many::from_tensors(vec![place]),
                    work,
                );
                written.into_tensors().pop()
            }
            Err(error) => {
                neighbours.fail(error);
                None
            }
        };
        let missing = || B::float_from_data(message::missing(&self.shape, self.dtype), device);
        (received.unwrap_or_else(missing), answer)
    }
}

/// What goes through the host where the state does not.
fn nothing() -> TensorData {
    TensorData::new(Vec::<f32>::new(), [0])
}

/// Hand-overs on a backend.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait HandOverOps: Backend + EnqueueOps {
    /// The state of the rank before, on the device of an input of the recurrence.
    #[fusion(default)]
    fn receive_state(input: FloatTensor<Self>, point: HandOver) -> FloatTensor<Self> {
        point.receive::<Self>(Direction::Forward, &input.device()).0
    }

    /// `y` itself; sends `last` to the rank after.
    #[fusion(default)]
    fn send_state(
        y: FloatTensor<Self>,
        last: FloatTensor<Self>,
        point: HandOver,
    ) -> FloatTensor<Self> {
        point.send::<Self>(Direction::Forward, last, false);
        y
    }
}
