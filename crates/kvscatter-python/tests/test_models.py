"""Tests the functions about models. The tests of the crate `kvscatter-cli` test the commands that they call."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import kvscatter
from kvscatter import _native, errors, results
from support import TESTDATA, edited

STATIC = TESTDATA / "mobius-llama-static/model.onnx"
GROWING = TESTDATA / "optimum-llama/model.onnx"
WINDOW = TESTDATA / "decoders/optimum-0.1-mistral-window/model.onnx"
QUERIES = TESTDATA / "genai-llama-gqa/model.onnx"
MERGED = TESTDATA / "decoders/optimum-1.18-gpt2-merged/model.onnx"
NODES = TESTDATA / "onnx-node"
MODELS = sorted(TESTDATA.glob("*/model.onnx")) + sorted(TESTDATA.glob("decoders/*/model.onnx"))
FUNCTIONS = [kvscatter.inspect, kvscatter.convert, kvscatter.lower, kvscatter.certify, kvscatter.verify]
ONLY_IN_TEXT = {"engine", "explain", "help", "json", "quiet"}
"""Options that change only what is printed, or that the wheel has one value for."""


def captured(*arguments: str | Path) -> Any:
    """Returns the document of a command, or the error."""
    document, error = _native.capture_command(["kvscatter", *map(str, arguments)])
    return json.loads(document if error is None else error)


def same(result: Any, document: Any) -> bool:
    """Returns whether a result has every field of a document, and no other field but those that are absent."""
    if dataclasses.is_dataclass(result):
        names = {field.name: field.name.rstrip("_") for field in dataclasses.fields(result)}
        absent = {name for name in names if names[name] not in document}
        return document.keys() <= set(names.values()) and all(
            not getattr(result, name)
            if name in absent
            else same(getattr(result, name), document[names[name]])
            for name in names
        )
    if isinstance(result, tuple):
        return len(result) == len(document) and all(map(same, result, document))
    return bool(type(result) is type(document) and result == document)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.parent.name)
def test_inspections_have_the_fields_of_the_documents(model: Path) -> None:
    inspected = kvscatter.inspect(model, batch=2, target="tensorrt")
    assert same(inspected, captured("inspect", model, "--batch=2", "--target=tensorrt"))


@pytest.mark.parametrize(
    ("model", "cache_type"), [(GROWING, "int8"), (QUERIES, None), (MERGED, "float16"), (WINDOW, None)]
)
def test_conversions_have_the_fields_of_the_documents(model: Path, cache_type: Any, tmp_path: Path) -> None:
    output = tmp_path / "static.onnx"
    options = [] if cache_type is None else [f"--cache-type={cache_type}"]
    expected = captured("convert", model, f"--output={output}", "--max-seq=32", *options)
    converted = kvscatter.convert(model, output, max_seq=32, cache_type=cache_type)
    # The first conversion has placed the weights.
    assert same(converted, {**expected, "files": [{**file, "placed": "kept"} for file in expected["files"]]})
    assert same(kvscatter.inspect(output), captured("inspect", output))
    lowered = tmp_path / "lowered.onnx"
    assert same(
        kvscatter.lower(output, lowered, to="scatter-nd"),
        captured("lower", output, f"--output={lowered}", "--to=scatter-nd"),
    )


def test_a_layout_and_names_are_those_of_mobius(tmp_path: Path) -> None:
    output = tmp_path / "static.onnx"
    kvscatter.convert(GROWING, output, max_seq=64, layout="3d", names="{part}_cache.{i}")
    caches, expected = [
        [
            (cache.past, cache.present, cache.axis, cache.shape[1:])
            for cache in kvscatter.inspect(model).caches
        ]
        for model in (output, STATIC)
    ]
    assert caches == expected
    certificate = kvscatter.certify(output, original=GROWING, no_timing=True)
    assert certificate.verdict == "passed", certificate.evidence
    with pytest.raises(errors.OptionError, match="does not contain {i}"):
        kvscatter.convert(GROWING, output, max_seq=64, names="{part}")


def test_a_ring_and_narrow_caches_are_results(tmp_path: Path) -> None:
    converted = kvscatter.convert(
        WINDOW, tmp_path / "a.onnx", max_seq=64, chunk=2, rewind=1, cache_type="int8"
    )
    (ring,) = converted.rings
    assert (ring.chunk, ring.rewind, ring.capacity) == (2, 1, ring.window - 1 + 2 + 1)
    assert isinstance(ring, results.RingSize)
    assert converted.narrow is not None
    assert converted.narrow.cache_type == "int8"
    inspected = kvscatter.inspect(tmp_path / "a.onnx")
    assert {each.window for each in inspected.rings} == {ring.window}
    assert all(cache.scales is not None for cache in inspected.caches)


def test_a_certificate_has_the_fields_of_its_document(tmp_path: Path) -> None:
    output = tmp_path / "static.onnx"
    kvscatter.convert(GROWING, output, max_seq=32, cache_type="int8")
    page = tmp_path / "page.html"
    certificate = kvscatter.certify(output, original=GROWING, html=page, prompt=[3, 5], steps=4, tolerance=1)
    options = ["--prompt=3,5", "--steps=4", "--tolerance=1", f"--original={GROWING}"]
    document = captured("certify", output, *options)
    for changing in ("command", "made_at"):
        document[changing] = getattr(certificate, changing)
    assert document.pop("timings").keys() == {field.name for field in dataclasses.fields(results.Timings)}
    timed = certificate.evidence.timed
    assert [check["id"] for check in document["evidence"].pop("timed")] == [check.id for check in timed]
    untimed = dataclasses.replace(certificate, timings=None)
    untimed = dataclasses.replace(untimed, evidence=dataclasses.replace(certificate.evidence, timed=()))
    assert same(untimed, document)
    assert certificate.verdict == "passed", certificate.evidence
    assert certificate.command == (
        f"kvscatter certify --original={GROWING} --html={page} --engine=ort --prompt=3,5 --steps=4 --tolerance=1"
        f" -- {output}"
    )
    assert page.read_text(encoding="utf-8").startswith("<!")
    assert certificate.stored
    assert certificate.timings is not None
    assert certificate.runtime.plugin is not None
    without = kvscatter.certify(STATIC, ort_plugin="none", no_timing=True, prompt=np.array([3, 5]))
    assert without.parameters.prompts == (3, 5)
    assert (without.runtime.plugin, without.timings) == (None, None)


def test_a_failed_certificate_is_a_result(tmp_path: Path) -> None:
    original = tmp_path / "other/model.onnx"
    original.parent.mkdir()
    loaded = onnx.load(STATIC)
    name = next(each.name for each in loaded.graph.initializer if "embed_tokens" in each.name)
    edited(STATIC, original, {name: lambda weights: (weights * np.float32(2) + 1).astype(weights.dtype)})
    certificate = kvscatter.certify(STATIC, original=original, no_timing=True)
    assert certificate.verdict == "failed"
    failed = [check for check in certificate.evidence.observed if check.verdict == "failed"]
    assert failed
    assert all(check.failures and check.failure_count >= len(check.failures) for check in failed)


def test_directories_are_verified(tmp_path: Path) -> None:
    verified = kvscatter.verify(NODES)
    assert same(verified, captured("verify", NODES))
    assert (verified.passed, verified.failed) == (len(verified.cases), 0)
    (tmp_path / "unknown/test_data_set_0").mkdir(parents=True)
    failed = kvscatter.verify(NODES, NODES, actual=tmp_path, rtol=0, atol=0)
    assert same(failed, captured("verify", NODES, NODES, f"--actual={tmp_path}", "--rtol=0", "--atol=0"))
    assert failed.passed == 0
    assert failed.failed == len(failed.cases) == 2 * len(verified.cases)
    assert failed.failures["no_output"] == failed.failed
    assert {case.verdict for case in failed.cases} == {"fail"}
    assert failed.unknown_folders


def test_a_wrong_output_is_described(tmp_path: Path) -> None:
    name = "test_tensorscatter"
    outputs = tmp_path / name / "test_data_set_0"
    outputs.mkdir(parents=True)
    expected = onnx.load_tensor(NODES / name / "test_data_set_0/output_0.pb")
    values = onnx.numpy_helper.to_array(expected).copy()
    values.reshape(-1)[-1] += 1
    np.save(outputs / "output_0.npy", values)
    verified = kvscatter.verify(NODES, actual=tmp_path)
    assert same(verified, captured("verify", NODES, f"--actual={tmp_path}"))
    (case,) = [case for case in verified.cases if case.case.endswith(name)]
    assert case.failure == "wrong"
    assert case.mismatch is not None
    assert case.tensor_scatter is not None


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_arguments_are_the_options_of_the_command(function: Callable[..., object]) -> None:
    help_of = subprocess.run(
        [sys.executable, "-m", "kvscatter", function.__name__, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    options = set(re.findall(r"(?m)^ +(?:-\w, )?--([a-z-]+)", help_of.stdout.split("\nExamples:")[0]))
    parameters = inspect.signature(function).parameters.values()
    arguments = {
        parameter.name.replace("_", "-")
        for parameter in parameters
        if parameter.name not in ("model", "dirs")
    }
    assert options - ONLY_IN_TEXT == arguments
    described = set(re.findall(r"(?m)^ {4}(\w+): ", inspect.getdoc(function) or ""))
    assert {parameter.name for parameter in parameters} <= described


REFUSED: list[tuple[type[errors.Error], str, str | None, Callable[[Path], object]]] = [
    (errors.FileError, "file", None, lambda _: kvscatter.inspect("missing.onnx")),
    (errors.FileError, "file", None, lambda _: kvscatter.inspect("--help")),
    (errors.OptionError, "usage", "model", lambda _: kvscatter.inspect("")),
    (errors.FileError, "file", None, lambda _: kvscatter.inspect("a\0b")),
    (errors.FileError, "file", None, lambda _: kvscatter.inspect("\udcff")),
    (errors.FileError, "file", None, lambda _: kvscatter.verify("missing")),
    (errors.FileError, "file", None, lambda _: kvscatter.certify(STATIC, original="missing.onnx")),
    (errors.FileError, "file", None, lambda at: kvscatter.convert(GROWING, at, max_seq=8)),
    (errors.FileError, "file", None, lambda at: kvscatter.certify(STATIC, html=at / "text", no_timing=True)),
    (errors.ModelError, "decode", None, lambda at: kvscatter.inspect(at / "text")),
    (errors.ModelError, "decode", None, lambda at: kvscatter.certify(at / "text")),
    (errors.ModelError, "folder", None, lambda at: kvscatter.inspect(at)),
    (errors.OptionError, "usage", "max_seq", lambda at: kvscatter.convert(STATIC, at / "o", max_seq="x")),  # type: ignore[arg-type]
    (errors.OptionError, "usage", "max_seq", lambda at: kvscatter.convert(STATIC, at / "o", max_seq=True)),
    (errors.OptionError, "usage", "batch", lambda _: kvscatter.inspect(STATIC, batch=0)),
    (
        errors.OptionError,
        "usage",
        "window",
        lambda at: kvscatter.convert(STATIC, at / "o", max_seq=8, window="x"),
    ),  # type: ignore[arg-type]
    (errors.OptionError, "usage", "prompt", lambda _: kvscatter.certify(STATIC, prompt=[])),
    (errors.OptionError, "input", None, lambda _: kvscatter.inspect(STATIC, dim={"x": 3})),
    (errors.OptionError, "input", None, lambda _: kvscatter.certify(STATIC, prompt=[1, 2], batch=5)),
    (errors.OptionError, "input", None, lambda at: kvscatter.verify(at)),
    (errors.OptionError, "usage", None, lambda _: kvscatter.verify()),
    (errors.SessionError, "not_static", None, lambda _: kvscatter.certify(GROWING)),
    (errors.SessionError, "runtime_unusable", None, lambda at: kvscatter.certify(STATIC, ort_lib=at)),
]


@pytest.mark.parametrize(("of", "kind", "argument", "call"), REFUSED, ids=range(len(REFUSED)))
def test_bad_calls_are_refused(
    of: type[errors.Error], kind: str, argument: str | None, call: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(b"\xff no model")
    for _ in range(2):
        with pytest.raises(errors.Error) as caught:
            call(tmp_path)
        assert (type(caught.value), caught.value.kind, caught.value.argument) == (of, kind, argument), (
            caught.value
        )
        message = str(caught.value)
        assert message
        assert "\n" not in message
        assert "--help)" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    assert (tmp_path / "text").read_bytes() == b"\xff no model"


def test_unknown_arguments_are_type_errors(tmp_path: Path) -> None:
    for function in FUNCTIONS:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            function(STATIC, maximum=3)  # type: ignore[operator]
    with pytest.raises(TypeError, match="max_seq"):
        kvscatter.convert(STATIC, tmp_path / "o")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="os.PathLike"):
        kvscatter.inspect(3)  # type: ignore[arg-type]


def test_a_conversion_can_be_repeated(tmp_path: Path) -> None:
    output = tmp_path / "-static.onnx"
    first = kvscatter.convert(str(GROWING), output, max_seq=16)
    written = output.read_bytes()
    assert kvscatter.convert(GROWING, str(output), max_seq=16, no_rotation=False, window="ring") == first
    assert output.read_bytes() == written
    with pytest.raises(errors.ModelError):
        kvscatter.convert(TESTDATA / "onnx-node/test_tensorscatter/model.onnx", output, max_seq=16)
    assert output.read_bytes() == written


def test_threads_can_call_at_once(tmp_path: Path) -> None:
    def call(index: int) -> tuple[Any, ...]:
        # Models of one folder would share its file of weights.
        output = tmp_path / f"{index}" / "static.onnx"
        output.parent.mkdir()
        converted = kvscatter.convert(GROWING, output, max_seq=32)
        certificate = kvscatter.certify(output, original=GROWING, no_timing=True, steps=3)
        with pytest.raises(errors.FileError):
            kvscatter.inspect(output.parent / "missing.onnx")
        return certificate.verdict, certificate.logits, converted.caches, kvscatter.inspect(output).total

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(call, range(8)))
    assert got == [got[0]] * 8
    assert got[0][0] == "passed"


def test_other_threads_run_during_a_call() -> None:
    calling = threading.Event()
    counted = 0

    def certify() -> None:
        kvscatter.certify(STATIC, no_timing=True)
        calling.set()

    thread = threading.Thread(target=certify)
    thread.start()
    while not calling.wait(0.001):
        counted += 1
    thread.join()
    assert counted > 3


def test_the_calls_before_and_after_a_session_use_its_onnxruntime(tmp_path: Path) -> None:
    shutil.copytree(STATIC.parent, tmp_path / "m")
    before = kvscatter.certify(tmp_path / "m", no_timing=True)
    with kvscatter.Generator(tmp_path / "m", threads=1) as generator:
        after = kvscatter.certify(tmp_path / "m", no_timing=True)
        runtime = after.runtime
        assert generator.engine == f"{runtime.name} {runtime.version} with plugin {runtime.plugin}"
    assert before.logits == after.logits
