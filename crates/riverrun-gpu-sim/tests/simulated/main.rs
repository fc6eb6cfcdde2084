//! A subset of the kernels on the simulated GPU, within three minutes.

mod attention;
mod attention_step;
mod cells;
mod clusters;
mod delta_step;
mod draw;
mod elementwise;
mod few_rows;
mod matrix_state;
mod plan;
mod recurrence;
mod rollout;
mod rssm;
mod tuned;
