//! `riverrun plan`: what a training run of a language model will take, before it is begun.

use std::io::{Write, stdout};

use riverrun_train::{MemoryPlan, RunConfig};

use super::memory::megabytes;
use super::train;
use crate::args::TrainArgs;
use crate::failure::Failure;

/// Prints the memory of a run by use: of the options of `riverrun train`, or of a run that exists.
pub fn run(args: &TrainArgs) -> Result<(), Failure> {
    let device = riverrun::device::parse(&args.device)?;
    let config = train::configuration(&train::with_format(args)?)?;
    let plan = match args.context_parallel.unwrap_or(1) {
        1 => config.memory_plan_on(&device)?,
        ranks => config.memory_plan_along_time(ranks)?,
    };
    let mut out = stdout().lock();
    if let Some(ranks) = args.context_parallel {
        writeln!(
            out,
            "a rank       with 1 of {ranks} pieces of every sequence"
        )?;
    }
    print(&mut out, &config, &plan)?;
    let spec = riverrun::device::name(&device);
    if let Some(memory) = riverrun::device::memory(&device) {
        let (free, total) = (megabytes(memory.free), megabytes(memory.total));
        writeln!(out, "{spec:<12} {free} free of {total}")?;
        if memory.free < plan.peak() {
            writeln!(
                out,
                "             not enough: try --accumulate, a smaller --batch, or --dtype bf16"
            )?;
        }
    }
    Ok(())
}

fn print(out: &mut impl Write, config: &RunConfig, plan: &MemoryPlan) -> Result<(), Failure> {
    let (parameters, tokens) = (plan.parameters, plan.tokens);
    writeln!(out, "parameters   {parameters}")?;
    if plan.learning < parameters {
        writeln!(out, "of them      {} learn", plan.learning)?;
    }
    writeln!(out, "weights      {}", megabytes(plan.weights))?;
    if plan.copy > 0 {
        let dtype = config.training.dtype;
        let copy = format!("in {dtype}");
        writeln!(out, "{copy:<12} {}", megabytes(plan.copy))?;
    }
    if plan.sums > 0 {
        writeln!(out, "sums         {}", megabytes(plan.sums))?;
    }
    writeln!(out, "gradients    {}", megabytes(plan.gradients))?;
    writeln!(out, "moments      {}", megabytes(plan.moments))?;
    writeln!(
        out,
        "activations  {}, of {tokens} tokens at once",
        megabytes(plan.activations)
    )?;
    writeln!(out, "working      {}", megabytes(plan.working))?;
    if plan.scratch > 0 {
        writeln!(out, "scratch      {}", megabytes(plan.scratch))?;
    }
    if plan.evaluation > 0 {
        writeln!(out, "evaluation   {}", megabytes(plan.evaluation))?;
    }
    if plan.average > 0 {
        writeln!(out, "average      {}", megabytes(plan.average))?;
    }
    if plan.hybrid > 0 {
        writeln!(out, "hybrid       {}", megabytes(plan.hybrid))?;
    }
    writeln!(out, "peak         {}", megabytes(plan.peak()))?;
    Ok(())
}
