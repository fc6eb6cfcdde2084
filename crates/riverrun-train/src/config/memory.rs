//! The memory of a language model's run: a lower bound, by which a run is refused, and an estimate.

use burn::tensor::Device;
use riverrun::ops::AttentionOptions;
use riverrun::training::attention_scratch;
use riverrun_models::{AnyLanguageModelConfig, HeadSizes, MixerConfig};

use crate::objective::check_along_time;
use crate::{Error, Precision, RunConfig, TaskConfig};

/// The bytes that a training run of a language model takes, by use.
///
/// On a GPU the sum is the peak of the memory pools, but for other scratch memory of libraries and what the pools leave unused; on the
/// CPU the program itself comes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Numbers of the model.
    pub parameters: u64,
    /// Those that learn: all, or those of LoRA's factors.
    pub learning: u64,
    /// Tokens whose activations are in memory at once: those of a batch, or of a part of one.
    pub tokens: u64,
    /// The weights, in `f32`.
    pub weights: u64,
    /// The copy of the weights in which a step computes, if the arithmetic is not `f32`.
    pub copy: u64,
    /// The sums of weights and LoRA's changes, which the backward pass reads.
    pub sums: u64,
    /// The gradients; with LoRA also those of the sums, which come before those of the factors.
    pub gradients: u64,
    /// AdamW's two moments.
    pub moments: u64,
    /// The activations that the backward pass reads, and the logits with their gradient.
    pub activations: u64,
    /// The gradients of a block's widest activations, of one block at a time.
    pub working: u64,
    /// The scratch memory of an attention's backward pass, of one block at a time.
    pub scratch: u64,
    /// On a GPU, the logits of an evaluation and their softmax: a recorded step keeps its memory to itself.
    pub evaluation: u64,
    /// The average of the weights, where there is one.
    pub average: u64,
    /// The earlier weights and updates that [hybrid](crate::hybrid) training keeps.
    pub hybrid: u64,
}

/// Copies of the weights that hybrid training keeps.
const HYBRID: u64 = 10;

