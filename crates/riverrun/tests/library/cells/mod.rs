//! GRU, LSTM and Elman layers: against PyTorch, against `burn::nn`, and against themselves.

mod composed;
mod heads;
mod layouts;
mod net;
mod pytorch;
mod stacks;
