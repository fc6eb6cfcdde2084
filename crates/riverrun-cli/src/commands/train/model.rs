//! The options of the model.

use riverrun_models::{AnyLanguageModelConfig, HeadKind, LanguageModelKind, RecurrentKind};
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
    let whole = matches!(kind, LanguageModelKind::Decoder | LanguageModelKind::Rwkv);
    if recurrent != matches!(before, LanguageModelKind::Recurrent(_))
        || (!recurrent && kind != before)
        || (whole && config.model.sizes() != [vocab, width, layers])
    {
        config.model = kind.config(vocab, width, layers, steps);
    }
    // A resumed run has the attention that it was begun with.
    let attention = match &config.model {
        AnyLanguageModelConfig::Recurrent(model) => model.attention_every,
        _ => None,
    };
    let attention = args.attention_every.or(attention).is_some();
    let heads = match kind {
        LanguageModelKind::Recurrent(RecurrentKind::Heads(kind)) => Some(kind),
        _ => None,
    };
    let widens = heads.is_none_or(HeadKind::widens);
    let unused: &[(&str, bool)] = match kind {
        LanguageModelKind::Recurrent(_) => &[
            (
                "--heads",
                args.heads.is_some() && heads.is_none() && !attention,
            ),
            ("--window", args.window.is_some() && !attention),
            ("--time-scale", args.time_scale.is_some() && heads.is_some()),
            ("--expansion", args.expansion.is_some() && !widens),
        ],
        LanguageModelKind::Griffin => &[
            ("--attention-every", args.attention_every.is_some()),
            ("--expansion", args.expansion.is_some()),
            ("--time-scale", args.time_scale.is_some()),
            ("--dropout", args.dropout.is_some()),
        ],
        LanguageModelKind::Gpt2 | LanguageModelKind::Decoder | LanguageModelKind::Rwkv => &[
            ("--heads", args.heads.is_some() && whole),
            ("--attention-every", args.attention_every.is_some()),
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
            let given = [
                (args.heads, &mut model.heads),
                (args.attention_every, &mut model.attention_every),
                (args.window, &mut model.window),
            ];
            for (given, place) in given {
                *place = given.or(*place);
            }
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
