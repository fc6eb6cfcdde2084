import pytest
import torch

from riverrun.torch import _tensors


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    torch.manual_seed(0)
    # Two threads for the kernels. PyTorch's own operations are too small here for more than one.
    monkeypatch.setattr(_tensors, "threads", lambda: 2)


def pytest_configure(config):
    torch.set_num_threads(1)
