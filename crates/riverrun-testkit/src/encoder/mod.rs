//! States of training runs as features.

pub mod check;

pub use riverrun_kernels::encoder::*;

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Report, Storage, Tensors,
    by_storage,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "encoder",
    about: "States of training runs as features",
    storages: &[Storage::F32],
    // One run at a time, where the encoder lives, and many at once.
    forms: |target| match target.is_cpu() {
        true => vec!["encoder", "encoder-batch"],
        false => vec!["encoder-batch"],
    },
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 0,
    shared: None,
    long: None,
};

/// Histories of every length, one more in every batch.
fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    const STEPS: [usize; 14] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 256, 500, 1100];
    let histories = [(256, 64), (1000, 1000), (32, 33), (32, 32), (33, 47)].into_iter();
    let cases = histories.flat_map(|(losses, gradients)| {
        let config = Config::default().with_history(losses, gradients);
        (1..=STEPS.len()).map(move |count| Runs {
            config,
            runs: (STEPS[..count].iter().enumerate())
                .map(|(seed, &steps)| check::random_run(steps, seed as u64))
                .collect(),
            single: !part.target.is_cpu(),
        })
    });
    if part.form == "encoder" {
        let run = |case: &Runs| Ok::<_, Failure>(case.one_by_one());
        return part.run_by::<E, _, _>(part.form, "cpu", cases, run, report);
    }
    #[cfg(feature = "ops")]
    part.run_ops::<E, _>(part.form, cases.clone(), report)?;
    part.run_all::<E, _>(part.form, cases, report)
}

/// Training runs.
#[derive(Debug, Clone)]
pub struct Runs {
    /// The lengths of histories.
    pub config: Config,
    /// Each with its steps.
    pub runs: Vec<Vec<Observation>>,
    /// Whether the form sums in `f32`.
    pub single: bool,
}

impl Runs {
    fn encoders(&self) -> Vec<StateEncoder> {
        let encoded = |run: &Vec<Observation>| check::encoded(self.config, run);
        self.runs.iter().map(encoded).collect()
    }

    /// Each run by its encoder.
    pub fn one_by_one(&self) -> Tensors {
        features(self.encoders().iter().flat_map(StateEncoder::encode))
    }

    fn reference(&self) -> impl Iterator<Item = [f64; FEATURES]> {
        self.runs
            .iter()
            .map(|run| check::reference(&self.config, run))
    }
}

fn features<T: Into<f64>>(numbers: impl IntoIterator<Item = T>) -> Tensors {
    Tensors::new([("features", numbers.into_iter().map(Into::into).collect())])
}

impl Case for Runs {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        features(self.reference().flatten())
    }

    fn allowed<E: Element>(&self, _: &Tensors) -> Tensors {
        let allowed = |run| (0..FEATURES).map(move |n| check::allowed(&run, n, self.single));
        features(self.reference().flat_map(allowed))
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let flat = FlatStates::new(&self.encoders())?;
        let each = [flat.losses_each, flat.gradients_each];
        let found = encode_flat(each, &flat.losses, &flat.gradients, &flat.scalars)?;
        Ok(features(found))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer::{download, poison};
        let flat = FlatStates::new(&self.encoders())?;
        let up = |x: &[f32]| client.create_from_slice(bytemuck::cast_slice(x));
        let length = flat.runs() * FEATURES;
        let args = gpu::Buffers {
            losses: up(&flat.losses),
            gradients: up(&flat.gradients),
            scalars: up(&flat.scalars),
            features: poison(client, dtype, length),
        };
        let each = [flat.losses_each, flat.gradients_each];
        gpu::encode(client, flat.runs(), each, &args)?;
        Ok(features(download(client, dtype, args.features, length)))
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        use riverrun::ops::{RunStates, encode_states};
        let states = RunStates::from_encoders(&self.encoders(), &on.plain())?;
        Ok(features(crate::op::download(encode_states(states)?)))
    }
}
