//! The GPU form: the whole sequence in one launch, on NVIDIA's tensor cores.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `exchange` | how cubes that run at once learn each other's results |
//! | `weights`, `product` | the weights that a cube keeps, and their product with the state |
//! | `gates` | the cells' formulas |
//! | `words` | pairs of numbers in memory |
//! | `forward`, `backward` | the passes |
//! | `plan`, `launch` | from a problem to launches |

mod args;
mod backward;
mod exchange;
mod forward;
mod gates;
mod launch;
mod plan;
mod product;
mod tuning;
mod weights;
mod words;

pub use args::{Backward, Forward};
pub use launch::{backward, forward, handover_fault};
pub use tuning::Tuning;

use cubecl::client::Client;

use super::Problem;
use crate::gpu::Dtype;

/// Why the persistent routine cannot run a problem on this device, if it cannot.
pub fn missing(client: &Client, problem: &Problem, dtype: Dtype) -> Option<String> {
    plan::missing(client, problem, dtype)
}

/// How the persistent routine cuts a problem, for tables: forward, then backward.
pub fn describe(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    tuning: Option<Tuning>,
) -> String {
    let text = |backward| {
        let cut = match tuning {
            Some(tuning) => plan::cut(client, problem, dtype, backward, tuning),
            None => plan::choose(client, problem, dtype, backward),
        };
        match cut {
            Some(cut) => format!(
                "{}x{} cubes of {}u {}r {}p kept {}/{} peek {}",
                cut.cubes,
                cut.groups,
                cut.product.units,
                8 * cut.product.cols,
                cut.product.planes,
                cut.product.kept,
                cut.product.blocks(),
                cut.product.peek
            ),
            None => "none".into(),
        }
    };
    format!("{} | {}", text(false), text(true))
}
