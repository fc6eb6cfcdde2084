//! Hints for each error of a run: the flag to change.

use riverrun_train::Error;

/// The error in the command line's words: fields by their options, and what else to try.
pub fn explain(error: Error) -> String {
    let hint = match &error {
        Error::Value {
            field,
            value,
            reason,
        } => return format!("{} {value}: {reason}", option(field)),
        Error::ShortText { .. } => "use a shorter --context or a longer text",
        Error::Parts { .. } => "choose an --accumulate that divides --batch",
        Error::RunExists(_) => "continue it with --resume, or choose another folder with --out",
        Error::NotEmpty(_) => "choose another folder with --out",
        Error::Diverged { .. } => "try a lower --lr or a longer --warmup",
        Error::NotKept { .. } => "choose one of these with --from-step, or leave it out",
        Error::StepsDone { .. } => "leave --steps out, or ask for more",
        Error::Memory { .. } | Error::Riverrun(riverrun::Error::OutOfMemory { .. }) => {
            "lower --batch, --context or --width, or use --accumulate N or --saved-states none"
        }
        Error::Recording(_) => "leave --graph out",
        Error::AlongTime(_) => "leave --context-parallel out",
        Error::Spread(_) => "start one process",
        _ => return error.to_string(),
    };
    format!("{error}: {hint}")
}

/// The option that sets a field of the configuration, or the field where none does.
fn option(field: &str) -> String {
    if let Some(setting) = field.strip_prefix("hybrid_") {
        return format!("--hybrid: {setting}");
    }
    match field {
        "beta_1" | "beta_2" | "epsilon" | "clip" | "report_every" | "format" | "vocab" | "mlp" => {
            format!("config.json: {field}")
        }
        _ => format!("--{}", field.replace('_', "-")),
    }
}
