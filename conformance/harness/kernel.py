"""Calls the functions of a kernel file."""

import inspect
from typing import Any

import numpy as np
import onnx

from harness.case import CACHE, Case

# The name of the function for each operator, and the defaults of what it gets by keyword.
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "TensorScatter": ("tensor_scatter", {"axis": -2, "mode": "linear"}),
    "KVCacheUpdate": ("kv_cache_update", {"mode": "LINEAR"}),
    "KVCacheOperation": ("kv_cache_operation", {}),
    "Attention": (
        "attention",
        {
            "is_causal": 0, "kv_num_heads": None, "q_num_heads": None, "qk_matmul_output_mode": 0, "scale": None,
            "softcap": 0.0, "softmax_precision": None,
        },
    ),
}  # fmt: skip
ATTENTION_INPUTS = ["q", "k", "v", "mask", "past_key", "past_value", "nonpad_kv_seqlen"]


def run_kernel(module: Any, case: Case, in_place: bool) -> list[np.ndarray]:
    """Calls a function of the kernel. The onnx reference runs a graph that has other operators too."""
    graph = onnx.load(case.model).graph
    if len(graph.node) == 1:
        return [call_kernel(module, case.operator, case.operands, case.attributes)]
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    def _run(_self: OpRun, *operands: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
        copies = [None if operand is None else operand.copy() for operand in operands]
        return (call_kernel(module, case.operator, copies, attributes),)

    domain = next(node.domain for node in graph.node if node.op_type == case.operator)
    operator = type(case.operator, (OpRun,), {"op_domain": domain, "_run": _run})
    return ReferenceEvaluator(str(case.model), new_ops=[operator]).run(None, case.inputs)


def call_kernel(
    module: Any, operator: str, operands: list[np.ndarray | None], attributes: dict[str, Any]
) -> Any:
    """Calls a function with the parameters that it has."""
    name, defaults = KERNELS[operator]
    function = getattr(module, name)
    keywords = {**defaults, **attributes}
    if operator == "Attention":
        named = dict(zip(ATTENTION_INPUTS, operands + [None] * 7, strict=False))
        operands = [named.pop(key) for key in "qkv"]
        keywords, defaults = {**named, **keywords}, {**dict.fromkeys(named), **defaults}
    else:
        operands = operands + [None] * ((5 if operator == "KVCacheOperation" else 3) - len(operands))
    parameters = inspect.signature(function).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        unknown = [key for key in keywords if key not in parameters]
        needed = [key for key in unknown if not is_default(keywords.pop(key), defaults.get(key))]
        if needed:
            raise TypeError(f"{name} has no parameter {', '.join(needed)}")
    made = function(*operands, **keywords)
    return operands[CACHE[operator]] if made is None and operator in CACHE else made


def is_default(value: Any, default: Any) -> bool:
    """Returns True if leaving the value out changes nothing."""
    return value is None if default is None else value is not None and bool(np.all(value == default))
