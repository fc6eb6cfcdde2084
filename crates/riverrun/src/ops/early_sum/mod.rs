//! Sums of gradients over ranks that begin in the backward pass.
//!
//! While [`early_sums`] runs a backward pass, the linear layers put the gradients of their weights aside and enqueue their sums over
//! the ranks beside the launches that follow, some megabytes at a time. An embedding whose table has more rows than all ranks have
//! tokens gathers these and the gradients of its outputs, and makes the sum of them. A weight may have other gradients, from other
//! operations: those are left to the caller, who adds them up afterwards, since a sum of sums is the same.

#[cfg(feature = "autodiff")]
pub(super) mod autodiff;

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
#[cfg(feature = "autodiff")]
use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};
#[cfg(feature = "autodiff")]
use burn::tensor::{IntDType, Shape};

use super::enqueue::{EnqueueOps, StreamWork};
use super::support::Maybe;
use super::support::members::{MANY, Many};
use crate::Error;

/// Bytes from which on a gradient is summed early: smaller ones take as long by themselves, and less with others.
const LEAST: usize = 1 << 16;
/// Bytes that are summed in one launch, or more: long enough that the launch does not matter.
const TOGETHER: usize = 4 << 20;

/// Work on vectors of these lengths and dtypes.
type Work = Arc<dyn Fn(&[(usize, DType)]) -> Result<StreamWork, Error> + Send + Sync>;

/// How [`early_sums`] adds up gradients.
#[derive(Clone)]
pub struct EarlySums {
    sum: Work,
    /// Ranks, and the work that gathers their vectors.
    gather: Option<(usize, Work)>,
    /// Whether sums are in `f32`, and not in the dtypes of the gradients.
    wide: bool,
}

impl EarlySums {
    /// With the work that replaces vectors of these lengths and dtypes by their sums, for 64 vectors at most. `wide` makes all
    /// of them `f32`.
    pub fn new(
        wide: bool,
        sum: impl Fn(&[(usize, DType)]) -> Result<StreamWork, Error> + Send + Sync + 'static,
    ) -> Self {
        Self {
            sum: Arc::new(sum),
            gather: None,
            wide,
        }
    }

    /// With the work that reads vectors of these lengths and dtypes, and writes as many that each hold those of all `ranks`, one
    /// after another.
    #[must_use]
    pub fn with_gather(
        self,
        ranks: usize,
        gather: impl Fn(&[(usize, DType)]) -> Result<StreamWork, Error> + Send + Sync + 'static,
    ) -> Self {
        Self {
            gather: Some((ranks, Arc::new(gather))),
            ..self
        }
    }
}

/// A gradient of some backend.
type Gradient = Box<dyn Any + Send>;

/// A weight, by the number of its node.
type Leaf = u64;

/// What a backward pass has put aside.
struct Aside {
    sums: EarlySums,
    /// Gradients whose sums have not begun, of one backend.
    waiting: Vec<(Leaf, Gradient)>,
    /// Bytes of those.
    bytes: usize,
    /// Begins the sums of what waits.
    begin: fn(&mut Self),
    summed: HashMap<Leaf, Vec<Gradient>>,
    failure: Option<Error>,
}

thread_local! {
    /// The backward pass of this thread, which Burn runs on the thread that asks for it.
    static ASIDE: RefCell<Option<Aside>> = const { RefCell::new(None) };
}

/// Sums that have begun: see [`early_sums`].
#[derive(Clone)]
pub struct Early(Arc<Mutex<HashMap<Leaf, Vec<Gradient>>>>);

impl std::fmt::Debug for Early {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Early")
    }
}

/// Runs a backward pass, and puts sums of its gradients over the ranks on the device beside it. All ranks run the same one.
///
/// Gradients that have been put aside are not those that Burn returns: [`Early::take`] has them, once work has been enqueued that
/// does not run [beside](StreamWork::beside) launches. A leaf may have gradients of both kinds.
///
/// # Errors
/// The first error of [`EarlySums`].
pub fn early_sums<R>(sums: EarlySums, backward: impl FnOnce() -> R) -> Result<(R, Early), Error> {
    /// Ends the pass, also where it panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            ASIDE.take();
        }
    }
    let aside = Aside {
        sums,
        waiting: Vec::new(),
        bytes: 0,
        begin: |_| (),
        summed: HashMap::new(),
        failure: None,
    };
    ASIDE.set(Some(aside));
    let end = End;
    let output = backward();
    let mut aside = ASIDE.take().expect("it is there up to the end");
    drop(end);
    (aside.begin)(&mut aside);
    match aside.failure {
        Some(failure) => Err(failure),
        None => Ok((output, Early(Arc::new(Mutex::new(aside.summed))))),
    }
}

impl Early {
    /// The summed gradients of a weight, which has autodiff; `None` where none was put aside. Once for each weight.
    pub fn take<const D: usize>(&self, weight: Tensor<D>) -> Option<Tensor<D>> {
        let sum = <Dispatch as EarlySumOps>::early_sum(weight.into_dispatch(), self.clone());
        sum.into_option().map(Tensor::from_dispatch)
    }

    #[cfg(feature = "autodiff")]
    fn remove<B: Backend>(&self, leaf: Leaf) -> Option<FloatTensor<B>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gradients = all.remove(&leaf)?.into_iter();
        gradients.map(own::<B>).reduce(B::float_add)
    }
}

