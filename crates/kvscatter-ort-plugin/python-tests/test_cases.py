"""The oracle's cases. Their models declare no shapes, so that only the kernel checks them."""

import json
import pathlib
import re

import onnx
import pytest

from support import sessions
from support.elements import BY_CODE
from support.sessions import CARRIED, PROVIDER, assignment, plugin
from support.tensors import Tensor

# The cases of the ONNX project.
ONNX_NODE = pathlib.Path(__file__).parents[3] / "testdata" / "onnx-node"


class Case:
    """One folder of ``kvscatter cases``."""

    def __init__(self, folder):
        self.model = onnx.load(folder / "model.onnx")
        data = folder / "test_data_set_0"
        count = len(self.model.graph.input)
        self.messages = [onnx.load_tensor(data / f"input_{place}.pb") for place in range(count)]
        refused = folder / "refused.json"
        self.refused = json.loads(refused.read_text())["kind"] if refused.exists() else None
        self.expected = None if self.refused else onnx.load_tensor(data / "output_0.pb").raw_data

    @property
    def is_carried(self):
        """Returns True if the plugin takes the types of the case. test_types.py tests the other types."""
        return all(BY_CODE.get(message.data_type) in CARRIED for message in self.messages)

    def tensors(self):
        """Returns the inputs, each in separate memory."""
        names = [value.name for value in self.model.graph.input]
        return {
            name: Tensor(BY_CODE[message.data_type], message.dims, message.raw_data)
            for name, message in zip(names, self.messages, strict=True)
        }

    def without_shapes(self) -> bytes:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.ir_version = 11
        for value in [*model.graph.input, *model.graph.output]:
            value.type.tensor_type.ClearField("shape")
        return model.SerializeToString()

    def is_negative_in_a_ring(self) -> bool:
        """Returns True if ONNX Runtime rejects an index that the oracle takes modulo the capacity."""
        indices = self.tensors().get("write_indices")
        return (
            b"circular" in self.model.SerializeToString()
            and indices is not None
            and any(index >> 63 for index in indices.array().tolist())
        )


def check(case: Case):
    if case.refused or case.is_negative_in_a_ring():
        model = case.without_shapes()
        message = sessions.refused(lambda: plugin(model), case.tensors(), "past_cache", "present_cache")
        assert re.search(r"TensorScatter|Type Error|mode|axis", message)
        return
    session = plugin(case.without_shapes())
    assert assignment(session) == {PROVIDER: ["TensorScatter"]}
    sessions.check(session, case.tensors(), "past_cache", "present_cache", case.expected)


def test_the_oracles_answer_in_place_and_functional(cases):
    checked = {"written": 0, "refused": 0}
    for folder in cases:
        case = Case(folder)
        if not case.is_carried:
            continue
        try:
            check(case)
        except BaseException as failure:
            failure.add_note(f"case {folder.name}")
            raise
        checked["refused" if case.refused else "written"] += 1
    assert checked["written"] > 250 and checked["refused"] > 150, checked


@pytest.mark.parametrize("folder", sorted(ONNX_NODE.iterdir()), ids=lambda folder: folder.name)
def test_the_onnx_projects_cases(folder):
    check(Case(folder))
