import os

import pytest
import torch

from riverrun import _arrays
from riverrun.torch import _tensors


def nan_filled(empty):
    """Results that a kernel leaves unwritten show."""

    def filled(*args):
        x = empty(*args)
        x[...] = float("nan")
        return x

    return filled


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    torch.manual_seed(int(os.environ.get("RIVERRUN_SEED", "0")))
    # Two threads for the kernels. PyTorch's own operations are too small here for more than one.
    place = _tensors.place
    monkeypatch.setattr(_tensors, "place", lambda x: place(x) if _tensors.on_gpu(x) else 2)
    monkeypatch.setattr(_tensors, "empty", nan_filled(_tensors.empty))
    monkeypatch.setattr(_arrays, "empty", nan_filled(_arrays.empty))


def pytest_configure(config):
    torch.set_num_threads(1)
