//! A subset of the kernels on the simulated GPU, within three minutes.

mod attention;
mod cells;
mod clusters;
mod few_rows;
mod matrix_state;
mod plan;
mod recurrence;
mod rollout;
mod rssm;
