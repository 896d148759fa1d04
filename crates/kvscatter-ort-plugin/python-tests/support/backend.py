"""ONNX's backend interface over sessions in which the plugin takes every node, for the official test runner."""

import onnx
import onnx.backend.base

from support import attention
from support.elements import BY_CODE
from support.sessions import PROVIDER, assignment, plugin, run
from support.tensors import Tensor


class Rep(onnx.backend.base.BackendRep):
    """A model whose inputs and outputs are bound to guarded memory."""

    def __init__(self, model: onnx.ModelProto):
        # 1.24.4 reads no later version.
        model.ir_version = min(model.ir_version, 11)
        self._graph, self._session = model.graph, plugin(model.SerializeToString())
        assert list(assignment(self._session)) == [PROVIDER]

    def run(self, inputs, **_):
        names = [value.name for value in self._graph.input]
        outputs = {}
        for value in self._graph.output:
            declared = value.type.tensor_type
            shape = [dimension.dim_value for dimension in declared.shape.dim]
            outputs[value.name] = Tensor.garbage(BY_CODE[declared.elem_type], shape)
        run(self._session, dict(zip(names, map(attention.tensor, inputs), strict=True)), outputs)
        for tensor in outputs.values():
            tensor.check_guards()
        types = {name: attention.DTYPES[tensor.element.name] for name, tensor in outputs.items()}
        return [tensor.data.view(types[name]).reshape(tensor.shape) for name, tensor in outputs.items()]


class Backend(onnx.backend.base.Backend):
    """Runs models in ONNX Runtime."""

    @classmethod
    def prepare(cls, model, device="CPU", **_):
        return Rep(model)

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"
