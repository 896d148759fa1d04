"""Calls the functions of a kernel file."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from harness.case import CACHE, Case

# The name of the function for each operator, and the defaults of what it gets by keyword.
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "TensorScatter": ("tensor_scatter", {"axis": -2, "mode": "linear"}),
    "KVCacheUpdate": ("kv_cache_update", {"cache_mode": "linear", "update_form": "padded"}),
    "KVCacheOperation": ("kv_cache_operation", {}),
    "Attention": (
        "attention",
        {
            "is_causal": 0, "kv_num_heads": None, "left_window_size": -1, "q_num_heads": None,
            "qk_matmul_output_mode": 0, "right_window_size": -1, "scale": None, "softcap": 0.0,
            "softmax_precision": None,
        },
    ),
}  # fmt: skip
# The number of inputs with the optional ones.
INPUTS = {"TensorScatter": 3, "KVCacheUpdate": 4, "KVCacheOperation": 5}
ATTENTION_INPUTS = ["q", "k", "v", "mask", "past_key", "past_value", "nonpad_kv_seqlen"]


def run_kernel(module: Any, case: Case, in_place: bool) -> dict[str, Any] | list[np.ndarray]:
    """Calls a function of the kernel. The onnx reference runs a graph that has other operators too."""
    model = onnx.load(case.model)
    # A function sees neither the operator set nor the number of outputs, so the checker of onnx refuses bad nodes.
    onnx.checker.check_model(model)
    graph = model.graph
    if len(graph.node) == 1:
        operands = case.operands if in_place else with_copies(case.operator, case.operands)
        made = call_kernel(module, case.operator, operands, case.attributes, in_place)
        if isinstance(made, tuple):
            return list(made[: len(graph.output)])
        return {**made, "outputs": [made["output"]]} if isinstance(made, dict) else [made]
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    def _run(_self: OpRun, *operands: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
        made = call_kernel(module, case.operator, with_copies(case.operator, operands), attributes, False)
        return (made["output"] if isinstance(made, dict) else made,)

    domain = next(node.domain for node in graph.node if node.op_type == case.operator)
    operator = type(case.operator, (OpRun,), {"op_domain": domain, "_run": _run})
    return ReferenceEvaluator(str(case.model), new_ops=[operator]).run(None, case.inputs)


def with_copies(operator: str, operands: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Returns the operands with a copy of the cache, which a kernel may write into."""
    copies = list(operands)
    place = CACHE.get(operator)
    if place is not None and place < len(copies) and copies[place] is not None:
        copies[place] = copies[place].copy()
    return copies


def call_kernel(
    module: Any, operator: str, operands: list[np.ndarray | None], attributes: dict[str, Any], in_place: bool
) -> Any:
    """Calls a function with the parameters that it has."""
    name, defaults = KERNELS[operator]
    function = getattr(module, name)
    keywords = {**defaults, **attributes}
    if operator == "Attention":
        named = dict(zip(ATTENTION_INPUTS, [*operands, *[None] * 7], strict=False))
        operands = [named.pop(key) for key in "qkv"]
        keywords, defaults = {**named, **keywords}, {**dict.fromkeys(named), **defaults}
    else:
        operands = operands + [None] * (INPUTS[operator] - len(operands))
    parameters = inspect.signature(function).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        unknown = [key for key in keywords if key not in parameters]
        needed = [key for key in unknown if not is_default(keywords.pop(key), defaults.get(key))]
        if needed:
            raise TypeError(
                f"your function {name} has no parameter {', '.join(needed)}, which the case needs"
            )
    if "in_place" in parameters:
        keywords["in_place"] = in_place
    made = function(*operands, **keywords)
    return operands[CACHE[operator]] if made is None and operator in CACHE else made


def is_default(value: Any, default: Any) -> bool:
    """Returns True if leaving the value out changes nothing."""
    return value is None if default is None else value is not None and bool(np.all(value == default))
