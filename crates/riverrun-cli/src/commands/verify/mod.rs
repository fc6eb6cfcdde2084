//! `riverrun verify`: every kernel on this machine against the float64 oracle.
//!
//! The work is divided into parts: an operation, a storage type and a form of the operation. On the CPU they run one after the
//! other. On a GPU most of their time is spent in compiling kernels, which a process does one at a time; so every part runs in
//! a process of its own, as many at once as there are cores.

mod attention;
mod block_diagonal;
mod cell;
mod convolution;
mod encoder;
mod gelu;
mod linear;
mod model;
mod processes;
mod recompute;
mod recurrence;
mod refill;
mod rg_lru;
mod rollout;
mod rssm;
mod second;
mod stress;
mod table;
mod tensors;
mod training;

use riverrun::device::{self, DeviceInfo};
use riverrun_testkit::{Operation, Part, Report, Storage, Target};

use crate::args::VerifyArgs;
use crate::failure::Failure;
use table::Table;

/// The formats of 16 bits: their kernels differ in how numbers are loaded and stored.
const HALVES: Option<[Storage; 2]> = Some([Storage::F16, Storage::Bf16]);

/// The operations, in the order of the table.
const OPERATIONS: &[&Operation] = &[
    &Operation {
        name: "recurrence",
        about: "Linear recurrences: every gate and routine, forward and every gradient",
        storages: &Storage::ALL,
        forms: recurrence::forms,
        check: recurrence::verify,
        weight: 2,
        shared: HALVES,
        long: Some("recurrences of more than 4096 steps, 256 channels or 2^31 elements"),
    },
    &Operation {
        name: "recompute",
        about: "Linear recurrences that save fewer states and recompute the others",
        storages: &[Storage::F32, Storage::F16, Storage::Bf16],
        forms: recompute::forms,
        check: recompute::verify,
        weight: 2,
        shared: HALVES,
        long: None,
    },
    &Operation {
        name: "second-derivative",
        about: "Second derivatives of the linear recurrence",
        storages: &[Storage::F32],
        forms: |_| vec!["raw"],
        check: second::verify,
        weight: 1,
        shared: None,
        long: None,
    },
    &Operation {
        name: "block-diagonal",
        about: "The block-diagonal recurrence",
        storages: &[Storage::F32, Storage::F64],
        forms: |_| vec!["block-diagonal"],
        check: block_diagonal::verify,
        weight: 1,
        shared: None,
        long: None,
    },
    &Operation {
        name: "cell",
        about: "GRU, LSTM and Elman cells: kernels and layers",
        storages: &[Storage::F32, Storage::F16, Storage::Bf16],
        forms: cell::forms,
        check: cell::verify,
        weight: 3,
        shared: HALVES,
        long: Some("cells of more than 40 steps or 128 hidden units"),
    },
    &riverrun_testkit::norm::OPERATION,
    &Operation {
        name: "gelu",
        about: "GELU",
        storages: &Storage::ALL,
        forms: |_| vec!["gelu", "geglu"],
        check: gelu::verify,
        weight: 0,
        shared: None,
        long: None,
    },
    &riverrun_testkit::loss::OPERATION,
    &riverrun_testkit::embedding::OPERATION,
    &Operation {
        name: "attention",
        about: "Attention and every gradient",
        storages: &Storage::ALL,
        forms: attention::forms,
        check: attention::verify,
        weight: 3,
        shared: None,
        long: Some("attention of more than 130 queries or 200 keys"),
    },
    &Operation {
        name: "conv",
        about: "The short causal convolution with its state",
        storages: &Storage::ALL,
        forms: |_| vec!["convolution", "rg-lru gates"],
        check: |part, table| match part.form {
            "convolution" => convolution::verify(part, table),
            _ => rg_lru::verify(part, table),
        },
        weight: 1,
        shared: None,
        long: None,
    },
    &riverrun_testkit::optimizer::OPERATION,
    &Operation {
        name: "linear",
        about: "Linear layers, MLPs and the vendor's matmuls",
        storages: &Storage::ALL,
        forms: linear::forms,
        check: linear::verify,
        weight: 2,
        shared: None,
        long: Some("linear layers of more than 128 rows; on a GPU, Burn's own matmuls"),
    },
    &Operation {
        name: "refill",
        about: "Tensors that are filled again in place",
        storages: &[Storage::F32],
        forms: |_| vec!["refill"],
        check: refill::verify,
        weight: 0,
        shared: None,
        long: None,
    },
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
        name: "rollout",
        about: "Rollouts of ensembles",
        storages: &[Storage::F32],
        forms: rollout::forms,
        check: rollout::verify,
        weight: 2,
        shared: None,
        long: Some("rollouts of more than 5 members or 100 steps"),
    },
    &Operation {
        name: "encoder",
        about: "States of training runs as features",
        storages: &[Storage::F32],
        forms: encoder::forms,
        check: encoder::verify,
        weight: 0,
        shared: None,
        long: None,
    },
    &Operation {
        name: "rssm",
        about: "The recurrent state-space model",
        storages: &[Storage::F32, Storage::Bf16],
        forms: rssm::forms,
        check: rssm::verify,
        weight: 3,
        shared: None,
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

/// Runs the checks and prints a table.
pub fn run(args: &VerifyArgs, quiet: bool) -> Result<(), Failure> {
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
    let operations = OPERATIONS
        .iter()
        .filter(|operation| chosen(args, operation));
    let left_out = operations.filter_map(|operation| operation.long);
    let mut left_out: Vec<&str> = match args.long {
        true => Vec::new(),
        false => left_out.collect(),
    };
    if !args.long && args.op.is_none() && targets.iter().any(|target| !target.is_cpu()) {
        left_out.push(
            "on GPUs, every gate, cell and recorded model in every storage type; every routine of every gate and every \
             problem of the cells in 16 bits",
        );
    }
    table.end(args, &left_out)
}

/// The names of the operations, for the command line.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(|operation| operation.name)
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
    for operation in OPERATIONS
        .iter()
        .filter(|operation| chosen(args, operation))
    {
        let forms = (operation.forms)(target);
        if forms.is_empty() && target.is_cpu() {
            let reason = "there are no launches to record";
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
    let operations = OPERATIONS
        .iter()
        .filter(|operation| chosen(args, operation));
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
