"""Writes ONNX's own node tests of Attention as folders: `python attention_cases.py FOLDER`.

Since 1.23, onnx ships no files of these tests but builds them in memory. Tests that replace the operator with
other operators (`…_expanded`) test those operators and are left out.
"""

import pathlib
import sys

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def main(folder: pathlib.Path) -> None:
    """Writes each test to a folder of its name."""
    for case in collect_testcases("Attention"):
        if case.name.endswith("_expanded"):
            continue
        assert case.model is not None and case.data_sets is not None
        for number, (inputs, outputs) in enumerate(case.data_sets):
            data = folder / case.name / f"test_data_set_{number}"
            data.mkdir(parents=True, exist_ok=True)
            graph = case.model.graph
            for kind, values, infos in (("input", inputs, graph.input), ("output", outputs, graph.output)):
                for index, (value, info) in enumerate(zip(values, infos, strict=True)):
                    tensor = numpy_helper.from_array(value, info.name)
                    (data / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString())
        onnx.save(case.model, folder / case.name / "model.onnx")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
