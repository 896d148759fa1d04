"""Functions that inspect, convert, lower and certify models, and verify test directories.

They call the commands of the same names. An argument is the option of the command that has its name, so the command
checks it, and its document becomes the result. The classes of results are imported when they are needed, because
importing them takes a sixth of the time of importing the package.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from kvscatter import _native
from kvscatter._typing import CacheType
from kvscatter.errors import Error, FileError, ModelError, OptionError, SessionError

if TYPE_CHECKING:
    from kvscatter.results import Certificate, Conversion, Inspection, Lowering, Verification

Path: TypeAlias = str | PathLike[str]
Weights: TypeAlias = Literal["copy", "link"]
Result = TypeVar("Result")


def inspect(
    model: Path,
    *,
    batch: int | None = None,
    length: int | None = None,
    max_seq: int | None = None,
    dim: Mapping[str, int] | None = None,
    target: Literal["tensorrt"] | None = None,
) -> Inspection:
    """Returns the KV caches of a decoder, their cost, and what prevents writes in place.

    The weights are not read, except for tables of positions.

    Args:
        model: An ONNX file, or the folder of an export.
        batch: The number of samples for which the costs are computed. The default is 1.
        length: The number of tokens of each sample in the cache. The default is the model's capacity, or 2048.
        max_seq: The number of slots of each sample in a static cache. The default is the model's capacity, or
            ``length``.
        dim: The sizes of other dimensions that the costs depend on, by name.
        target: A runtime whose refusals are also returned.

    Returns:
        The inspection. Hazards and refused nodes are a part of it and no errors.

    Raises:
        FileError: A file cannot be read.
        ModelError: The file is not a model, or its graph is not a decoder.
        OptionError: An argument is wrong.
    """
    from kvscatter.results import Inspection

    return _called(
        Inspection, "inspect", model, batch=batch, length=length, max_seq=max_seq, dim=dim, target=target
    )


def convert(
    model: Path,
    output: Path,
    *,
    max_seq: int,
    window: Literal["ring", "mask"] | None = None,
    chunk: int | None = None,
    rewind: int | None = None,
    cache_type: CacheType | None = None,
    no_rotation: bool = False,
    layout: Literal["4d", "3d"] | None = None,
    names: str | None = None,
    present_names: str | None = None,
    keep_attention: bool = False,
    onnxruntime: str | None = None,
    encoder_output: Path | None = None,
    encoder: Path | None = None,
    weights: Weights | None = None,
) -> Conversion:
    """Converts a decoder so that its caches are static and written in place, and writes it to a file.

    A decoder that cannot be converted exactly is refused, and nothing is written.

    Args:
        model: The decoder, an ONNX file or the folder of an export.
        output: The file of the converted decoder. Separate files of weights are placed next to it. An existing file is
            replaced only if it is an ONNX model.
        max_seq: The number of slots of each sample, which is the largest number of tokens.
        window: How the caches of layers with a sliding window are kept: in rings, where these are smaller, or in
            linear caches with a mask. The default is rings.
        chunk: The largest number of rows of a sample in one step of a model with rings, padding included. The default
            is the window, at most 512.
        rewind: The number of tokens that a sample of a model with rings can be taken back. The default is 32.
        cache_type: The type of the caches. The default is that of the export.
        no_rotation: Whether int8 keys are stored without the Hadamard rotation, which increases their error.
        layout: The dimensions of the caches: ``"4d"`` for ``[batch, heads, max_seq, head size]``, or ``"3d"`` for
            ``[batch, max_seq, heads * head size]``, which only ``Attention`` nodes read. The default is ``"4d"``.
        names: A pattern of the names of the pasts, with ``{i}`` for the number of the cache among those of keys or of
            values, and ``{part}`` for ``key`` or ``value``, such as ``"{part}_cache.{i}"``. The default is to keep the
            names.
        present_names: A pattern of the names of the presents. The default follows from ``names``: with ``updated_``
            before it, or with ``present`` in place of ``past_key_values`` or ``past`` at the beginning.
        keep_attention: Whether attention that consists of separate nodes is left as it is.
        onnxruntime: The oldest version of ONNX Runtime that must run the model without the plugin, such as ``"1.26"``.
        encoder_output: The file of an encoder that computes all inputs that the decoder takes from one. The exported
            encoder is joined with the decoder of the first step, which is ``decoder_model.onnx`` in the folder of the
            model, or the merged decoder.
        encoder: The exported encoder. The default is ``encoder_model.onnx``, or else ``encoder.onnx``, in the folder of
            the model.
        weights: Whether files of weights are copied or linked if the output is in another folder. The default is
            ``"copy"``.

    Returns:
        The conversion: the caches, the inputs of the new model, and what was proved.

    Raises:
        FileError: A file cannot be read, written or replaced.
        ModelError: The file is not a model, or the decoder cannot be converted.
        OptionError: An argument is wrong.
    """
    from kvscatter.results import Conversion

    return _called(
        Conversion,
        "convert",
        model,
        output=output,
        max_seq=max_seq,
        window=window,
        chunk=chunk,
        rewind=rewind,
        cache_type=cache_type,
        no_rotation=no_rotation,
        layout=layout,
        names=names,
        present_names=present_names,
        keep_attention=keep_attention,
        onnxruntime=onnxruntime,
        encoder_output=encoder_output,
        encoder=encoder,
        weights=weights,
    )


def lower(
    model: Path,
    output: Path,
    *,
    to: Literal["scatter-elements", "scatter-nd"],
    weights: Weights | None = None,
) -> Lowering:
    """Replaces ``TensorScatter`` for an engine that does not have it, and writes the model to a file.

    Args:
        model: The model, an ONNX file or the folder of an export.
        output: The file of the new model. Separate files of weights are placed next to it. An existing file is
            replaced only if it is an ONNX model.
        to: The operator that replaces it. It takes an index for every element, or one for every row.
        weights: Whether files of weights are copied or linked if the output is in another folder. The default is
            ``"copy"``.

    Returns:
        The number of nodes that were replaced and added, and the files.

    Raises:
        FileError: A file cannot be read, written or replaced.
        ModelError: The file is not a model, or it has a ``TensorScatter`` that cannot be replaced.
        OptionError: An argument is wrong.
    """
    from kvscatter.results import Lowering

    return _called(Lowering, "lower", model, output=output, to=to, weights=weights)


def certify(
    model: Path,
    *,
    original: Path | None = None,
    html: Path | None = None,
    ort_lib: Path | None = None,
    ort_plugin: Path | None = None,
    prompt: Iterable[int] | None = None,
    batch: int | None = None,
    steps: int | None = None,
    chunk: int | None = None,
    capacity: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    tolerance: float | None = None,
    no_timing: bool = False,
    memory: int | None = None,
) -> Certificate:
    """Runs a decoder in ONNX Runtime, and certifies that it writes its caches in place.

    After every step, every byte of every cache is compared with a copy, and the logits are compared with those of the
    original or of separate runs. This takes seconds for a small model. Ctrl-C has an effect after the call.

    Args:
        model: The decoder with static caches, an ONNX file or the folder of an export.
        original: The model that it was made from, which must give the same logits.
        html: A file for the certificate as a page. An existing file of another kind is not replaced.
        ort_lib: The library of ONNX Runtime, or the folder of its package. The default is the package of this Python.
        ort_plugin: The plugin for ONNX Runtime, or ``"none"``. The default is the plugin of this package.
        prompt: The number of tokens in the prompt of each sample. The default is 7, 3 and 5 as far as they fit.
        batch: The number of samples. The default is the model's, or 3.
        steps: The number of decode steps after the prompts. The default is 16, or what fits.
        chunk: The number of tokens in the largest chunk of a chunked prefill. The default is 4.
        capacity: The number of slots of each sample, if the model leaves this size open.
        seed: The seed of the random tokens and canaries. The default is 1.
        threads: The threads of the engine. Several may add numbers in another order. The default is 1.
        tolerance: The largest absolute difference of logits that counts as equal. The default depends on their type
            and magnitude.
        no_timing: Whether the timed claims are skipped.
        memory: The largest number of bytes that caches and logits may take at once.

    Returns:
        The certificate. If a claim does not hold, its ``verdict`` is ``"failed"``, and this is no error.

    Raises:
        FileError: A file cannot be read or written.
        ModelError: A file is not a model.
        SessionError: The model cannot be run, for example because its caches grow, or ONNX Runtime cannot be used.
        OptionError: An argument is wrong.
    """
    from kvscatter.results import Certificate

    return _called(
        Certificate,
        "certify",
        model,
        original=original,
        html=html,
        engine="ort",
        ort_lib=ort_lib,
        ort_plugin=ort_plugin,
        prompt=prompt,
        batch=batch,
        steps=steps,
        chunk=chunk,
        capacity=capacity,
        seed=seed,
        threads=threads,
        tolerance=tolerance,
        no_timing=no_timing,
        memory=memory,
    )


def verify(
    *dirs: Path, actual: Path | None = None, rtol: float | None = None, atol: float | None = None
) -> Verification:
    """Runs ONNX test directories, or checks the outputs of another implementation.

    `kvscatter.testing.check` is the same for a kernel that Python can call.

    Args:
        dirs: Folders that are test directories or contain some.
        actual: A folder with the outputs to check instead, as ``kvscatter verify --help`` describes it.
        rtol: The relative tolerance. Without a tolerance, every bit must agree.
        atol: The absolute tolerance.

    Returns:
        The verdict on each case, and their numbers. A case that fails is no error.

    Raises:
        FileError: A folder cannot be read.
        OptionError: An argument is wrong, a folder contains no test directory, or no case can be read.
    """
    from kvscatter.results import Verification

    return _called(Verification, "verify", *dirs, actual=actual, rtol=rtol, atol=atol)


def _called(result: type[Result], command: str, *arguments: Path, **options: object) -> Result:
    """Calls a command and returns its document as an object."""
    words = ["kvscatter", command]
    for name, value in options.items():
        words += _words(name, value)
    document, error = _native.capture_command([*words, "--", *map(os.fsdecode, arguments)])
    if error is not None:
        raise _error(json.loads(error)["error"])
    return _built(result, json.loads(document))  # type: ignore[no-any-return]


def _words(name: str, value: object) -> list[str]:
    """Returns the words of an option. A value is in the same word, so that it can begin with a hyphen."""
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, Mapping):
        return [f"{option}={key}={size}" for key, size in value.items()]
    if isinstance(value, (str, PathLike)):
        return [f"{option}={os.fsdecode(value)}"]
    if isinstance(value, Iterable):
        return [f"{option}={','.join(map(str, value))}"]
    return [f"{option}={value}"]


_CLASSES: dict[str, type[Error]] = {
    "engine": SessionError,
    "file": FileError,
    "model": ModelError,
    "output": FileError,
    "session": SessionError,
}
"""The classes of errors, by the kind that the command prints. Kinds that are about arguments are not listed."""


def _error(document: dict[str, Any]) -> Error:
    """Returns the exception for an error of the command."""
    # The options are described by the functions, so the command's help is not needed.
    kind, message = document.pop("kind"), document.pop("message").removesuffix(" (see --help)")
    rule, argument = document.pop("rule", None), document.pop("argument", None)
    document.pop("hint", None)
    if kind == "operator":
        classes = {name: of for name, of, _ in _native.error_kinds()}
        fields = {"with_" if name == "with" else name: value for name, value in document.items()}
        return classes.get(rule, Error)(message, rule, argument, **fields)
    if argument is not None:
        argument = re.sub(r"^-*<?([\w-]+).*", r"\1", argument).lower().replace("-", "_")
    return _CLASSES.get(kind, OptionError)(message, rule or kind, argument, **document)


def _built(of: Any, value: Any) -> Any:
    """Returns a value of a document as the type of a field."""
    if value is None:
        return None
    if isinstance(of, types.UnionType):
        # Values of several types other than None are those of JSON.
        (of, *others) = (one for one in typing.get_args(of) if one is not types.NoneType)
        return value if others else _built(of, value)
    if typing.get_origin(of) is tuple:
        return tuple(_built(typing.get_args(of)[0], item) for item in value)
    if not dataclasses.is_dataclass(of):
        return value
    made: Any = of
    return made(**{name: _built(kind, value[key]) for name, key, kind in _fields(made) if key in value})


@functools.cache
def _fields(of: Any) -> tuple[tuple[str, str, Any], ...]:
    """Returns the names of a class's fields, in Python and in documents, and their types."""
    kinds = typing.get_type_hints(of)
    return tuple((field.name, field.name.rstrip("_"), kinds[field.name]) for field in dataclasses.fields(of))