impl MemoryPlan {
    /// All of it.
    pub fn peak(&self) -> u64 {
        let parts = [
            self.weights,
            self.copy,
            self.sums,
            self.gradients,
            self.moments,
            self.activations,
            self.working,
            self.scratch,
            self.evaluation,
            self.average,
            self.hybrid,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl RunConfig {
    /// The memory of the run, by formula from the model's [size](riverrun_models::ModelSize): nothing is allocated. With fewer
    /// [saved states](crate::TrainingConfig::saved_states) than all it is an upper bound.
    ///
    /// # Errors
    /// Sizes that do not fit into 64 bits.
    pub fn memory_plan(&self) -> Result<MemoryPlan, Error> {
        self.plan_of(self.tokens_at_once())
    }

    /// [`memory_plan`](Self::memory_plan) of a rank where every sequence is divided along time among the `ranks` ranks of the one
    /// group that has the whole batch: see [`Setup::spread_over_time`](crate::Setup::spread_over_time).
    ///
    /// # Errors
    /// A model whose sequences cannot be divided, or not among as many; sizes that do not fit into 64 bits.
    pub fn memory_plan_along_time(&self, ranks: usize) -> Result<MemoryPlan, Error> {
        check_along_time(&self.model, self.length(), ranks)?;
        // The longest piece.
        let steps = self.length().div_ceil(ranks as u128);
        self.plan_of(self.rows_at_once().saturating_mul(steps))
    }

    /// The plan with the activations of so many tokens at once.
    fn plan_of(&self, tokens: u128) -> Result<MemoryPlan, Error> {
        let size = self.model.size()?;
        let bytes = self.bytes_per_number() as u64;
        let all = |numbers: u64, each: u64| numbers.saturating_mul(each);
        let tokens = u64::try_from(tokens).unwrap_or(u64::MAX);
        let model = size.parameters;
        let (factors, beside) = self.factors().unwrap_or_default();
        let parameters = model.saturating_add(factors);
        let learning = match self.lora {
            Some(_) => factors,
            None => parameters,
        };
        Ok(MemoryPlan {
            parameters,
            learning,
            tokens,
            weights: all(parameters, 4),
            copy: if bytes < 4 { all(parameters, bytes) } else { 0 },
            sums: all(beside, bytes),
            gradients: all(learning, 4).saturating_add(all(beside, bytes)),
            moments: all(learning, 8),
            activations: all(all(size.saved_per_token, tokens), bytes),
            working: all(all(self.widest(), tokens), bytes),
            scratch: 0,
            evaluation: 0,
            average: match self.training.average {
                Some(_) => all(parameters, 4),
                None => 0,
            },
            hybrid: match &self.training.hybrid {
                Some(hybrid) => {
                    all(parameters, 4 * HYBRID).saturating_add(hybrid.predictor_bytes())
                }
                None => 0,
            },
        })
    }

    /// The numbers of LoRA's factors, and of the weights beside them. Nothing is allocated: a model's weights are made when they are
    /// read.
    fn factors(&self) -> Option<(u64, u64)> {
        let lora = self.lora.as_ref()?;
        let cpu = riverrun::device::parse("cpu");
        let model = self.model.init(&cpu.unwrap_or_default());
        Some(lora.numbers(&model))
    }

    /// [`memory_plan`](Self::memory_plan) with what a device adds: the scratch memory that its libraries take for attention, and the
    /// memory of evaluations beside recorded steps.
    ///
    /// # Errors
    /// The errors of [`memory_plan`](Self::memory_plan).
    pub fn memory_plan_on(&self, device: &Device) -> Result<MemoryPlan, Error> {
        let mut plan = self.memory_plan()?;
        if let Some(sizes) = self.attention() {
            let dtype = self.training.dtype.dtype().into();
            let options = AttentionOptions::causal();
            plan.scratch = attention_scratch(device, dtype, sizes, options) as u64;
        }
        if !riverrun::device::is_cpu(device) {
            let [vocab, ..] = self.model.sizes();
            let rows = (self.training.batch as u128).saturating_mul(self.length());
            let logits = rows.saturating_mul(vocab as u128 * self.bytes_per_number());
            plan.evaluation = u64::try_from(logits.saturating_mul(2)).unwrap_or(u64::MAX);
        }
        Ok(plan)
    }

    /// The sizes `[B, T, H, D]` of the attention of a block, if the model has any.
    fn attention(&self) -> Option<[usize; 4]> {
        let (width, heads) = match &self.model {
            AnyLanguageModelConfig::Griffin(model) => (model.width, model.heads),
            AnyLanguageModelConfig::Gpt2(model) => (model.width, model.heads),
            AnyLanguageModelConfig::Recurrent(model) => {
                model.attention_every?;
                let sizes = HeadSizes::new(model.width, model.heads, 1);
                (sizes.width, sizes.heads)
            }
            AnyLanguageModelConfig::Decoder(model) => {
                let attention = model.blocks.iter().find_map(|block| match block {
                    MixerConfig::Attention(attention) => Some(attention),
                    _ => None,
                })?;
                let dim = attention
                    .head_dim
                    .unwrap_or(model.width / attention.heads.max(1));
                (attention.heads.checked_mul(dim)?, attention.heads)
            }
            _ => return None,
        };
        let training = &self.training;
        let rows = training.batch / training.accumulate.max(1);
        let steps = usize::try_from(self.length()).ok()?;
        Some([rows, steps, heads, width.checked_div(heads)?])
    }

    /// Numbers of a token: the MLP's inner features, or the inputs and states of the recurrence.
    fn widest(&self) -> u64 {
        let wide = |x: usize, times: u64| times.saturating_mul(x as u64);
        let factor = match &self.model {
            AnyLanguageModelConfig::Recurrent(model) => {
                wide(model.mlp, 2).max(wide(model.expansion, 3))
            }
            // Gate, up and their product.
            AnyLanguageModelConfig::Griffin(model) => wide(model.mlp, 3),
            AnyLanguageModelConfig::Gpt2(model) => wide(model.mlp, 2),
            AnyLanguageModelConfig::Decoder(model) => return wide(model.mlp.unwrap_or(0), 3),
            AnyLanguageModelConfig::Rwkv(model) => match model.inner {
                Some(inner) => return wide(inner, 2),
                None => 8,
            },
            _ => 0,
        };
        let [_, width, _] = self.model.sizes();
        wide(width, factor)
    }

    fn bytes_per_number(&self) -> u128 {
        match self.training.dtype {
            Precision::F32 => 4,
            Precision::F16 | Precision::Bf16 => 2,
        }
    }

    /// The tokens of a batch, or of a part of one.
    fn tokens_at_once(&self) -> u128 {
        self.rows_at_once().saturating_mul(self.length())
    }

    /// The rows of a batch, or of a part of one.
    fn rows_at_once(&self) -> u128 {
        let training = &self.training;
        training.batch as u128 / training.accumulate.max(1) as u128
    }

    /// The bytes of the model's weights; more than any machine has for a model that cannot exist.
    pub fn weight_bytes(&self) -> u128 {
        match self.model.size() {
            Ok(size) => 4 * u128::from(size.parameters),
            Err(_) => u128::MAX,
        }
    }

    /// The bytes that a training step takes, at least: weights, moments, gradients, and the activations of a batch, or of
    /// a part of one, that the backward pass reads.
    pub fn step_bytes(&self) -> u128 {
        let wide = |x: usize| x as u128;
        let (size, tokens) = (self.bytes_per_number(), self.tokens_at_once());
        // The residual stream at both branches, the MLP's inner features before and after GELU, and the states.
        let features = match &self.model {
            AnyLanguageModelConfig::Recurrent(model) => wide(model.width)
                .saturating_mul(2 + 2 * wide(model.mlp) + wide(model.expansion))
                .saturating_mul(wide(model.layers))
                .saturating_add(wide(model.vocab)),
            model => match model.size() {
                Ok(size) => size.saved_per_token.into(),
                Err(_) => u128::MAX,
            },
        };
        let activations = tokens.saturating_mul(features).saturating_mul(size);
        // Weights, two moments, gradients; with LoRA the weights.
        let copies = if self.lora.is_some() { 1 } else { 4 };
        let copies = copies + self.training.hybrid.as_ref().map_or(0, |_| HYBRID.into());
        (copies * self.weight_bytes().min(u128::MAX / 16)).saturating_add(activations)
    }

    /// The tokens of a training sequence.
    pub(super) fn length(&self) -> u128 {
        let context = self.training.context as u128;
        match &self.task {
            TaskConfig::SelectiveCopy(task) => context.saturating_add(2 * task.data_tokens as u128),
            TaskConfig::Text(_) => context,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_of_the_right_size_and_do_not_overflow() {
        let mut config = RunConfig::selective_copy();
        // 3 layers of about 2·64·256 + 64·256 + 8·64·64: 0.2 million weights.
        assert!((400_000..1_200_000).contains(&config.weight_bytes()));
        for field in 0..6 {
            let mut config = config.clone();
            let AnyLanguageModelConfig::Recurrent(model) = &mut config.model else {
                panic!("the default is a recurrent model");
            };
            *[
                &mut model.width,
                &mut model.layers,
                &mut model.mlp,
                &mut model.expansion,
                &mut config.training.batch,
                &mut config.training.context,
            ][field] = usize::MAX;
            assert!(config.step_bytes() > 1 << 64);
        }
        let before = config.step_bytes();
        config.training.accumulate = 4;
        assert!(config.step_bytes() < before);
    }

    #[test]
    fn what_hybrid_training_keeps_is_counted() {
        let mut config = RunConfig::selective_copy();
        let (plain, least) = (config.memory_plan().unwrap(), config.step_bytes());
        config.training.hybrid = Some(crate::hybrid::HybridConfig::default());
        let plan = config.memory_plan().unwrap();
        assert_eq!(plan.peak(), plain.peak() + 10 * plain.weights);
        assert_eq!(config.step_bytes(), least + 10 * config.weight_bytes());
    }
}
