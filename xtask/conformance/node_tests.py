"""Node tests of TensorScatter that onnx lacks, as a module in the style of the tests of onnx."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

# The cases of the corpus, with the names of the tests.
CASES = {
    "circular_batch_above_capacity": "ring-modulo-coordinate/batch-above-capacity",
    "circular_heads_above_capacity": "ring-modulo-coordinate/heads-above-capacity",
    "circular_index_above_capacity": "ring-index-at-or-above-capacity/above-capacity",
    "circular_negative_index": "ring-negative-index/two-rows",
    "circular_full_length": "update-length/whole-ring",
    "full_length": "update-length/whole-cache",
    "no_write_indices": "absent-indices/two-inputs",
    "circular_no_write_indices": "absent-indices/ring",
    "4d_axis1": "axis/one-of-rank-4",
    "circular_4d_axis1": "axis/one-of-rank-4-ring",
    "last_axis": "axis/last",
    "2d": "rank/two",
    "empty_update": "no-rows/linear",
    "circular_empty_update": "no-rows/ring",
}

# The element types of tests that repeat one case in another type.
TYPES = ["float16", "bfloat16", "float8_e4m3fn", "int8", "int64", "uint8", "string"]
TYPED = "write/prefill"

HEADER = """# Copyright (c) ONNX Project Contributors
#
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ml_dtypes
import numpy as np

import onnx
from onnx.backend.test.case.base import Base
from onnx.backend.test.case.node import expect


class TensorScatter(Base):
"""


def source(corpus: Path) -> str:
    """Returns the module."""
    tests = [test(name, *read(corpus, case)) for name, case in CASES.items()]
    model, inputs, outputs = read(corpus, TYPED)
    for name in TYPES:
        typed = [array if array.dtype == np.int64 else cast(array, name) for array in inputs]
        tests.append(test(name, model, typed, [cast(array, name) for array in outputs]))
    return HEADER + "\n".join(tests)


def read(corpus: Path, name: str) -> tuple[onnx.ModelProto, list[np.ndarray], list[np.ndarray]]:
    """Returns the model, the inputs and the outputs of a case."""
    folder = corpus / "tensor_scatter" / name
    tensors = []
    for kind in ["input", "output"]:
        files = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"))
        tensors.append([numpy_helper.to_array(onnx.load_tensor(file)) for file in files])
    return onnx.load(folder / "model.onnx"), *tensors


def cast(array: np.ndarray, name: str) -> np.ndarray:
    """Returns the numbers in another type. For unsigned types, they are made positive."""
    if name == "string":
        return array.astype(np.int64).astype(str).astype(object)
    if name == "uint8":
        array = np.where(array < 0, 100 - array, array)
    return array.astype(dtype(name))


def dtype(name: str) -> np.dtype:
    """Returns the type of this name, which may be one of ml_dtypes."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, None) or name)


def test(name: str, model: onnx.ModelProto, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> str:
    """Returns the method of one test."""
    [node] = model.graph.node
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    shown = []
    if attributes["axis"] != -2:
        shown.append(f"axis={attributes['axis']}")
    if attributes["mode"] != b"linear":
        shown.append(f'mode="{attributes["mode"].decode()}"')
    names = list(node.input)
    lines = [
        "@staticmethod",
        f"def export_tensorscatter_{name}() -> None:",
        "    node = onnx.helper.make_node(",
    ]
    lines += [
        '        "TensorScatter",',
        f"        inputs={quoted(names)},",
        '        outputs=["present_cache"],',
    ]
    lines += [f"        {attribute}," for attribute in shown] + ["    )"]
    for variable, array in zip([*names, "present_cache"], [*inputs, *outputs], strict=True):
        lines += literal(variable, array)
    lines += ["    expect(", "        node,", f"        inputs=[{', '.join(names)}],"]
    lines += ["        outputs=[present_cache],", f'        name="test_tensorscatter_{name}",', "    )"]
    return "".join(f"    {line}\n" if line else "\n" for line in lines)


def quoted(names: list[str]) -> str:
    """Returns a list of strings as Python writes it with double quotes."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def literal(variable: str, array: np.ndarray) -> list[str]:
    """Returns the lines of an assignment, with one line for each sample."""
    ml = array.dtype.name in {"bfloat16", "float8_e4m3fn"}
    dtype = "object" if array.dtype == object else f"{'ml_dtypes' if ml else 'np'}.{array.dtype.name}"
    if array.ndim == 1:
        return [f"    {variable} = np.array({array.tolist()}, dtype={dtype})"]
    if array.size == 0:
        return [f"    {variable} = np.zeros({array.shape}, dtype={dtype})"]
    whole = np.vectorize(lambda value: value if isinstance(value, str) else int(value), otypes=[object])(
        array
    )
    rows = [f"            {str(sample.tolist()).replace(chr(39), chr(34))}," for sample in whole]
    return [
        f"    {variable} = np.array(",
        "        [",
        *rows,
        "        ],",
        f"        dtype={dtype},",
        "    )",
    ]


def check(module: Path) -> int:
    """Runs the tests of a module with onnx's reference evaluator. Returns how many there are."""
    from onnx.backend.test.case import node as collected
    from onnx.reference import ReferenceEvaluator

    before = len(collected._NodeTestCases)
    spec = importlib.util.spec_from_file_location("proposed", module)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    tests = collected._NodeTestCases[before:]
    for test in tests:
        onnx.checker.check_model(test.model, full_check=True)
        evaluator = ReferenceEvaluator(test.model)
        for inputs, outputs in test.data_sets:
            names = [value.name for value in test.model.graph.input]
            got = evaluator.run(None, dict(zip(names, inputs, strict=True)))
            for have, want in zip(got, outputs, strict=True):
                if have.dtype != want.dtype or have.shape != want.shape or have.tolist() != want.tolist():
                    sys.exit(f"{test.name}: onnx's reference gives {have.tolist()}, expected {want.tolist()}")
    if len(tests) != len(CASES) + len(TYPES):
        sys.exit(f"{module.name} has {len(tests)} tests, must have {len(CASES) + len(TYPES)}")
    return len(tests)
