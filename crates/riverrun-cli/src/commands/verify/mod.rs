//! `riverrun verify`: every kernel on this machine against the float64 oracle.
//!
//! The work is divided into parts: an operation, a storage type and a form of the operation. On the CPU they run one after the
//! other. On a GPU most of their time is spent in compiling kernels, which a process does one at a time; so they are divided
//! among processes, as many as there are cores.

mod model;
mod processes;
mod stress;
mod table;
mod training;
mod worker;

use riverrun::device::{self, DeviceInfo};
use riverrun_testkit::{OPERATIONS, Operation, Part, Report, Storage, Target};
use table::Table;

use crate::args::VerifyArgs;
use crate::failure::Failure;

/// What is checked by way of the trainer, after the operations of the table.
const TRAINING: &[&Operation] = &[
    &Operation {
        name: "training",
        about: "Training steps that are recorded and run again",
        storages: &[Storage::F32, Storage::Bf16],
        forms: training::forms,
        check: training::verify,
        weight: 4,
        shared: Some([Storage::F32, Storage::Bf16]),
        long: None,
    },
    &Operation {
        name: "model",
        about: "Griffin and GPT-2: whole sequences, a chunk and steps, every gradient",
        storages: &[Storage::F32],
        forms: model::forms,
        check: model::verify,
        weight: 4,
        shared: None,
        long: None,
    },
    &Operation {
        name: "stress",
        about: "Several threads and processes at once: the same bits as alone",
        storages: &[Storage::F32],
        forms: stress::forms,
        check: stress::verify,
        weight: 5,
        shared: None,
        long: Some("more than 10 000 launches from several threads and processes at once"),
    },
];

/// Everything that can be verified, in the order of the report.
fn operations() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().chain(TRAINING).copied()
}

/// Runs the checks and prints a table.
pub fn run(args: &VerifyArgs, quiet: bool) -> Result<(), Failure> {
    if args.worker {
        return worker::serve();
    }
    let devices = match args.device.as_str() {
        "all" => device::list(),
        spec => vec![device::info(&device::parse(spec)?)],
    };
    let targets: Vec<Target> = devices.into_iter().map(target).collect::<Result<_, _>>()?;
    if let Some(only) = &args.only {
        known_form(args, only, &targets)?;
    }
    let mut table = Table::new(args.json_rows)?;
    for target in &targets {
        let parts = parts(args, target, &mut table)?;
        if args.json_rows || target.is_cpu() {
            for part in &parts {
                table.check(part)?;
            }
        } else {
            processes::run(&parts, target, quiet, &mut table)?;
        }
    }
    let operations = operations().filter(|operation| chosen(args, operation));
    let left_out = operations.filter_map(|operation| operation.long);
    let mut left_out: Vec<&str> = match args.long {
        true => Vec::new(),
        false => left_out.collect(),
    };
    if !args.long && args.op.is_none() && targets.iter().any(|target| !target.is_cpu()) {
        left_out.push(
            "on GPUs, every gate, cell, form of a matrix state and recorded model in every storage type; every routine of every gate and every \
             problem of the cells in 16 bits",
        );
    }
    table.end(args, &left_out)
}

/// The names of the operations, for the command line.
pub fn names() -> impl Iterator<Item = &'static str> {
    operations().map(|operation| operation.name)
}

/// A device as a target; refuses one whose kernels this build cannot launch, instead of checking the CPU's.
fn target(info: DeviceInfo) -> Result<Target, Failure> {
    #[cfg(feature = "gpu")]
    let (client, known) = {
        let client = riverrun::device::client(&info.device);
        let known = client.is_some();
        (client, known)
    };
    #[cfg(not(feature = "gpu"))]
    let known = false;
    if !known && info.spec != "cpu" {
        return Err(Failure::Bug(format!(
            "{} cannot be verified: this build has no kernels for it",
            info.spec
        )));
    }
    Ok(Target {
        name: info.spec,
        software: info.software,
        device: info.device,
        #[cfg(feature = "gpu")]
        client,
    })
}

fn skip(table: &mut Table, target: &Target, what: &str, reason: &str) -> Result<(), Failure> {
    let skipped = table.skip(&target.name, what, reason);
    skipped.map_err(|failure| Failure::Bug(failure.0))
}

/// Whether the operation was asked for. The stress takes the device for itself and has to be asked for by name.
fn chosen(args: &VerifyArgs, operation: &Operation) -> bool {
    match args.op.as_deref() {
        Some(op) => op == operation.name,
        None => operation.name != "stress",
    }
}

/// The requested parts on one device.
fn parts<'a>(
    args: &VerifyArgs,
    target: &'a Target,
    table: &mut Table,
) -> Result<Vec<Part<'a>>, Failure> {
    let mut parts = Vec::new();
    for operation in operations().filter(|operation| chosen(args, operation)) {
        let forms = (operation.forms)(target);
        if forms.is_empty() && target.is_cpu() {
            let reason = "GPUs alone have it";
            skip(table, target, operation.name, reason)?;
        }
        for &storage in operation.storages {
            if args.dtype.is_some_and(|dtype| dtype != storage) || !target.may_have(storage) {
                continue;
            }
            if !target.supports(storage) {
                let what = format!("{} {}", operation.name, storage.name());
                let reason = "the device does not support this storage type";
                skip(table, target, &what, reason)?;
                continue;
            }
            let all = args.long || args.dtype.is_some() || args.only.is_some() || target.is_cpu();
            let turn = match operation.shared {
                Some(types) if !all && types.iter().all(|&one| target.supports(one)) => {
                    types.iter().position(|&one| one == storage)
                }
                _ => None,
            };
            let wanted = |(n, form): &(usize, &&'static str)| {
                turn.is_none_or(|turn| n % 2 == turn)
                    && args.only.as_deref().is_none_or(|only| only == **form)
            };
            let forms = forms.iter().enumerate().filter(wanted);
            parts.extend(forms.map(|(_, &form)| Part {
                target,
                operation,
                storage,
                form,
                long: args.long,
            }));
        }
    }
    Ok(parts)
}

/// Refuses a form that the operation has on no device.
fn known_form(args: &VerifyArgs, only: &str, targets: &[Target]) -> Result<(), Failure> {
    let operations = operations().filter(|operation| chosen(args, operation));
    let mut known: Vec<&str> = operations
        .flat_map(|operation| targets.iter().flat_map(|target| (operation.forms)(target)))
        .collect();
    known.dedup();
    if known.contains(&only) {
        return Ok(());
    }
    Err(Failure::User(format!(
        "unknown form `{only}`; one of: {}",
        known.join(", ")
    )))
}
