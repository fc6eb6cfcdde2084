"""Threads, forked and spawned processes, and memory."""

import gc
import os
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import riverrun
import riverrun.torch as rt


class Scans(Dataset):
    """Items that are computed by the kernels in the worker."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        a = torch.full((1, 200, 300), 0.5)
        return rt.linear_scan(a, torch.full_like(a, float(index)))[0, -1, 0], rt.GRU(4, 4)(torch.ones(3, 4))[0].shape[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(method):
    # The parent's threads run first, so that a fork finds them.
    rt.linear_scan(torch.rand(8, 200, 300), torch.rand(8, 200, 300))
    loader = DataLoader(Scans(), batch_size=2, num_workers=2, multiprocessing_context=method)
    values = torch.cat([batch[0] for batch in loader])
    torch.testing.assert_close(values, 2.0 * torch.arange(6))


def _in_child(function):
    """Whether `function` returns true in a forked process, within a minute."""
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    for _ in range(600):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        threading.Event().wait(0.1)
    os.kill(process, 9)
    os.waitpid(process, 0)
    return False


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_kernels_run():
    a, b = torch.rand(4, 500, 300), torch.rand(4, 500, 300)
    expected = rt.linear_scan(a, b)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            rt.linear_scan(a, b)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert _in_child(lambda: bool(torch.equal(rt.linear_scan(a, b), expected)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert torch.equal(rt.linear_scan(a, b), expected)


def test_threads_give_the_same_bits():
    layer = rt.GRU(16, 32, batch_first=True)
    x = torch.randn(4, 20, 16)
    a, b = torch.rand(4, 50, 64), torch.randn(4, 50, 64)
    expected = layer(x)[0].detach(), rt.linear_scan(a, b)
    failures = []

    def work():
        for _ in range(20):
            leaf = x.clone().requires_grad_()
            y, _ = layer(leaf)
            torch.autograd.grad(y.sum(), leaf)
            if not (torch.equal(y, expected[0]) and torch.equal(rt.linear_scan(a, b), expected[1])):
                failures.append("other bits")

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_other_threads_run_while_a_kernel_does():
    """A kernel that held the lock would let no other thread take a step."""
    x = torch.rand(64, 512, 512)
    steps, running, done = [0], threading.Event(), threading.Event()
    sys.setswitchinterval(1e-5)

    def count():
        running.set()
        while not done.is_set():
            steps[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    running.wait()
    try:
        # Between the two readings there is one call into the native module, without a Python step of this thread.
        arguments = _native_arguments(x)
        before = steps[0]
        riverrun._riverrun.scan(*arguments)
        after = steps[0]
    finally:
        done.set()
        counter.join()
        sys.setswitchinterval(0.005)
    assert after > before


def _native_arguments(x):
    from riverrun.torch import _tensors

    h = torch.empty_like(x)
    _native_arguments.kept = (x, h)
    views = [_tensors.view(x), _tensors.view(x)]
    return 1, "float32", "raw", tuple(x.shape), False, views, None, None, _tensors.array(h)


def test_references_over_many_calls():
    a, b = torch.rand(1, 2, 3), torch.rand(1, 2, 3)
    h0, reset = torch.rand(1, 3), torch.zeros(1, 2, dtype=torch.bool)
    w, u = torch.rand(9, 3), torch.rand(9, 3)
    kept = (a, b, h0, reset, w, u)
    native = riverrun._riverrun

    def calls(count):
        for _ in range(count):
            rt.linear_scan(a, b, h0, reset)
            rt.gru(a, w, u, None, None, h0, reset)

    calls(100)
    gc.collect()
    counts = [sys.getrefcount(x) for x in (*kept, None, native, native.scan)]
    objects = len(gc.get_objects())
    calls(5_000)
    gc.collect()
    after = [sys.getrefcount(x) for x in (*kept, None, native, native.scan)]
    # `None` is shared by the whole process, which counts a few of its own.
    assert after[:6] == counts[:6] and abs(after[6] - counts[6]) < 100 and after[7:] == counts[7:]
    assert len(gc.get_objects()) - objects < 100


def test_memory_over_many_backward_passes():
    resource = pytest.importorskip("resource")
    layer = rt.GRU(8, 16, batch_first=True)
    x = torch.randn(4, 50, 8)

    def calls(count):
        for _ in range(count):
            layer.zero_grad()
            layer(x)[0].sum().backward()

    calls(50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(1_000)
    # A call's results are 100 KiB: lost ones would be 100 MiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


def test_refused_calls_keep_nothing():
    a = torch.rand(1, 2, 3)
    count = sys.getrefcount(a)
    for _ in range(100):
        with pytest.raises(ValueError):
            rt.linear_scan(a, torch.rand(1, 2, 4))
    gc.collect()
    assert sys.getrefcount(a) == count
