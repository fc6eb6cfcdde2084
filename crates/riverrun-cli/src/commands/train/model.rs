//! The options of the model.

use riverrun_models::{AnyLanguageModelConfig, LanguageModelKind};
use riverrun_train::{RunConfig, TaskConfig};

use super::options::set;
use crate::args::TrainArgs;
use crate::failure::Failure;

/// Puts the options of the model that were given into a configuration whose task and training are set.
pub fn apply(args: &TrainArgs, config: &mut RunConfig) -> Result<(), Failure> {
    let steps = match &config.task {
        TaskConfig::SelectiveCopy(task) => {
            let marks = task.data_tokens.saturating_mul(2);
            config.training.context.saturating_add(marks)
        }
        TaskConfig::Text(_) => config.training.context,
    };
    let before = config.model.kind();
    let kind = args.model.unwrap_or(before);
    let [vocab, width, layers] = config.model.sizes();
    let (width, layers) = (args.width.unwrap_or(width), args.layers.unwrap_or(layers));
    let recurrent = matches!(kind, LanguageModelKind::Recurrent(_));
    if recurrent != matches!(before, LanguageModelKind::Recurrent(_))
        || (!recurrent && kind != before)
    {
        config.model = kind.config(vocab, width, layers, steps);
    }
    let unused: &[(&str, bool)] = match kind {
        LanguageModelKind::Recurrent(_) => &[
            ("--heads", args.heads.is_some()),
            ("--window", args.window.is_some()),
        ],
        LanguageModelKind::Griffin => &[
            ("--expansion", args.expansion.is_some()),
            ("--time-scale", args.time_scale.is_some()),
            ("--dropout", args.dropout.is_some()),
        ],
        LanguageModelKind::Gpt2 => &[
            ("--expansion", args.expansion.is_some()),
            ("--time-scale", args.time_scale.is_some()),
            ("--dropout", args.dropout.is_some()),
            ("--window", args.window.is_some()),
            ("--saved-states", args.saved_states.is_some()),
        ],
    };
    if let Some((name, _)) = unused.iter().find(|(_, given)| *given) {
        return Err(Failure::User(format!(
            "the model {kind} has no use for {name}"
        )));
    }
    match &mut config.model {
        AnyLanguageModelConfig::Recurrent(model) => {
            if let LanguageModelKind::Recurrent(cell) = kind {
                model.cell = cell;
            }
            (model.width, model.layers) = (width, layers);
            set(&args.expansion, &mut model.expansion);
            set(&args.time_scale, &mut model.time_scale);
            set(&args.dropout, &mut model.dropout);
            // A token must be kept for up to the whole sequence, so that is what the channels start from.
            if let (TaskConfig::SelectiveCopy(_), Some(context), None) =
                (&config.task, args.context, args.time_scale)
            {
                model.time_scale = context;
            }
        }
        AnyLanguageModelConfig::Griffin(model) => {
            (model.width, model.layers) = (width, layers);
            set(&args.heads, &mut model.heads);
            set(&args.window, &mut model.window);
        }
        AnyLanguageModelConfig::Gpt2(model) => {
            (model.width, model.layers) = (width, layers);
            set(&args.heads, &mut model.heads);
        }
        _ => {}
    }
    Ok(())
}
