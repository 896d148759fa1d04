"""Exports PyTorch models to ONNX models that write their caches with ``TensorScatter`` and read them with
``Attention``, opset 24.

`export` calls `torch.onnx.export` with a program in which the in-place writes are functional
(`functionalize`), and with the operators' translations (`translations`). ONNX has no in-place operations. A
runtime writes in place if the output uses the input's memory.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from kvscatter import _integers, errors
from kvscatter.torch._onnx_writes import rebuilt, with_writes_as_outputs

__all__ = ["OPSET", "export", "functionalize", "translations"]


def __dir__() -> list[str]:
    return __all__


OPSET = 24
"""The first opset that has TensorScatter."""

_FUNCTIONAL = torch.ops.kvscatter.tensor_scatter.default
_IN_PLACE = torch.ops.kvscatter.tensor_scatter_.default
_FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2


def export(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    f: str | os.PathLike[str] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int = OPSET,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    external_data: bool = True,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    **options: Any,
) -> torch.onnx.ONNXProgram:
    """Calls `torch.onnx.export` for a model that uses ``kvscatter::tensor_scatter``, ``tensor_scatter_`` or
    ``attention``.

    See `torch.onnx.export` for the arguments and the result. An input or a buffer that the model writes in
    place is an input of the ONNX model. It is also an output, whose name is ``present_`` plus the input's
    name. `torch.onnx.export` on its own drops such writes. These inputs and outputs come last.

    Raises `errors.OptionError` for an opset below 24, and for a write with ``lengths``, which ONNX does not
    support.
    """
    opset_version = _integers.within("opset_version", opset_version, 1, 2**31 - 1)
    if opset_version < OPSET:
        message = f"opset_version {opset_version}: TensorScatter begins with opset {OPSET}"
        raise errors.OptionError(message, "opset", "opset_version", value=opset_version, min=OPSET)
    program = model
    if not isinstance(program, ExportedProgram):
        shapes = _unnamed(dynamic_shapes)
        program = torch.export.export(program, args, kwargs, dynamic_shapes=shapes, strict=False)
    program, writes = with_writes_as_outputs(functionalize(program))
    if program.graph.find_nodes(op="call_function", target=torch.ops.kvscatter.skips.default):
        message = 'out_of_range = "skip" cannot be exported: ONNX TensorScatter writes every sample'
        raise errors.OptionError(message, "choice", "out_of_range", value="skip")
    for node in program.graph.find_nodes(op="call_function", target=_FUNCTIONAL):
        _refuse_lengths(_arguments(node)["lengths"])
    if dynamic_shapes is not None:  # the names of dimensions are kept only if every input is described
        dynamic_shapes = (dynamic_shapes, *[None] * writes.new_inputs)
    exported = torch.onnx.export(
        program,
        dynamic_shapes=dynamic_shapes,
        opset_version=opset_version,
        custom_translation_table={**translations(), **(custom_translation_table or {})},
        dynamo=True,
        **options,
    )
    assert exported is not None, "with dynamo=True there is a program"
    graph = exported.model.graph
    for past, present in writes.places:
        graph.outputs[present].name = f"present_{graph.inputs[past].name}"
    if f is not None:
        exported.save(
            f,
            include_initializers=export_params,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            external_data=external_data,
        )
    return exported


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Returns the ``custom_translation_table`` for `torch.onnx.export`, which also needs
    ``opset_version=24``."""
    from onnxscript import ir, values

    from kvscatter.torch import _onnx_attention

    onnx24 = values.Opset("", OPSET)

    def tensor_scatter(
        past_cache: Any,
        update: Any,
        write_indices: Any = None,
        axis: int = -2,
        mode: str = "linear",
        lengths: Any = None,
    ) -> Any:
        _refuse_lengths(lengths)
        if write_indices is not None and write_indices.dtype != ir.DataType.INT64:
            write_indices = onnx24.Cast(write_indices, to=ir.DataType.INT64)
        return onnx24.TensorScatter(past_cache, update, write_indices, axis=axis, mode=mode)

    return {_FUNCTIONAL: tensor_scatter, torch.ops.kvscatter.attention.default: _onnx_attention.attention}


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """Returns ``program`` in functional form, with every ``tensor_scatter_`` replaced by ``tensor_scatter``.

    Call this before `ExportedProgram.run_decompositions`, which turns writes into ``auto_functionalized_v2``.
    This function raises `errors.OptionError` for such writes if they write into a view of a tensor.
    """
    graph_module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    graph, signature = graph_module.graph, copy.deepcopy(program.graph_signature)
    for node in graph.find_nodes(op="call_function", target=_IN_PLACE):
        _replace_write(node)
    for node in graph.find_nodes(op="call_function", target=_FUNCTIONALIZED):
        if node.args[0] is _IN_PLACE:
            _replace_functionalized(node, signature)
    functional: ExportedProgram = rebuilt(program, graph_module, signature).run_decompositions({})
    return functional


