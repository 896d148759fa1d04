"""An ONNX backend for models with ``TensorScatter`` and a few operators around it.

The interface is that of ``onnx.backend.base``. The backend evaluates ``TensorScatter``, ``Identity``,
``Constant`` and integer ``Add`` on the CPU. Models may be untrusted. Each run ends with a value or an error,
within the memory and the limits of the evaluator. Input arrays are never changed.

>>> import numpy as np
>>> import onnx
>>> from kvscatter import onnx_backend
>>> node = onnx.helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], mode="circular")
>>> past, new = np.zeros((1, 4, 1), np.float16), np.ones((1, 2, 1), np.float16)
>>> (present,) = onnx_backend.run_node(node, [past, new, np.array([3])])
>>> present.ravel().tolist()
[1.0, 0.0, 0.0, 1.0]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscatter import _native
from kvscatter._arrays import Array, as_array
from kvscatter._dtypes import FOUR_BITS, ONNX_NAMES, dtype_named, packed, unpacked
from kvscatter.errors import DeviceError, ElementTypeError, Error, ModelError

try:
    import onnx
    import onnx.backend.base
    import onnx.helper
except ImportError as missing:
    raise ImportError("kvscatter.onnx_backend needs onnx: pip install kvscatter[onnx]") from missing

__all__ = [
    "Backend",
    "BackendRep",
    "ModelError",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


def __dir__() -> list[str]:
    return __all__


Inputs = Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike]


class BackendRep(onnx.backend.base.BackendRep):  # type: ignore[misc, unused-ignore]
    """A model that is ready to run, because it was checked and its constants were read."""

    def __init__(self, model: _native.OnnxModel) -> None:
        self._model = model
        self._inputs = model.inputs()
        self._outputs: Any = onnx.backend.base.namedtupledict("Outputs", model.outputs())

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """Runs the model and returns the outputs, in the graph's order and by name.

        ``inputs`` are arrays by name, or in the order of the graph's inputs. In the second case, pass either
        all inputs or those without an initializer. Strings are arrays of ``str`` or ``bytes``. Output
        strings that are not UTF-8 contain surrogates, like the file names that Python reads. The 4-bit types
        have one value per byte, as in ml_dtypes.

        Raises:

        - ``ModelError`` if an input is missing, unknown or surplus, or does not have the type or shape that
          the model declares.
        - ``ElementTypeError`` for dtypes that ONNX's ``TensorScatter`` does not have.
        - ``ArrayError`` for masked arrays.
        - ``TypeError`` for keyword arguments, because none is supported.
        - The errors of ``tensor_scatter_`` if a call breaks a rule of ``TensorScatter``.
        """
        if kwargs:
            raise TypeError(f"run() has no argument {next(iter(kwargs))!r}")
        feeds = [_fed(name, value) for name, value in self._named(inputs)]
        outputs: tuple[Any, ...] = self._outputs(*(_taken(*output) for output in self._model.run(feeds)))
        return outputs

    def _named(self, inputs: Inputs | Array) -> list[tuple[str, npt.ArrayLike]]:
        if isinstance(inputs, Mapping):
            return list(inputs.items())
        if isinstance(inputs, np.ndarray):
            raise TypeError("inputs must be a list or a dict of arrays, not an array")
        every = [name for name, _ in self._inputs]
        required = [name for name, is_required in self._inputs if is_required]
        names = every if len(inputs) == len(every) else required
        if len(inputs) != len(names):
            message = (
                f"{len(inputs)} inputs are given, the model takes {len(required)}: {', '.join(required)}"
            )
            raise ModelError(message, "input_count", got=len(inputs), expected=len(required))
        return list(zip(names, inputs, strict=True))


class Backend(onnx.backend.base.Backend):  # type: ignore[misc, unused-ignore]
    """The ``onnx.backend.base.Backend`` that uses this package's evaluator."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Returns True if ``prepare`` accepts the model."""
        if not cls.supports_device(device):
            return False
        try:
            cls.prepare(model, device, **kwargs)
        except Error:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Checks a model and reads its constants.

        ``model`` is an ``onnx.ModelProto``, its bytes, or the path of a file. External data is read from the
        folder of that file.

        Raises ``ModelError``, and ``DeviceError`` for a device that is not the CPU. Options of other
        backends are accepted and ignored, because ONNX's test runner passes them on.
        """
        if not cls.supports_device(device):
            hint = (
                "; kvscatter.cuda writes arrays on CUDA devices, and runs no models"
                if device.startswith("CUDA")
                else ""
            )
            message = f"device = {device!r}: this backend runs on the CPU{hint}"
            raise DeviceError(message, "device", "device", device=device)
        if isinstance(model, (str, os.PathLike)):
            return BackendRep(_native.OnnxModel.load(os.fspath(model)))
        data = model if isinstance(model, bytes) else model.SerializeToString()
        return BackendRep(_native.OnnxModel.from_bytes(data))

    @classmethod
    def run_model(cls, model: Any, inputs: Inputs, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Calls ``prepare`` and then ``run``."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Inputs,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node. Its inputs are given by name, or in the node's order without those whose names are
        empty.

        ``opset_version`` is the version of the node's domain. The default is the newest version that onnx
        knows. ``outputs_info`` gives the dtype and shape of the output of a node that has no inputs.
        """
        names = [name for name in node.input if name]
        if len(inputs) != len(set(names) if isinstance(inputs, Mapping) else names):
            message = f"{len(inputs)} inputs are given, the node has {len(names)}: {', '.join(names)}"
            raise ModelError(message, "input_count", got=len(inputs), expected=len(names))
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        arrays = {name: _as_array(name, value) for name, value in given.items()}
        declared = [_value_info(name, array.dtype, array.shape) for name, array in arrays.items()]
        if outputs_info is not None:
            shown = [
                _value_info(name, np.dtype(dtype), shape)
                for name, (dtype, shape) in zip(node.output, outputs_info, strict=True)
            ]
        else:
            shown = [_output_info(node, name, declared) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", declared, shown)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        opset = onnx.helper.make_opsetid(node.domain, version)
        model = onnx.helper.make_model(graph, opset_imports=[opset])
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns True if models run on a device such as ``"CPU"`` or ``"CUDA:1"``. Only the CPU is
        supported."""
        return device.split(":")[0] == "CPU"


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device


def _as_array(name: str, value: npt.ArrayLike) -> Array:
    """Converts a value to an array, with strings as objects and numbers in native byte order."""
    array = as_array(name, value)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.name not in ONNX_NAMES:
        message = f"{name} is {array.dtype}, which is not a type of TensorScatter"
        raise ElementTypeError(message, "element_type", name, element=str(array.dtype))
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _fed(name: str, value: npt.ArrayLike) -> tuple[str, str, tuple[int, ...], Any]:
    """Returns a value as ONNX stores it: as bytes with packed 4-bit elements, or as strings in bytes."""
    array = _as_array(name, value)
    if array.dtype.hasobject:
        return name, "object", array.shape, [_encoded(name, string) for string in array.reshape(-1).tolist()]
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    element = array.dtype.name
    return name, element, array.shape, packed(values) if element in FOUR_BITS else values


def _taken(element: str, shape: list[int], values: Any) -> Array:
    if element == "object":
        strings = np.empty(len(values), object)
        strings[:] = [value.decode("utf-8", "surrogateescape") for value in values]
        return strings.reshape(shape)
    dtype = dtype_named(element)
    if dtype is None:
        raise ImportError(
            f"an output is of type {element}, which needs ml_dtypes: pip install kvscatter[onnx]"
        )
    if element in FOUR_BITS:
        values = unpacked(values, int(np.prod(shape)))
    return np.asarray(values).view(dtype).reshape(shape)


def _encoded(name: str, string: object) -> bytes:
    if isinstance(string, str):
        return string.encode("utf-8", "surrogateescape")
    if isinstance(string, bytes):
        return string
    message = f"{name} contains a {type(string).__name__}: object arrays must contain only strings"
    raise ElementTypeError(message, "element_type", name, element="object")


def _value_info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), shape)


def _output_info(node: Any, name: str, inputs: Sequence[Any]) -> Any:
    """Declares an output. It has the type of the first input, or an inferred type if there are no inputs.

    All operators that this backend evaluates return the type of their first input.
    """
    if inputs:
        element = inputs[0].type.tensor_type.elem_type
    else:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, {})
        element = inferred[name].tensor_type.elem_type
    return onnx.helper.make_tensor_value_info(name, element, None)
