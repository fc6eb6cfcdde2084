//! The GPU form: the whole sequence in one launch, on NVIDIA's tensor cores.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `exchange` | how cubes that run at once learn each other's results |
//! | `product` | the recurrent product, weights in registers |
//! | `gates` | the cells' formulas |
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

pub use args::{Backward, Forward};
pub use launch::{backward, forward, handover_fault};

use cubecl::client::Client;

use super::Problem;
use crate::recurrence::gpu::Dtype;

/// Why the persistent routine cannot run a problem on this device, if it cannot.
pub fn missing(client: &Client, problem: &Problem, dtype: Dtype) -> Option<String> {
    plan::missing(client, problem, dtype)
}

/// How the persistent routine cuts a problem, for tables: forward, then backward.
pub fn describe(client: &Client, problem: &Problem, dtype: Dtype) -> String {
    let text = |backward| match plan::cut(client, problem, dtype, backward) {
        Some(cut) => format!(
            "{} cubes x {} groups of {} rows, {} planes",
            cut.cubes,
            cut.groups,
            8 * cut.product.cols,
            cut.product.planes
        ),
        None => "none".into(),
    };
    format!("{} | {}", text(false), text(true))
}
