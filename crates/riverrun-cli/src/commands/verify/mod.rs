//! `riverrun verify`: every kernel on this machine against the float64 oracle.

mod cell;
mod linear;
mod recurrence;
mod rows;
mod table;
mod training;

use riverrun::device::{self, DeviceInfo};

use crate::args::VerifyArgs;
use crate::failure::Failure;
use table::Table;

/// An operation that can be verified.
struct Operation {
    name: &'static str,
    /// Checks it on one device, and adds to the table.
    check: fn(&VerifyArgs, &DeviceInfo, &mut Table) -> Result<(), Failure>,
}

/// The operations, in the order of the table. `check` skips, with its reason, what a device does not have.
const OPERATIONS: &[Operation] = &[
    Operation {
        name: "recurrence",
        check: recurrence::verify,
    },
    Operation {
        name: "cell",
        check: cell::verify,
    },
    Operation {
        name: "norm",
        check: rows::norms,
    },
    Operation {
        name: "loss",
        check: rows::loss,
    },
    Operation {
        name: "optimizer",
        check: rows::optimizer,
    },
    Operation {
        name: "linear",
        check: linear::verify,
    },
    Operation {
        name: "training",
        check: training::verify,
    },
];

/// Runs the checks and prints a table.
pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let chosen = |operation: &&Operation| args.op.as_deref().is_none_or(|op| op == operation.name);
    if let Some(op) = &args.op
        && !OPERATIONS.iter().any(|operation| chosen(&operation))
    {
        let names: Vec<&str> = OPERATIONS.iter().map(|operation| operation.name).collect();
        return Err(Failure::User(format!(
            "unknown operation `{op}`; one of: {}",
            names.join(", ")
        )));
    }
    let devices = match args.device.as_str() {
        "all" => device::list(),
        spec => {
            let wanted = device::name(&device::parse(spec)?);
            device::list()
                .into_iter()
                .filter(|info| info.spec == wanted)
                .collect()
        }
    };
    let mut table = Table::new()?;
    for info in &devices {
        for operation in OPERATIONS.iter().filter(chosen) {
            (operation.check)(args, info, &mut table)?;
        }
    }
    table.end()
}

/// Whether a storage type was asked for.
fn wanted(args: &VerifyArgs, dtype: &str) -> bool {
    args.dtype.as_deref().is_none_or(|wanted| wanted == dtype)
}
