//! Griffin, GPT-2 and models of layers with heads, beside attention, against themselves in float64 on the CPU, with the same weights: a whole sequence, the same sequence as a
//! chunk and steps, and the gradient of every parameter.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, FloatDType, Gradients, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun_models::{
    AnyLanguageModel, AnyLanguageModelConfig, Gpt2Config, GriffinConfig, HeadKind,
    LanguageModelConfig, RecurrentKind,
};
use riverrun_testkit::check::{Comparison, distance, largest};
use riverrun_testkit::op::{Copied, download};
use riverrun_testkit::{Failure, Part, Report, Row, Target};

/// Tokens of the sequence, and those of its chunk: the others are steps.
const STEPS: [usize; 2] = [8, 5];

const VOCAB: usize = 13;

pub(super) fn forms(_: &Target) -> Vec<&'static str> {
    let heads = HeadKind::ALL.iter().map(|kind| kind.name());
    ["griffin", "gpt2"].into_iter().chain(heads).collect()
}

/// Small models: most of the time on a GPU is that of compiling their kernels.
fn config(form: &str) -> AnyLanguageModelConfig {
    if let Ok(kind) = form.parse() {
        return LanguageModelConfig::new(VOCAB, 16, 2)
            .with_cell(RecurrentKind::Heads(kind))
            .with_heads(Some(2))
            .with_attention_every(Some(2))
            .into();
    }
    match form {
        // The third block is the first with attention, whose window ends within the sequence.
        "griffin" => GriffinConfig::new(VOCAB, 16, 3, 2).with_window(4).into(),
        _ => {
            let config = Gpt2Config::new(VOCAB, 16, 2, 2);
            config.with_positions(STEPS[0]).into()
        }
    }
}

/// Checks a model.
pub(super) fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let Ok(host) = riverrun::device::parse("cpu") else {
        let reason = "there is no CPU in this build to compare with";
        return table.skip(part.device(), part.form, reason);
    };
    let config = config(part.form);
    let [_, _, layers] = config.sizes();
    host.seed(5);
    let start = config.init(&host);
    let copied = |device: &Device, dtype| {
        start.clone().map(&mut Copied {
            device: &device.clone().autodiff(),
            dtype,
        })
    };
    let exact = run(&copied(&host, FloatDType::F64), &host)?;
    let device = &part.target.device;
    let model = copied(device, FloatDType::F32);
    // Burn fuses elementwise operations as it meets them: the first run may round some of them differently, in the last bit.
    run(&model, device)?;
    let (found, again) = (run(&model, device)?, run(&model, device)?);
    let comparisons: Vec<Comparison> = found
        .iter()
        .zip(&exact)
        .map(|((tensor, found), (_, exact))| Comparison {
            tensor: tensor.clone(),
            error: distance(found, exact),
            allowed: allowed(tensor, exact, layers),
        })
        .collect();
    let mut row = Row::default();
    row.case(&comparisons, found == again);
    table.row(part.device(), part.form, "f32", "tensors", row)
}

/// A block rounds a dozen times, and the norms may double each rounding; a gradient goes through the forward pass and through
/// a backward pass of twice the operations.
fn allowed(tensor: &str, exact: &[f64], layers: usize) -> f64 {
    let passes = if tensor.starts_with("d ") { 3 } else { 1 };
    let roundings = (24 * layers * passes) as f64;
    let scale = largest(exact.iter().map(|x| x.abs()));
    roundings * f64::from(f32::EPSILON) / 2.0 * scale.max(1.0)
}

/// The logits of the whole sequence, those of its chunk and steps, and the gradients.
fn run(model: &AnyLanguageModel, device: &Device) -> Result<Vec<(String, Vec<f64>)>, Failure> {
    let [steps, chunk] = STEPS;
    let device = device.clone().autodiff();
    let tokens: Vec<i32> = (0..steps as i32).map(|t| t * t % VOCAB as i32).collect();
    let tokens = TensorData::new(tokens, [1, steps]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &device);
    let (logits, _) = model.try_forward(tokens.clone(), Sequence::new())?;
    let mut found = vec![("logits".to_owned(), download(logits.clone()))];

    let plain = model.valid();
    let inputs = tokens.inner();
    let start = inputs.clone().narrow(1, 0, chunk);
    let (first, mut state) = plain.try_forward(start, Sequence::new())?;
    let mut parts = vec![first];
    for t in chunk..steps {
        let token = inputs.clone().narrow(1, t, 1);
        let (logits, next) = plain.try_forward(token, Sequence::from(Some(state)))?;
        parts.push(logits);
        state = next;
    }
    let streamed = download(Tensor::cat(parts, 1));
    found.push(("steps".into(), streamed));

    let wave: Vec<f32> = (0..steps * VOCAB)
        .map(|i| ((i * 37) % 23) as f32 / 16.0 - 0.6875)
        .collect();
    let wave = TensorData::new(wave, [1, steps, VOCAB]);
    let wave = Tensor::<3>::from_data(wave, &device).cast(logits.dtype());
    let gradients = (logits * wave).sum().backward();
    let mut collected = Collected {
        gradients: &gradients,
        path: Vec::new(),
        found,
    };
    model.visit(&mut collected);
    Ok(collected.found)
}

/// The gradients by the names of the parameters.
struct Collected<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: Vec<(String, Vec<f64>)>,
}

impl ModuleVisitor for Collected<'_> {
    fn enter_module(&mut self, name: &str, _kind: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (name, value) = (format!("d {}", self.path.join(".")), param.val());
        let gradient = match value.grad(self.gradients) {
            Some(gradient) => download(gradient),
            None => vec![f64::NAN; value.shape().num_elements()],
        };
        self.found.push((name, gradient));
    }
}
