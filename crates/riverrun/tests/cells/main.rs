//! GRU, LSTM and Elman layers: against PyTorch, against `burn::nn`, and against themselves.

#[path = "../common/mod.rs"]
mod common;
mod composed;
#[path = "../golden/mod.rs"]
mod golden;
mod heads;
mod layouts;
mod net;
mod pytorch;
mod stacks;