# ── implementation ──────────────────────────────────────────────────────────────────────────────────────────────


def _replace_write(node: torch.fx.Node) -> None:
    """Replaces an in-place write by a functional write and a copy into the cache, which PyTorch can
    functionalize."""
    arguments = _arguments(node)
    cache = arguments["cache"]
    with node.graph.inserting_before(node):
        present = _call(node, _FUNCTIONAL, tuple(arguments.values()))
        _call(node, torch.ops.aten.copy_.default, (cache, present))
    node.graph.erase_node(node)


def _replace_functionalized(node: torch.fx.Node, signature: ExportGraphSignature) -> None:
    """Replaces ``auto_functionalized_v2``, which returns the operator's result and then the bases after the
    write.

    ``tensor_scatter_`` has no result.
    """
    keywords: dict[str, Any] = dict(node.kwargs)
    names = ("update", "write_indices", "axis", "cache_mode", "lengths")
    if keywords.keys() != {*names, "_all_bases", "_cache_base_index"}:
        raise errors.OptionError(
            "a write into a view of a tensor has been decomposed: call functionalize before run_decompositions",
            "decomposed_view",
            "program",
        )
    bases, place = keywords["_all_bases"], keywords["_cache_base_index"]
    with node.graph.inserting_before(node):
        present = _call(node, _FUNCTIONAL, (bases[place], *(keywords[name] for name in names)))
    for user in list(node.users):
        result: Any = user.args[1]  # of `getitem`
        base = result - 1
        written = present if base == place else bases[base]
        signature.replace_all_uses(user.name, written.name)
        user.replace_all_uses_with(written)
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Returns the arguments of an operator by name, with its defaults, in the schema's order."""
    operator: Any = node.target
    schema = operator._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def _call(like: torch.fx.Node, target: torch._ops.OpOverload, args: tuple[Any, ...]) -> torch.fx.Node:
    """Adds a node that replaces ``like``. It has the same origin, and a value from which its shapes are
    read."""
    node = like.graph.call_function(target, args)
    values = torch.fx.map_arg(args, lambda argument: argument.meta["val"])
    node.meta = {**like.meta, "val": target(*values)}
    return node


def _refuse_lengths(lengths: object) -> None:
    if lengths is not None:
        message = "lengths cannot be exported: ONNX TensorScatter writes every row of the update"
        raise errors.OptionError(message, "lengths", "lengths")


def _unnamed(shapes: Any) -> Any:
    """Returns dynamic shapes for `torch.export`, which does not accept the names that `torch.onnx.export`
    takes."""
    if isinstance(shapes, str):
        return Dim.DYNAMIC
    if isinstance(shapes, Mapping):
        return {key: _unnamed(shape) for key, shape in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        return type(shapes)(_unnamed(shape) for shape in shapes)
    return shapes
