//! The ranks before and after this one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Shape, TensorData};

use super::message::{self, Label};
use crate::Error;
use crate::ops::enqueue::StreamWork;

/// Sends and receives among the ranks of a group, on numbers of the host: over TCP, over channels between threads, or any other way.
///
/// Between two ranks numbers arrive in the order in which they were sent. Every wait is bounded: where the other rank has ended or
/// does not come, both methods return an error.
pub trait StateTransport: Send {
    /// The number of this rank in the group.
    fn rank(&self) -> usize;

    /// The number of ranks in the group.
    fn size(&self) -> usize;

    /// Sends to a rank, which receives as much. May wait until it does.
    ///
    /// # Errors
    /// [`Error::HandOver`] where the numbers cannot arrive.
    fn send(&mut self, numbers: &[f32], to: usize) -> Result<(), Error>;

    /// Receives what a rank sends.
    ///
    /// # Errors
    /// [`Error::HandOver`] where the numbers do not arrive, or are more or fewer.
    fn receive(&mut self, numbers: &mut [f32], from: usize) -> Result<(), Error>;
}

/// Sends and receives between the CUDA devices of the ranks of a group, as work of the devices' streams.
///
/// Between two ranks tensors arrive in the order in which their work runs on the sender's stream.
pub trait StreamTransport: Send + Sync {
    /// Work that sends `length` elements from the first tensor that it reads to a rank of the group.
    ///
    /// # Errors
    /// [`Error::HandOver`] for a dtype that cannot be sent.
    fn send(&self, dtype: DType, length: usize, to: usize) -> Result<StreamWork, Error>;

    /// Work that receives as many from a rank of the group into the first tensor that it writes.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    fn receive(&self, dtype: DType, length: usize, from: usize) -> Result<StreamWork, Error>;
}

/// The ranks before and after this one, where every sequence is divided among the ranks of a group along time: rank `r` has a piece
/// of consecutive steps, and those after it are rank `r + 1`'s.
///
/// In a [`Sequence`](crate::Sequence) it lets recurrences, and all layers and models on them, go on from the state in which the
/// rank before left each of them, and pass theirs on to the rank after. In the backward pass the gradients of these states go
/// the other way. All ranks run the same program on pieces of the same sequences.
///
/// - A piece has one step at least, and the resets and lengths are its own: a sequence that ended on an earlier rank has length 0.
/// - The initial state is given on the first rank alone. The state that a layer returns is that after the piece; on the last rank,
///   that after the whole sequence.
/// - In the backward pass of every rank the loss must depend on the output of each layer, if by a factor of 0: a rank waits for the
///   gradient of its last state where it comes to the gradient of the output.
/// - No rank computes the steps before its piece, so that what looks back without a state (attention, layers in reverse) is refused.
///
/// Hand-overs are numbered, so that ranks that do different things get an error. After an error, of the transport or of the
/// device, states and gradients are NaN, no message is sent any more, and [`check`](Self::check) returns the error.
///
/// ```
/// use riverrun::{Error, Neighbours, Sequence, StateTransport};
///
/// /// A group of one rank.
/// struct Alone;
///
/// impl StateTransport for Alone {
///     fn rank(&self) -> usize {
///         0
///     }
///     fn size(&self) -> usize {
///         1
///     }
///     fn send(&mut self, _: &[f32], _: usize) -> Result<(), Error> {
///         Err(Error::HandOver("nobody is there".into()))
///     }
///     fn receive(&mut self, _: &mut [f32], _: usize) -> Result<(), Error> {
///         Err(Error::HandOver("nobody is there".into()))
///     }
/// }
///
/// let neighbours = Neighbours::new(Alone);
/// let sequence = Sequence::<burn::Tensor<2>>::new().with_neighbours(neighbours.clone());
/// // Run layers on it, go back through the loss, and then:
/// neighbours.check()?;
/// # drop(sequence);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Neighbours {
    rank: usize,
    size: usize,
    shared: Arc<Mutex<Shared>>,
    stream: Option<Arc<dyn StreamTransport>>,
}

struct Shared {
    transport: Box<dyn StateTransport>,
    /// Hand-overs so far.
    number: u32,
    failure: Option<Error>,
}

impl Neighbours {
    /// Those that this transport reaches.
    pub fn new(transport: impl StateTransport + 'static) -> Self {
        Self {
            rank: transport.rank(),
            size: transport.size(),
            shared: Arc::new(Mutex::new(Shared {
                transport: Box::new(transport),
                number: 0,
                failure: None,
            })),
            stream: None,
        }
    }

    /// Lets states go from device to device: the transport of [`new`](Self::new) carries labels alone, so that no rank waits for a
    /// device. All ranks of the group have such a way, and all tensors are on the device that it is of.
    #[must_use]
    pub fn with_stream(mut self, stream: Arc<dyn StreamTransport>) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Whether states go from device to device.
    pub fn on_device(&self) -> bool {
        self.stream.is_some()
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this rank has the first steps.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Whether this rank has the last steps.
    pub fn is_last(&self) -> bool {
        self.rank + 1 == self.size
    }

    /// Returns the first error of a hand-over, if there was one: all that was computed since is NaN or depends on it.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), Error> {
        match &self.lock().failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way from device to device, if there is one.
    pub(super) fn stream(&self) -> Option<&dyn StreamTransport> {
        self.stream.as_deref()
    }

    /// The number of the next hand-over.
    pub(super) fn next(&self) -> u32 {
        let mut shared = self.lock();
        let number = shared.number;
        shared.number = message::after(number);
        number
    }

    /// Keeps the first error.
    pub(super) fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
    }

    /// Sends a state or gradient to another rank.
    pub(super) fn send(&self, label: Label, data: &TensorData, to: usize) {
        let mut shared = self.lock();
        if shared.failure.is_some() {
            return;
        }
        let numbers = message::numbers(label, data);
        if let Err(error) = shared.transport.send(&numbers, to) {
            shared.failure = Some(error);
        }
    }

    /// Receives the state or gradient of this label from another rank, and whether it waits for an answer. NaN after an error.
    pub(super) fn receive(
        &self,
        label: Label,
        shape: &Shape,
        dtype: DType,
        from: usize,
    ) -> (TensorData, bool) {
        let mut shared = self.lock();
        let mut numbers = vec![0.0; message::length(shape, dtype)];
        let received = match &shared.failure {
            Some(failure) => Err(failure.clone()),
            None => shared.transport.receive(&mut numbers, from),
        };
        let read = received.and_then(|()| message::read(&numbers, label, shape, dtype, from));
        read.unwrap_or_else(|error| {
            shared.failure.get_or_insert(error);
            (message::missing(shape, dtype), false)
        })
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Neighbours(rank {} of {})", self.rank, self.size)
    }
}
