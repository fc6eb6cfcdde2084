import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pytest_configure(config):
    # Two threads: what the smallest machine has.
    torch.set_num_threads(2)
