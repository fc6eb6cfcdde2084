//! Ranks over a [`World`] and NCCL: each has a CUDA device, and numbers go from one to another.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use riverrun::StreamTransport;
use riverrun::training::{ENQUEUED, EarlySums, StreamWork, enqueue, on_device};
use riverrun_world::nccl::{Communicator, Element, Library, Queue, Span};
use riverrun_world::{Fingerprint, Transport, World};

use super::{Ranks, bucket, synced};
use crate::Error;

struct Joined {
    world: Arc<World>,
    communicator: Arc<Communicator>,
    device: Device,
}

/// NCCL ends no communicator that a recording has: those that were dropped before this are gone once the device has done its work.
impl Drop for Joined {
    fn drop(&mut self) {
        // A device or a world that has failed has told of it before.
        let _ = self.communicator.waiting(|| synced(&self.device));
    }
}

/// The ranks of a world by NCCL, each on a device of its own, with an id that rank 0 has made; and the way of states in groups of
/// `group` ranks along time.
pub(super) fn over_nccl(
    world: Arc<World>,
    library: &'static Library,
    id: &[u8],
    device: &Device,
    group: usize,
) -> Result<(Box<dyn Ranks>, Arc<dyn StreamTransport>), Error> {
    let communicator = on_device(device, || {
        // SAFETY: the context of the rank's device is current here.
        let connected = unsafe { Communicator::connect(&world, library, id) };
        connected.map_err(|error| Told(error.into()))
    });
    let communicator = Arc::new(communicator.map_err(|Told(error)| error)?);
    tracing::debug!("the ranks are connected by NCCL");
    let states = States {
        communicator: communicator.clone(),
        first: world.rank() / group.max(1) * group,
    };
    let joined = Joined {
        world,
        communicator,
        device: device.clone(),
    };
    Ok((Box::new(joined), Arc::new(states)))
}

/// An error, or the reason why there is no device.
struct Told(Error);

impl From<String> for Told {
    fn from(reason: String) -> Self {
        Self(Error::Unsupported(reason))
    }
}

