"""The package itself: its import, its command, its types."""

import inspect
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import riverrun
import riverrun.torch as rt


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options)


def test_import_loads_neither_numpy_nor_pytorch():
    code = "import sys, riverrun; print([name for name in ('numpy', 'torch') if name in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_operations_without_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import riverrun, numpy as np\n"
        "print(riverrun.linear_scan(np.full((1, 3, 1), 0.5), np.ones((1, 3, 1))).ravel().tolist())"
    )
    assert python("-c", code).stdout.strip() == "[1.0, 1.5, 1.75]"


def test_commands():
    result = python("-m", "riverrun", "verify")
    assert result.returncode == 0 and " 0 failed on " in result.stdout
    rows = json.loads(python("-m", "riverrun", "verify", "--json").stdout)
    assert all(row["passed"] for row in rows)
    result = python("-m", "riverrun", "devices", "--json")
    assert json.loads(result.stdout) == riverrun.devices()
    assert python("-m", "riverrun", "devices").stdout.startswith("cpu: ")
    # On one thread: PyTorch's own operations are small here.
    result = python("-m", "riverrun", "bench", "--small", "--seconds", "0.01", "--threads", "1")
    assert result.returncode == 0 and "nn.GRU 2x16x32: riverrun" in result.stdout, result.stderr
    assert python("-m", "riverrun").returncode == 2
    assert python("-m", "riverrun", "--version").stdout.strip() == riverrun.__version__


def test_threads_from_the_environment():
    code = "import riverrun; print(riverrun.get_num_threads())"
    three, many = ({**os.environ, "RIVERRUN_NUM_THREADS": value} for value in ("3", "many"))
    assert python("-c", code, env=three).stdout.strip() == "3"
    assert "found 'many'" in python("-c", code, env=many).stderr


def test_types_and_documents():
    files = resources.files(riverrun)
    assert files.joinpath("py.typed").is_file()
    stub = files.joinpath("_riverrun.pyi").read_text()
    for name in dir(riverrun._riverrun):
        if not name.startswith("_"):
            assert f"def {name}(" in stub, name
    for module in (riverrun, rt, rt.nn):
        for name in module.__all__:
            member = getattr(module, name)
            if callable(member):
                assert inspect.getdoc(member), f"{module.__name__}.{name}"


@pytest.mark.parametrize("name", ["copying", "characters", "sensors"])
def test_examples_learn(name, tmp_path):
    script = Path(__file__).parent.parent / "examples" / f"{name}.py"
    result = python(str(script), "--quick", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    losses = [float(line.split("loss ")[1].split()[0].strip(",;")) for line in result.stdout.splitlines() if "loss " in line]
    assert len(losses) >= 2 and losses[-1] < losses[0], result.stdout
