//! The keys and values of recorded steps, in rings that grow where a stream outlives them.

use riverrun::Error;
use riverrun::training::Place;
use riverrun_models::{AnyLanguageModel, AnyLmState};

/// The least room of a ring that may have to grow.
const LEAST: usize = 256;

/// The rings of a stream of a model with attention, and its place.
pub(super) struct Rings {
    /// `None` only while it is refilled.
    place: Option<Place>,
    /// The position of the next step.
    position: usize,
    rings: Vec<Ring>,
}

struct Ring {
    /// Steps that the layer sees, itself among them, of a stream of the most steps.
    seen: usize,
    /// Places.
    room: usize,
}

impl Rings {
    /// The state with its keys and values in rings, for a stream that takes at most `steps` further steps; no rings for a model
    /// without attention.
    pub fn of(
        model: &AnyLanguageModel,
        mut state: AnyLmState,
        steps: usize,
    ) -> (AnyLmState, Option<Self>) {
        let (layers, mut caches) = (model.attentions(), state.caches());
        let (Some(layer), Some(cache)) = (layers.first(), caches.first()) else {
            return (state, None);
        };
        let (position, rotary) = (cache.position, layer.rotary);
        let place = Place::new(rotary, position, &cache.keys.device(), cache.keys.dtype());
        let mut rings = Vec::with_capacity(layers.len());
        for (layer, cache) in layers.into_iter().zip(&mut caches) {
            let most = position + steps.max(1);
            let seen = layer.options.window.unwrap_or(most).min(most);
            let room = seen.min(LEAST.max(2 * position)).max(cache.keys.dims()[1]);
            **cache = cache.clone().into_ring(room);
            rings.push(Ring { seen, room });
        }
        let rings = Self {
            place: Some(place),
            position,
            rings,
        };
        (state, Some(rings))
    }

    /// Whether the next step would overwrite one that is still seen.
    pub fn full(&self) -> bool {
        let mut rings = self.rings.iter();
        rings.any(|ring| ring.room < ring.seen && self.position >= ring.room)
    }

    /// The place of this step; the next call gives that of the next one.
    ///
    /// # Errors
    /// [`Error::Shared`] where the last step's place is still in use.
    pub fn next(&mut self) -> Result<Place, Error> {
        let place = self.place.take().expect("it is back after each step");
        let place = place.refill(self.position)?;
        self.position += 1;
        self.place = Some(place.clone());
        Ok(place)
    }

    /// The state before the step of the last [`next`](Self::next), which was not made, its keys and values in order.
    pub fn before(mut self, state: AnyLmState) -> AnyLmState {
        self.position -= 1;
        self.unrolled(state)
    }

    /// The state after these steps, its keys and values in order.
    pub fn unrolled(&self, mut state: AnyLmState) -> AnyLmState {
        for (cache, ring) in state.caches().into_iter().zip(&self.rings) {
            let kept = self.position.min(ring.room).min(ring.seen.max(1) - 1);
            *cache = cache.clone().from_ring(self.position, kept);
        }
        state
    }
}

/// The state of a step at this place.
pub(super) fn at(mut state: AnyLmState, place: Option<&Place>) -> AnyLmState {
    for cache in state.caches() {
        cache.place = place.cloned();
    }
    state
}
