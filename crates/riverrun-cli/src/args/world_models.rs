//! Options of `riverrun bench rollout`, `step`, `encoder` and `rssm`.

use clap::Args;

use super::common::Common;
use super::{Sizes, Storage};

/// Options of `riverrun bench rollout`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench rollout --device cuda:0 --members 5,64 --steps 50 --json rollout.json"
)]
pub struct BenchRolloutArgs {
    /// Where it is measured, and where the results go
    #[command(flatten)]
    pub common: Common,
    /// Members of the ensemble, separated by commas: the first at every number of steps, the others at the middle one
    #[arg(long, value_name = "E", value_delimiter = ',', default_value = "5,1,2,16,64,256", value_parser = positive())]
    pub members: Vec<usize>,
    /// Steps ahead, separated by commas
    #[arg(long, value_name = "Y", value_delimiter = ',', default_value = "10,25,50,75,100", value_parser = positive())]
    pub steps: Vec<usize>,
    /// Hidden units of a member
    #[arg(long, value_name = "H", default_value_t = 256, value_parser = positive())]
    pub hidden: usize,
    /// Classes of the categorical [default: as many as hidden units]
    #[arg(long, value_name = "S", value_parser = positive())]
    pub stochastic: Option<usize>,
    /// Features
    #[arg(long, value_name = "I", default_value_t = 64, value_parser = positive())]
    pub features: usize,
}

/// Options of `riverrun bench step`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench step --device cuda:0 --cells gru,lstm --hidden 256,1024 --batch 1,16 --json step.json"
)]
pub struct BenchStepArgs {
    /// Where it is measured, and where the results go
    #[command(flatten)]
    pub common: Common,
    /// Cells: gru, gru-reset-before, lstm, elman-tanh, elman-relu, separated by commas
    #[arg(
        long,
        value_name = "CELLS",
        value_delimiter = ',',
        default_value = "gru"
    )]
    pub cells: Vec<String>,
    /// Hidden units, separated by commas
    #[arg(long, value_name = "H", value_delimiter = ',', default_value = "64,128,256,512,1024,2048", value_parser = positive())]
    pub hidden: Vec<usize>,
    /// Sequences, separated by commas
    #[arg(long, value_name = "B", value_delimiter = ',', default_value = "1,16,64", value_parser = positive())]
    pub batch: Vec<usize>,
    /// Numbers of the input
    #[arg(long, value_name = "I", default_value_t = 64, value_parser = positive())]
    pub input: usize,
    /// Steps of the one launch that a single step is compared with
    #[arg(long, value_name = "T", default_value_t = 256, value_parser = positive())]
    pub steps: usize,
}

/// Options of `riverrun bench encoder`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  riverrun bench encoder --device cuda:0 --json encoder.json")]
pub struct BenchEncoderArgs {
    /// Where it is measured, and where the results go
    #[command(flatten)]
    pub common: Common,
    /// Training runs at once, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,64,512,4096", value_parser = positive())]
    pub runs: Vec<usize>,
}

/// Options of `riverrun bench rssm`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  riverrun bench rssm --device cuda:0 --sizes 12m,50m,200m --dtypes bf16 --json rssm.json"
)]
pub struct BenchRssmArgs {
    /// Where it is measured, and where the results go
    #[command(flatten)]
    pub common: Common,
    /// Sizes: small, 12m, 50m, 200m, separated by commas
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "12m"
    )]
    pub sizes: Vec<String>,
    /// Formats of the arithmetic, f32 or bf16, separated by commas [default: f32 on the CPU, bf16 on a GPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    pub dtypes: Vec<Storage>,
    /// Sequences and steps that are observed, BxT
    #[arg(long, value_name = "SHAPE", default_value = "16x64")]
    pub observe: Sizes<2>,
    /// Starts and steps that are imagined, BxT
    #[arg(long, value_name = "SHAPE", default_value = "1024x15")]
    pub imagine: Sizes<2>,
}

fn positive() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(1..=1 << 20)
}
