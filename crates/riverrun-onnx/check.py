#!/usr/bin/env python3
"""Runs models in ONNX Runtime and holds their outputs against those beside them.

    cargo run -p riverrun-onnx --example test_data -- FOLDER && python3 check.py FOLDER      (needs onnx and onnxruntime)

Each subfolder has the layout of ONNX's test data. A model is checked by ONNX's own checker, shapes included, and run twice: with the
inputs beside it, and with one sequence of them, whose outputs have to be the same.
"""
import pathlib
import sys

import numpy
import onnx
import onnx.numpy_helper
import onnxruntime

# Sums of up to 16 products below 1, over 11 steps, in float32.
TOLERANCE = 1e-5


def tensors(folder, kind):
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in files]


def first_sequence(name, value):
    stacked = name in ("h0", "c0", "h_n", "c_n") and value.ndim == 3
    return value[:, :1] if stacked else value[:1]


worst, count = 0.0, 0
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    data = folder / "test_data_set_0"
    names = [[value.name for value in values] for values in (session.get_inputs(), session.get_outputs())]
    inputs, outputs = tensors(data, "input"), tensors(data, "output")
    assert (len(inputs), len(outputs)) == (len(names[0]), len(names[1])), (folder.name, names)
    for cut in (False, True):
        of = first_sequence if cut else (lambda name, value: value)
        found = session.run(None, {name: of(name, value) for name, value in zip(names[0], inputs)})
        for name, value, expected in zip(names[1], found, outputs):
            expected = of(name, expected)
            assert value.shape == expected.shape, (folder.name, name, value.shape, expected.shape)
            error = float(numpy.max(numpy.abs(value - expected)))
            assert error < TOLERANCE, (folder.name, name, error)
            worst, count = max(worst, error), count + 1
print(f"{count} outputs of ONNX Runtime {onnxruntime.__version__} are riverrun's, within {worst:.1e}")
assert count > 0
