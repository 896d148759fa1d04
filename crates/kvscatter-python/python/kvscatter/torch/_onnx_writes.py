"""Converts the writes of an exported program to outputs, because `torch.onnx` drops writes to inputs and
buffers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.utils import _pytree as pytree

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class Writes:
    """The tensors that a program writes and that were not among its outputs."""

    places: list[tuple[int, int]]
    """For each tensor, its index among the tensor inputs, and the index of its written value among the
    outputs. The second index counts from the end, so -1 is the last output."""
    new_inputs: int
    """The number of buffers that became inputs. They are the last inputs."""


def with_writes_as_outputs(program: ExportedProgram) -> tuple[ExportedProgram, Writes]:
    """Returns ``program``, which is functional, with its written buffers as inputs and with all writes as
    outputs.

    New inputs are keyword arguments after the others. Each has the name of its buffer, with ``_`` for dots.
    New outputs follow the program's own outputs. A write that the program already returns is neither
    returned twice nor listed.
    """
    graph_module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    signature = program.graph_signature
    buffers = _names(program)
    output = graph_module.graph.output_node()
    values: Any = output.args[0]
    returned = list(zip(signature.output_specs, values, strict=True))
    own = [(spec, value) for spec, value in returned if spec.kind not in _WRITES]
    listed = {value for _, value in own}
    written = [(spec, value) for spec, value in returned if spec.kind in _WRITES and value not in listed]
    output.args = (tuple(value for _, value in own + written),)
    changed = ExportGraphSignature(
        _buffers_last(graph_module.graph, signature, buffers),
        [OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec, _ in own + written],
    )
    inputs = [
        spec.arg.name
        for spec in changed.input_specs
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    ]
    placeholders = {buffer: name for name, buffer in signature.inputs_to_buffers.items()}
    targets = [spec.target or "" for spec, _ in written]
    places = [
        (inputs.index(placeholders.get(target, target)), place)
        for place, target in enumerate(targets, start=-len(targets))
    ]
    args, kwargs = program.example_inputs or ((), {})
    tensors = {**program.state_dict, **program.constants}
    result = rebuilt(
        program,
        graph_module,
        changed,
        module_call_graph=_call(program, changed, list(buffers.values()), len(written)),
        example_inputs=(args, kwargs | {name: tensors[buffer] for buffer, name in buffers.items()}),
        state_dict={name: value for name, value in program.state_dict.items() if name not in buffers},
        constants={name: value for name, value in program.constants.items() if name not in buffers},
    )
    return result, Writes(places, len(buffers))


def rebuilt(
    program: ExportedProgram,
    graph_module: torch.fx.GraphModule,
    signature: ExportGraphSignature,
    **changed: Any,
) -> ExportedProgram:
    """Returns ``program`` with another graph and with the ``changed`` attributes."""
    kept = (
        "state_dict",
        "range_constraints",
        "module_call_graph",
        "example_inputs",
        "constants",
        "verifiers",
    )
    attributes = {name: getattr(program, name) for name in kept} | changed
    return ExportedProgram(graph_module, graph_module.graph, signature, **attributes)


def _names(program: ExportedProgram) -> dict[str, str]:
    """Returns the buffers that are written, each with its name as an input."""
    signature = program.graph_signature
    taken, names = set(signature.user_inputs), {}
    for buffer in signature.buffers_to_mutate.values():
        name = buffer.replace(".", "_")
        while name in taken:
            name += "_"
        taken.add(name)
        names[buffer] = name
    return names


def _buffers_last(
    graph: torch.fx.Graph, signature: ExportGraphSignature, buffers: dict[str, str]
) -> list[InputSpec]:
    """Moves the buffers after all other inputs and returns the new inputs."""
    inputs = list(zip(signature.input_specs, graph.find_nodes(op="placeholder"), strict=True))
    moved = [
        (spec, node) for spec, node in inputs if spec.kind is InputKind.BUFFER and spec.target in buffers
    ]
    last = inputs[-1][1]
    for _, node in moved:
        if node is not last:
            last.append(node)
        last = node
    names = {spec.arg.name for spec, _ in moved}
    stay = [spec for spec, _ in inputs if spec.arg.name not in names]
    return stay + [InputSpec(InputKind.USER_INPUT, spec.arg, None) for spec, _ in moved]


def _call(
    program: ExportedProgram, signature: ExportGraphSignature, names: list[str], outputs: int
) -> list[ModuleCallEntry]:
    """Returns how the program is called with ``names`` as new keyword arguments and with ``outputs`` more
    results."""
    entry, *inner = program.module_call_graph
    call = entry.signature
    assert call is not None, "the outermost module is called somehow"
    args, kwargs = pytree.tree_unflatten(range(call.in_spec.num_leaves), call.in_spec)
    result = pytree.tree_unflatten(range(call.out_spec.num_leaves), call.out_spec)
    changed = ModuleCallSignature(
        inputs=[spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT],
        outputs=[spec.arg for spec in signature.output_specs],
        in_spec=pytree.tree_structure((args, kwargs | dict.fromkeys(names, 0))),
        out_spec=pytree.tree_structure((result, *range(outputs))),
        forward_arg_names=None if call.forward_arg_names is None else [*call.forward_arg_names, *names],
    )
    return [replace(entry, signature=changed), *inner]
