//! The rollouts' kernels, launched by the random problems of their checks.

use std::error::Error;

use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::gpu::{Routine, missing};
use riverrun_testkit::rollout::{Decode, Problem};

use super::Writer;

/// Every routine: with the weights in registers and without, one group of units a plane and two.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let problems = [
        (
            "5x50x256",
            Problem::new(5, 256, 50).with_stochastic(256),
            true,
        ),
        (
            "5x50x256-linear",
            Problem::new(5, 256, 50).with_decode(Decode::Linear),
            false,
        ),
        ("3x10x64", Problem::new(3, 64, 10), false),
        ("2x5x33", Problem::new(2, 33, 5).with_features(7), false),
        ("1x2x288", Problem::new(1, 288, 2), false),
        ("1x2x1024", Problem::new(1, 1024, 2), true),
    ];
    for (name, problem, sample) in problems {
        for routine in Routine::ALL {
            let skipped = writer.sample && !sample;
            if skipped || missing(&writer.recorder.client, &problem, routine).is_some() {
                continue;
            }
            writer.write(&format!("rollout/{name}-{}", routine.name()), |client| {
                Case::random(problem, 1)
                    .gpu(client, Some(routine))
                    .map(drop)
            })?;
        }
    }
    Ok(())
}