fn element(dtype: DType) -> Option<Element> {
    match dtype {
        DType::F32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

/// The length of a vector, and what it has.
fn shape(vector: &Tensor<1>) -> Result<(usize, Element), riverrun::Error> {
    elements(vector.dims()[0], vector.dtype())
}

fn elements(length: usize, dtype: DType) -> Result<(usize, Element), riverrun::Error> {
    let unknown = || riverrun::Error::Unsupported(format!("NCCL with {dtype:?}"));
    Ok((length, element(dtype).ok_or_else(unknown)?))
}

/// A group of ranks of a world along time.
struct States {
    communicator: Arc<Communicator>,
    /// The rank of the world that is the group's first.
    first: usize,
}

impl States {
    /// Work with the place of a state and a rank of the group.
    fn work(
        &self,
        dtype: DType,
        length: usize,
        other: usize,
        operation: fn(Queue<'_>, Span, usize) -> riverrun_world::Result<()>,
        place: fn(&[u64], &[u64]) -> u64,
    ) -> Result<StreamWork, riverrun::Error> {
        let unknown = || riverrun::Error::HandOver(format!("NCCL sends no {dtype:?}"));
        let element = element(dtype).ok_or_else(unknown)?;
        let (communicator, other) = (self.communicator.clone(), self.first + other);
        Ok(StreamWork::new(move |stream, reads, writes| {
            // SAFETY: the stream is the device's, and the address is that of the state, for the work on that stream.
            let (queue, span) = unsafe {
                let span = Span::new(place(reads, writes), length, element);
                (communicator.on(stream), span)
            };
            operation(queue, span, other).map_err(|error| error.to_string())
        }))
    }
}

impl StreamTransport for States {
    fn send(&self, dtype: DType, length: usize, to: usize) -> Result<StreamWork, riverrun::Error> {
        let send = |mut queue: Queue<'_>, state, to| queue.send(state, to);
        self.work(dtype, length, to, send, |reads, _| reads[0])
    }

    fn receive(
        &self,
        dtype: DType,
        length: usize,
        from: usize,
    ) -> Result<StreamWork, riverrun::Error> {
        let receive = |mut queue: Queue<'_>, state, from| queue.recv(state, from);
        self.work(dtype, length, from, receive, |_, writes| writes[0])
    }
}

/// The memory of vectors, in the work that has their addresses.
fn spans(addresses: &[u64], shapes: &[(usize, Element)]) -> Vec<Span> {
    let vectors = addresses.iter().zip(shapes);
    // SAFETY: these are the addresses of the vectors, for the work on their stream.
    let span = |(address, (length, element)): (&u64, &(usize, Element))| unsafe {
        Span::new(*address, *length, *element)
    };
    vectors.map(span).collect()
}

/// Operations on vectors that are read, and others that are written.
type Operations = fn(Queue<'_>, &[Span], &[Span]) -> riverrun_world::Result<()>;

/// Work that has a communicator do operations on vectors of these lengths.
fn work(
    communicator: Arc<Communicator>,
    read_shapes: Vec<(usize, Element)>,
    write_shapes: Vec<(usize, Element)>,
    operations: Operations,
) -> StreamWork {
    StreamWork::new(move |stream, reads, writes| {
        // SAFETY: the stream is the device's, and outlives its work.
        let queue = unsafe { communicator.on(stream) };
        let (reads, writes) = (spans(reads, &read_shapes), spans(writes, &write_shapes));
        operations(queue, &reads, &writes).map_err(|error| error.to_string())
    })
}

/// Vectors `times` as long.
fn shapes(
    vectors: &[(usize, DType)],
    times: usize,
) -> Result<Vec<(usize, Element)>, riverrun::Error> {
    let vectors = vectors.iter();
    vectors
        .map(|(length, dtype)| elements(times * length, *dtype))
        .collect()
}

/// Writes the vectors of all ranks one after another, in one launch.
fn gather_all(mut queue: Queue<'_>, parts: &[Span], wholes: &[Span]) -> riverrun_world::Result<()> {
    queue.grouped(|queue| {
        let mut pairs = parts.iter().zip(wholes);
        pairs.try_for_each(|(part, whole)| queue.all_gather(*part, *whole))
    })
}

/// Replaces vectors by their sums, in one launch.
fn sum_all(mut queue: Queue<'_>, _: &[Span], vectors: &[Span]) -> riverrun_world::Result<()> {
    queue.grouped(|queue| {
        vectors
            .iter()
            .try_for_each(|vector| queue.all_reduce(*vector))
    })
}

impl Joined {
    /// Enqueues operations on vectors, in the order of launches and after the sums that have begun early.
    fn enqueue(
        &self,
        reads: Vec<Tensor<1>>,
        writes: Vec<Tensor<1>>,
        operations: Operations,
    ) -> Result<Vec<Tensor<1>>, Error> {
        let of = |vectors: &[Tensor<1>]| vectors.iter().map(shape).collect::<Result<Vec<_>, _>>();
        let work = work(
            self.communicator.clone(),
            of(&reads)?,
            of(&writes)?,
            operations,
        );
        Ok(enqueue(reads, writes, work)?)
    }

    fn one(
        &self,
        reads: Vec<Tensor<1>>,
        write: Tensor<1>,
        operation: fn(Queue<'_>, &[Span], &[Span]) -> riverrun_world::Result<()>,
    ) -> Result<Tensor<1>, Error> {
        let mut written = self.enqueue(reads, vec![write], operation)?;
        Ok(written.pop().expect("one is written"))
    }
}

impl Joined {
    /// As many vectors as possible go into one launch.
    fn sum_each(&self, vectors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let mut sums = Vec::with_capacity(vectors.len());
        let mut vectors = vectors.into_iter().peekable();
        while vectors.peek().is_some() {
            let group = vectors.by_ref().take(ENQUEUED).collect();
            sums.extend(self.enqueue(Vec::new(), group, sum_all)?);
        }
        Ok(sums)
    }
}

impl Ranks for Joined {
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn on_device(&self) -> bool {
        true
    }

    fn early_sums(&self, wide: bool) -> Option<EarlySums> {
        let (ranks, summing, gathering) = (
            self.size(),
            self.communicator.clone(),
            self.communicator.clone(),
        );
        let sums = EarlySums::new(wide, move |vectors| {
            Ok(work(
                summing.clone(),
                Vec::new(),
                shapes(vectors, 1)?,
                sum_all,
            ))
        });
        Some(sums.with_gather(ranks, move |vectors| {
            let (parts, wholes) = (shapes(vectors, 1)?, shapes(vectors, ranks)?);
            Ok(work(gathering.clone(), parts, wholes, gather_all))
        }))
    }

    fn sum(&mut self, vectors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let (buckets, mut sums) = bucket::fill(vectors)?;
        let mut whole = Vec::with_capacity(buckets.len());
        for bucket in &buckets {
            whole.push(bucket.whole()?);
        }
        let alone: Vec<usize> = (0..sums.len()).filter(|at| sums[*at].is_some()).collect();
        whole.extend(alone.iter().filter_map(|at| sums[*at].take()));
        let mut whole = self.sum_each(whole)?.into_iter();
        for bucket in buckets {
            bucket.empty(&whole.next().expect("a sum for each"), &mut sums)?;
        }
        for at in alone {
            sums[at] = whole.next();
        }
        Ok(sums.into_iter().flatten().collect())
    }

    fn scatter(&mut self, whole: Tensor<1>) -> Result<Tensor<1>, Error> {
        let len = whole.dims()[0] / self.size();
        let part = Tensor::empty([len], (&whole.device(), whole.dtype()));
        self.one(vec![whole], part, |mut queue, whole, part| {
            queue.reduce_scatter(whole[0], part[0])
        })
    }

    fn gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, Error> {
        let len = part.dims()[0] * self.size();
        let whole = Tensor::empty([len], (&part.device(), part.dtype()));
        self.one(vec![part], whole, |mut queue, part, whole| {
            queue.all_gather(part[0], whole[0])
        })
    }

    fn broadcast(&mut self, vector: Tensor<1>) -> Result<Tensor<1>, Error> {
        self.one(Vec::new(), vector, |mut queue, _, vector| {
            queue.broadcast(vector[0], 0)
        })
    }

    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.world.agree(name, Fingerprint::of(bytes))?)
    }

    fn waiting(&mut self, wait: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
        // The first cause is better than what a device says whose work was ended.
        self.communicator.waiting(wait)?
    }
}
