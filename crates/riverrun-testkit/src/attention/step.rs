//! Single steps over a ring of keys and values, on GPUs: the result within the tolerance of attention, the ring exactly.

use riverrun_kernels::attention::Shape;

use super::check::{Case as Attention, Options};
use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "attention-step",
    about: "single steps of attention over a ring of keys and values",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: |target| match target.is_cpu() {
        true => vec![],
        false => vec!["attention-step"],
    },
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: None,
};

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    // B, H, Hk, D, R, the position, and the number of the options. Every other D and cap is another kernel.
    let sizes = [
        ([2, 4, 2, 64, 200, 0], 0),
        ([2, 4, 2, 64, 200, 63], 0),
        ([1, 4, 1, 64, 1, 5], 0),
        ([3, 4, 2, 64, 1000, 999], 0),
        ([2, 4, 2, 64, 130, 1001], 0),
        ([1, 8, 2, 256, 700, 300], 0),
        ([1, 3, 3, 20, 90, 89], 8),
        ([2, 1, 1, 7, 70, 200], 0),
        ([0, 2, 1, 64, 10, 3], 0),
    ];
    let sizes = sizes.into_iter().enumerate();
    let cases = sizes.map(|(n, (sizes, options))| Step::random(sizes, options, n as u64));
    part.run_all::<E, _>("attention-step", cases, report)
}

/// An attention of one query, whose last key and value are the step's own, and the ring before the step.
#[derive(Debug, Clone)]
pub struct Step {
    attention: Attention,
    /// Keys that fit into the ring.
    room: usize,
    position: usize,
    /// `[B, R, Hk, D]`, with other numbers where nothing is kept.
    keys: Vec<f64>,
    /// As the keys.
    values: Vec<f64>,
}

impl Step {
    /// Random numbers for `[B, H, Hk, D, R]` and a position; options by their number.
    pub fn random(
        [batch, heads, key_heads, dim, room, position]: [usize; 6],
        options: usize,
        seed: u64,
    ) -> Self {
        let shape = Shape {
            batch,
            queries: 1,
            keys: room.min(position + 1),
            heads,
            key_heads,
            dim,
        };
        let attention = Attention::random(shape, Options::nth(options, shape.keys), seed);
        let mut random = Random::new(seed + 100);
        let mut ring = |of: &[f64]| {
            let (own, each) = (position % room, key_heads * dim);
            // Large, so that a key that is not there would show.
            let mut ring = random.vec(batch * room * each, 100.0);
            for sequence in 0..batch {
                let places = (0..shape.keys).filter(|&place| place != own);
                for (n, place) in places.enumerate() {
                    let (from, to) = (sequence * shape.keys + n, sequence * room + place);
                    ring[to * each..][..each].copy_from_slice(&of[from * each..][..each]);
                }
            }
            ring
        };
        let (keys, values) = (ring(&attention.k), ring(&attention.v));
        Self {
            attention,
            room,
            position,
            keys,
            values,
        }
    }

    /// The step's own rows of keys or values, `[B, Hk, D]`.
    fn own(&self, of: &[f64]) -> Vec<f64> {
        let shape = self.attention.problem.shape;
        let each = shape.key_heads * shape.dim;
        let rows = of.chunks_exact(each).skip(shape.keys - 1);
        rows.step_by(shape.keys).flatten().copied().collect()
    }

    /// A ring after the step.
    fn after(&self, ring: &[f64], of: &[f64]) -> Vec<f64> {
        let shape = self.attention.problem.shape;
        let each = shape.key_heads * shape.dim;
        let (mut ring, own) = (ring.to_vec(), self.own(of));
        for sequence in 0..shape.batch {
            let to = sequence * self.room + self.position % self.room;
            ring[to * each..][..each].copy_from_slice(&own[sequence * each..][..each]);
        }
        ring
    }
}

impl Case for Step {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let mut numbers = self.attention.numbers();
        numbers.extend([&mut self.keys, &mut self.values]);
        numbers
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let Attention { k, v, .. } = &self.attention;
        let o = self.attention.oracle().get("o").to_vec();
        let (keys, values) = (self.after(&self.keys, k), self.after(&self.values, v));
        Tensors::new([("o", o), ("keys", keys), ("values", values)])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let limits = self.attention.limits::<E>(&self.attention.oracle());
        truth.map(|name, i, _| match name {
            "o" => limits.get("o")[i],
            _ => 0.0,
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        Err(Error::Routine {
            routine: "cpu",
            reason: "the kernel of steps over a ring is for GPUs".into(),
        })
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use cubecl::ir::{ElemType, IntKind};
        use riverrun_kernels::attention::gpu;

        use crate::transfer::{download, poison, upload};
        let mut problem = self.attention.problem;
        let (shape, dim) = (problem.shape, problem.shape.dim);
        let (k, v) = (self.own(&self.attention.k), self.own(&self.attention.v));
        let mut qkv = Vec::new();
        for sequence in 0..shape.batch {
            for (rows, heads) in [
                (&self.attention.q, shape.heads),
                (&k, shape.key_heads),
                (&v, shape.key_heads),
            ] {
                qkv.extend_from_slice(&rows[sequence * heads * dim..][..heads * dim]);
            }
        }
        problem.shape.keys = self.room;
        let args = gpu::Step {
            qkv: upload(client, dtype, &qkv),
            keys: upload(client, dtype, &self.keys),
            values: upload(client, dtype, &self.values),
            position: client.create_from_slice(&(self.position as i32).to_le_bytes()),
            index: ElemType::Int(IntKind::I32),
            o: poison(client, dtype, shape.query_elements()),
        };
        gpu::step(client, &problem, dtype, &args)?;
        let read = |handle, count| download(client, dtype, handle, count);
        let ring = self.keys.len();
        Ok(Tensors::new([
            ("o", read(args.o, shape.query_elements())),
            ("keys", read(args.keys, ring)),
            ("values", read(args.values, ring)),
        ]))
    }
}
