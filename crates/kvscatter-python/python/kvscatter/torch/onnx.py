"""PyTorch models to ONNX models that write their caches with ``TensorScatter``, opset 24.

`export` is `torch.onnx.export` with the two things that it needs for that: a program in which the write in place has
become the functional operator (`functionalize`), and the operator's translation (`translations`). ONNX has no
operation in place; a runtime writes in place where the output is given the input's memory.
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
    """`torch.onnx.export` for a model that uses ``kvscatter::tensor_scatter`` or ``tensor_scatter_``.

    The arguments are `torch.onnx.export`'s, and so is what is returned. What the model writes to in place, whether
    one of its inputs or one of its buffers, is an input of the ONNX model, and an output named ``present_`` and the
    input's name; `torch.onnx.export` on its own drops such writes. These inputs and outputs come last.

    Raises `errors.OptionError` for an opset below 24 and for a write with ``lengths``, for which ONNX has no word.
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
    for node in program.graph.find_nodes(op="call_function", target=_FUNCTIONAL):
        _refuse_lengths(_arguments(node)["lengths"])
    if dynamic_shapes is not None:  # it names dimensions only if it describes every input
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
    """What `torch.onnx.export` takes as ``custom_translation_table``; it wants ``opset_version=24`` beside it."""
    from onnxscript import ir, values

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

    return {_FUNCTIONAL: tensor_scatter}


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """``program`` with every ``tensor_scatter_`` as ``tensor_scatter``, in functional form.

    Of writes that `ExportedProgram.run_decompositions` has already made ``auto_functionalized_v2``, those into a view
    of a tensor are refused with `errors.OptionError`: call this first.
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


# ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _replace_write(node: torch.fx.Node) -> None:
    """A write in place is a copy of the functional write into the cache, which PyTorch knows how to functionalize."""
    arguments = _arguments(node)
    cache = arguments["cache"]
    with node.graph.inserting_before(node):
        present = _call(node, _FUNCTIONAL, tuple(arguments.values()))
        _call(node, torch.ops.aten.copy_.default, (cache, present))
    node.graph.erase_node(node)


def _replace_functionalized(node: torch.fx.Node, signature: ExportGraphSignature) -> None:
    """``auto_functionalized_v2`` gives (the operator's result, the bases after the write); ours has no result."""
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
    """The arguments of an operator by name, with its defaults, in the schema's order."""
    operator: Any = node.target
    schema = operator._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def _call(like: torch.fx.Node, target: torch._ops.OpOverload, args: tuple[Any, ...]) -> torch.fx.Node:
    """A new node instead of ``like``, with its origin, and with the value that its shapes are read from."""
    node = like.graph.call_function(target, args)
    values = torch.fx.map_arg(args, lambda argument: argument.meta["val"])
    node.meta = {**like.meta, "val": target(*values)}
    return node


def _refuse_lengths(lengths: object) -> None:
    if lengths is not None:
        message = "lengths cannot be exported: ONNX TensorScatter writes every row of the update"
        raise errors.OptionError(message, "lengths", "lengths")


def _unnamed(shapes: Any) -> Any:
    """Dynamic shapes for `torch.export`, to which the names that `torch.onnx.export` takes mean nothing."""
    if isinstance(shapes, str):
        return Dim.DYNAMIC
    if isinstance(shapes, Mapping):
        return {key: _unnamed(shape) for key, shape in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        return type(shapes)(_unnamed(shape) for shape in shapes)
    return shapes
