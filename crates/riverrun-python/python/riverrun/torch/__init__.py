"""riverrun under PyTorch: recurrences, cells, norms and losses, forward and backward, on tensors where they are.

Tensors are on the CPU or on an NVIDIA GPU. Layers are in `riverrun.torch.nn`, and here under their names. On the CPU operations
take `torch.get_num_threads()` threads, and results do not depend on them; on a GPU they run on the current stream.
"""

from riverrun.torch import nn
from riverrun.torch._cuda import fault
from riverrun.torch._cell import gru, lstm, rnn
from riverrun.torch._matrix_state import (
    chunk_gated_delta_rule,
    chunk_gla,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gla,
    fused_recurrent_kda,
)
from riverrun.torch._rows import cross_entropy, rms_norm
from riverrun.torch._scan import gated_scan, linear_scan, min_gru, min_lstm, rg_lru
from riverrun.torch._transformers import use_in_transformers
from riverrun.torch.nn import GRU, LSTM, RGLRU, RNN, MinGRU, MinLSTM

__all__ = [
    "GRU",
    "LSTM",
    "RGLRU",
    "RNN",
    "MinGRU",
    "MinLSTM",
    "chunk_gated_delta_rule",
    "chunk_gla",
    "chunk_kda",
    "cross_entropy",
    "fault",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gla",
    "fused_recurrent_kda",
    "gated_scan",
    "gru",
    "linear_scan",
    "lstm",
    "min_gru",
    "min_lstm",
    "nn",
    "rg_lru",
    "rms_norm",
    "rnn",
    "use_in_transformers",
]