/// The gradient as what it was before it was put aside.
fn own<B: Backend>(gradient: Gradient) -> FloatTensor<B> {
    let gradient = gradient.downcast::<FloatTensor<B>>();
    *gradient.expect("the gradients of a backward pass are of one backend")
}

/// Puts the gradient of a leaf aside, if a backward pass asks for it; returns it otherwise.
#[cfg(feature = "autodiff")]
fn put_aside<B: EnqueueOps>(leaf: Leaf, gradient: FloatTensor<B>) -> Option<FloatTensor<B>> {
    ASIDE.with_borrow_mut(|aside| match aside {
        Some(aside) => aside.put::<B>(leaf, gradient),
        None => Some(gradient),
    })
}

/// The rows `[B, T, D]` and tokens `[B, T]` of all ranks, `[ranks · B, T, D]` and `[ranks · B, T]`, if a backward pass asks for sums
/// and there are at most as many as a table of `vocab` rows has: then they are fewer bytes than its gradient.
#[cfg(feature = "autodiff")]
fn gather_rows<B: EnqueueOps>(
    rows: &FloatTensor<B>,
    tokens: &IntTensor<B>,
    vocab: usize,
) -> Option<(FloatTensor<B>, IntTensor<B>)> {
    /// Tokens below it are exact in `f32`, in which they are sent.
    const EXACT: usize = 1 << 24;

    ASIDE.with_borrow_mut(|aside| {
        let aside = aside.as_mut().filter(|aside| aside.failure.is_none())?;
        let (ranks, gather) = aside.sums.gather.as_ref()?;
        let [batch, steps, dim] = rows.shape().dims();
        let count = batch * steps;
        let dense = vocab * dim * rows.dtype().size();
        if ranks * count > vocab || vocab > EXACT || dense < TOGETHER {
            return None;
        }
        let work = match gather(&[(count * dim, rows.dtype()), (count, DType::F32)]) {
            Ok(work) => work,
            Err(failure) => {
                aside.failure = Some(failure);
                return None;
            }
        };
        let (device, dtype) = (rows.device(), FloatDType::from(rows.dtype()));
        let all =
            |shape: &[usize], dtype| B::float_empty(Shape::from(shape.to_vec()), &device, dtype);
        let whole = vec![
            all(&[ranks * batch, steps, dim], dtype),
            all(&[ranks * batch, steps], FloatDType::F32),
        ];
        let own = B::int_into_float(tokens.clone(), FloatDType::F32);
        let read = Many::from_tensors(vec![rows.clone(), own]);
        let mut whole = B::enqueue(read, Many::from_tensors(whole), work).into_tensors();
        let tokens = B::float_into_int(whole.pop()?, IntDType::I32);
        Some((whole.pop()?, tokens))
    })
}

/// Keeps a gradient of a leaf that is the sum over the ranks already.
#[cfg(feature = "autodiff")]
fn put_sum<B: EnqueueOps>(leaf: Leaf, sum: FloatTensor<B>) {
    ASIDE.with_borrow_mut(|aside| {
        let Some(aside) = aside else { return };
        let sum = match aside.sums.wide {
            true => B::float_cast(sum, FloatDType::F32),
            false => sum,
        };
        aside.summed.entry(leaf).or_default().push(Box::new(sum));
    });
}

impl Aside {
    fn put<B: EnqueueOps>(
        &mut self,
        leaf: Leaf,
        gradient: FloatTensor<B>,
    ) -> Option<FloatTensor<B>> {
        let bytes =
            |gradient: &FloatTensor<B>| gradient.shape().num_elements() * gradient.dtype().size();
        if bytes(&gradient) < LEAST {
            return Some(gradient);
        }
        let gradient = match self.sums.wide {
            true => B::float_cast(gradient, FloatDType::F32),
            false => gradient,
        };
        self.bytes += bytes(&gradient);
        self.waiting.push((leaf, Box::new(gradient)));
        self.begin = Self::begin::<B>;
        if self.bytes >= TOGETHER || self.waiting.len() == MANY {
            self.begin::<B>();
        }
        None
    }

    fn begin<B: EnqueueOps>(&mut self) {
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() || self.failure.is_some() {
            return;
        }
        let (leaves, gradients): (Vec<Leaf>, Vec<Gradient>) = waiting.into_iter().unzip();
        let gradients: Vec<_> = gradients.into_iter().map(own::<B>).collect();
        let vector =
            |gradient: &FloatTensor<B>| (gradient.shape().num_elements(), gradient.dtype());
        let vectors: Vec<_> = gradients.iter().map(vector).collect();
        match (self.sums.sum)(&vectors) {
            Ok(work) => {
                let gradients = Many::from_tensors(gradients);
                let sums = B::enqueue(Many::from_tensors(Vec::new()), gradients, work.beside());
                for (leaf, sum) in leaves.into_iter().zip(sums.into_tensors()) {
                    self.summed.entry(leaf).or_default().push(Box::new(sum));
                }
            }
            Err(failure) => self.failure = Some(failure),
        }
    }
}

/// [`Early`] on a backend.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait EarlySumOps: Backend {
    /// The summed gradients of a weight; absent on a backend without autodiff.
    #[fusion(default)]
    fn early_sum(weight: FloatTensor<Self>, early: Early) -> Maybe<Self> {
        let _ = (weight, early);
        Maybe::None
    }
}

#[cfg(feature = "flex")]
impl EarlySumOps for burn::backend::Flex {}

#[cfg(feature = "cube")]
impl EarlySumOps for burn_cubecl::CubeBackend {}
