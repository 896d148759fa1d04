"""Tests ``kvscatter certify``: good models pass, and every planted fault is found and named."""

import json
import os
import pathlib
import re
import shutil

import onnx
import pytest

from support import faults
from support.command import TESTDATA, kvscatter

LIBRARY = os.environ["KVSCATTER_ORT_LIB"]
STATIC = TESTDATA / "mobius-llama-static" / "model.onnx"
GROUP_QUERY = TESTDATA / "genai-llama-gqa" / "model.onnx"
DYNAMIC = TESTDATA / "mobius-llama-dynamic" / "model.onnx"


def certify(model: pathlib.Path, *options: object, exit_code: int = 0) -> dict:
    """Returns the certificate."""
    arguments = ["--ort-lib", LIBRARY, "--steps", 4, "--json", *options]
    return json.loads(kvscatter("certify", model, *arguments, exit_code=exit_code).stdout)


def failed(certificate: dict) -> dict[str, list[dict]]:
    """Returns the failed checks by the kind of their evidence."""
    return {
        kind: [check for check in checks if check["verdict"] == "failed"]
        for kind, checks in certificate["evidence"].items()
    }


def worst(certificate: dict, against: str) -> float:
    compared = [each for each in certificate["logits"] if each["against"] == against]
    assert compared
    assert {each["fill"] for each in compared} == {"zeros", "canaries"}
    assert all(each["compared"] > 0 and each["not_finite"] == 0 for each in compared)
    return max(each["worst"] for each in compared)


def test_a_converted_model_passes_next_to_its_original(converted, tmp_path):
    page = tmp_path / "certificate.html"
    certificate = certify(converted.model, "--original", converted.original, "--html", page)
    assert certificate["verdict"] == "passed"
    assert "for batches of up to 3" in certificate["model"]["compared"]
    assert all(not checks for kind, checks in failed(certificate).items() if kind != "timed")
    assert worst(certificate, "original") <= certificate["parameters"]["tolerance"]
    html = page.read_text()
    assert html.lower().startswith("<!doctype html>")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", html), "it is not self-contained"
    assert "<script" not in html


def test_a_static_export_passes_next_to_the_dynamic_one(tmp_path):
    certificate = certify(STATIC, "--original", DYNAMIC)
    assert certificate["verdict"] == "passed"
    assert worst(certificate, "original") <= certificate["parameters"]["tolerance"]


@pytest.mark.parametrize("original", [None, DYNAMIC])
def test_an_operator_that_writes_its_caches_passes_as_far_as_it_goes(original, tmp_path):
    page = tmp_path / "certificate.html"
    options = ["--original", original] if original else []
    certificate = certify(GROUP_QUERY, "--capacity", 64, "--html", page, *options)
    assert certificate["verdict"] == "passed"
    checks = {check["id"]: check for checks in certificate["evidence"].values() for check in checks}
    assert checks["present-aliases-past"]["verdict"] == "passed"
    left_out = checks["every-scenario-is-taken"]
    assert left_out["verdict"] == "not_applicable"
    assert "not run: prompts padded on the left, chunks of several samples" in left_out["evidence"]
    assert left_out["evidence"] in page.read_text()


def test_without_an_original_it_is_compared_with_an_unaliased_run(llama):
    certificate = certify(llama)
    assert certificate["verdict"] == "passed"
    assert worst(certificate, "unaliased_run") <= certificate["parameters"]["tolerance"]


def test_the_environment_names_the_library_too(llama, monkeypatch):
    monkeypatch.setenv("KVSCATTER_ORT_LIB", LIBRARY)
    done = kvscatter("certify", llama, "--steps", 2)
    assert "ONNX Runtime" in done.stdout


def test_a_library_that_is_none_is_one_line(llama, tmp_path):
    done = kvscatter("certify", llama, "--ort-lib", tmp_path / "no.so", exit_code=2)
    assert len(done.stderr.splitlines()) == 1
    assert "no.so" in done.stderr


@pytest.fixture(params=["converted", "exported"])
def static(request, llama, tmp_path) -> pathlib.Path:
    """Returns good models with a static cache: a converted one, and an exported one with 3-D caches."""
    if request.param == "converted":
        return llama
    shutil.copy(STATIC.with_name("model.onnx.data"), tmp_path)
    return shutil.copy(STATIC, tmp_path / "good.onnx")


def spoilt(good: pathlib.Path, fault, folder: pathlib.Path) -> pathlib.Path:
    """Saves the model with a fault, which the checker accepts as a model, in the test's folder."""
    model = onnx.load(good, load_external_data=False)
    fault(model)
    path = folder / "spoilt.onnx"
    onnx.save(model, path)
    onnx.checker.check_model(path)
    return path


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        (
            faults.index_off_by_one,
            "rows-lie-where-named",
            "rows were written from slot 1 on, the write index is 0",
        ),
        (faults.copied_by_multiplying, "nothing-in-between", "Mul"),
        (faults.copied_by_identity, "nothing-in-between", "not present itself"),
        (faults.slot_clobbered, "only-named-rows-change", "no write index names it"),
        (faults.negated_twice, "nothing-in-between", "Neg"),
        (faults.nan_in_padding, "caches-stay-finite", "NaN"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_found_and_named(static, tmp_path, fault, check, message):
    certificate = certify(spoilt(static, fault, tmp_path), exit_code=1)
    assert certificate["verdict"] == "failed"
    found = {each["id"]: each for checks in failed(certificate).values() for each in checks}
    assert message in found[check]["failures"][0]["message"]
    if fault is faults.slot_clobbered:
        assert {failure["slot"] for failure in found[check]["failures"]} == {0}
    if fault is faults.negated_twice:
        assert not failed(certificate)["observed"], (
            "rows, pointers and logits are right: the structure alone tells"
        )


@pytest.mark.parametrize("options", [["--steps", 1000], ["--prompt", "20,3"]], ids=["steps", "prompt"])
def test_more_tokens_than_slots_are_refused(llama, tmp_path, options):
    page = tmp_path / "certificate.html"
    done = kvscatter("certify", llama, "--ort-lib", LIBRARY, "--html", page, *options, exit_code=2)
    assert len(done.stderr.splitlines()) == 1
    assert "16" in done.stderr
    assert not page.exists()
