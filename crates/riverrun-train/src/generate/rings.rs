//! The keys and values of recorded steps, in rings that grow where a stream outlives them.

use burn::tensor::{Int, Tensor};
use riverrun::training::Places;
use riverrun_models::{AnyLanguageModel, AnyLmState};

/// The least room of a ring that may have to grow.
const LEAST: usize = 256;

/// The rings of a stream of a model with attention.
pub(super) struct Rings {
    places: Places,
    /// Positions that `places` has.
    positions: usize,
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
        let most = position + steps.max(1);
        let positions = most.min(LEAST.max(2 * position));
        let (device, dtype) = (cache.keys.device(), cache.keys.dtype());
        let places = Places::new(rotary, positions, &device, dtype);
        let mut rings = Vec::with_capacity(layers.len());
        for (layer, cache) in layers.into_iter().zip(&mut caches) {
            let seen = layer.options.window.unwrap_or(most).min(most);
            let room = seen.min(positions).max(cache.keys.dims()[1]);
            **cache = cache.clone().into_ring(room);
            rings.push(Ring { seen, room });
        }
        let rings = Self {
            places,
            positions,
            position,
            rings,
        };
        (state, Some(rings))
    }

    /// Steps until one has no place, or would overwrite one that is still seen.
    pub fn left(&self) -> usize {
        let rings = self.rings.iter().filter(|ring| ring.room < ring.seen);
        let rooms = rings.map(|ring| ring.room);
        let least = rooms.fold(self.positions, usize::min);
        least.saturating_sub(self.position)
    }

    /// The state of the step at a position, `[1]`.
    pub fn at(&self, mut state: AnyLmState, position: Tensor<1, Int>) -> AnyLmState {
        let place = self.places.at(position);
        for cache in state.caches() {
            cache.place = Some(place.clone());
        }
        state
    }

    /// The position of the next step.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Counts steps.
    pub fn advance(&mut self, steps: usize) {
        self.position += steps;
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
