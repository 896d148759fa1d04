"""The harness for kernel authors, conformance/run.py, with kernels that are right, wrong, crash and hang."""

import json
import subprocess
import sys

import onnx
import pytest

from support.command import COMMAND, ROOT, kvscatter

RUN = ROOT / "conformance" / "run.py"

RIGHT = """
import numpy as np

def tensor_scatter(past_cache, update, write_indices, *, axis, mode):
    if axis == 0 or not -past_cache.ndim < axis < past_cache.ndim:
        raise ValueError("the axis is out of range")
    capacity, rows = past_cache.shape[axis], update.shape[axis]
    starts = np.zeros(len(past_cache), np.int64) if write_indices is None else write_indices
    shape = list(update.shape)
    shape[axis] = capacity
    if (
        list(past_cache.shape) != shape or rows > capacity or mode not in ("linear", "circular")
        or past_cache.dtype != update.dtype or starts.shape != (len(past_cache),)
    ):
        raise ValueError("the shapes, types or attributes do not fit")
    starts = [int(start) for start in starts]
    if mode == "linear" and any(not 0 <= start <= capacity - rows for start in starts):
        raise ValueError("an index is out of range")
    cache, new = np.moveaxis(past_cache, axis, 1), np.moveaxis(update, axis, 1)
    for sample, start in enumerate(starts):
        cache[sample, [(start + row) % capacity for row in range(rows)]] = new[sample]
"""
# Faults of kernels: each replaces a part of the right one.
CLAMPS = (
    'raise ValueError("an index is out of range")',
    "starts = [min(max(s, 0), capacity - rows) for s in starts]",
)
COPIES = ("    cache, new", "    past_cache = past_cache.copy()\n    cache, new")
RETURNS = ("] = new[sample]", "] = new[sample]\n    return past_cache")
WRITES_FIRST = (
    "    if mode ==",
    "    np.moveaxis(past_cache, axis, 1)[:1, :rows] = np.moveaxis(update, axis, 1)[:1]\n    if mode ==",
)
CHANGES_UPDATE = ("    cache, new", "    update[...] = update[..., ::-1].copy()\n    cache, new")
CRASHES = (
    "    cache, new",
    "    import os; os.abort() if mode == 'circular' and rows == 1 else None\n    cache, new",
)
HANGS = ("    cache, new", "    while rows == 0: pass\n    cache, new")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Returns cases of the oracle with an index like that of conformance/."""
    root = tmp_path_factory.mktemp("corpus")
    kvscatter("cases", "-o", root / "tensor_scatter", "--seed", 24, "--count", 52)
    cases = []
    for folder in sorted((root / "tensor_scatter").iterdir()):
        graph = onnx.load(folder / "model.onnx").graph
        # The bytes of strings are compared by `kvscatter verify` alone.
        if graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.STRING:
            continue
        refused = (folder / "refused.json").exists()
        cases.append(
            {
                "name": folder.name,
                "folder": f"tensor_scatter/{folder.name}",
                "operator": "TensorScatter",
                "rule": "refused" if refused else "written",
                "in_place": "unchanged" if refused else "yes",
            }
        )
    (root / "index.json").write_text(json.dumps({"version": 1, "cases": cases}))
    return root


class Answers:
    """What the harness wrote for a kernel with one fault."""

    def __init__(self, corpus, folder, *faults, options=()):
        source = RIGHT
        for part, replacement in faults:
            assert part in source
            source = source.replace(part, replacement)
        (folder / "kernel.py").write_text(source)
        self.corpus, self.folder = corpus, folder / "results"
        command = [sys.executable, RUN, folder / "kernel.py", "-o", self.folder, "--corpus", corpus, *options]
        self.done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert self.done.returncode == 0, self.done.stderr
        cases = json.loads((corpus / "index.json").read_text())["cases"]
        self.cases = {case["name"]: case for case in cases if (self.data(case) / "answer.json").exists()}
        self.answers = {
            name: json.loads((self.data(case) / "answer.json").read_text())
            for name, case in self.cases.items()
        }

    def data(self, case):
        return self.folder / case["folder"] / "test_data_set_0"

    def count(self, call, **expected):
        """Returns the number of cases whose call has these values."""
        calls = [answer[call] for answer in self.answers.values()]
        return sum(all(each.get(key) == value for key, value in expected.items()) for each in calls)

    def verdicts(self):
        """Returns what `kvscatter verify` returns for each case."""
        actual = ["--actual", self.folder / "tensor_scatter", "--json"]
        done = subprocess.run(
            [COMMAND, "verify", self.corpus / "tensor_scatter", *actual], capture_output=True, text=True
        )
        verdicts = json.loads(done.stdout)["cases"]
        return {
            n: v for n, case in self.cases.items() for v in verdicts if v["case"].endswith(case["folder"])
        }

    def failed(self):
        """Returns the cases whose outputs, refusal or buffer after a call in place are wrong."""
        return {name for name, verdict in self.verdicts().items() if verdict["verdict"] != "pass"}


def test_a_right_kernel_passes(corpus, tmp_path):
    answers = Answers(corpus, tmp_path)
    assert len(answers.cases) > 40
    assert answers.failed() == set()
    written = sum(case["in_place"] == "yes" for case in answers.cases.values())
    assert answers.count("in_place", status="returned", same_memory=True) == written > 20
    assert answers.count("plain", status="refused") == len(answers.cases) - written > 10
    assert f"kvscatter verify {corpus} --actual {tmp_path / 'results'}" in answers.done.stdout


def test_a_kernel_that_returns_its_result_passes(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, RETURNS)
    assert answers.failed() == set()


def test_a_kernel_that_clamps_fails(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, CLAMPS)
    wrong = answers.failed()
    assert wrong and all(answers.cases[name]["in_place"] == "unchanged" for name in wrong)


@pytest.mark.parametrize(
    ("rule", "part", "replacement"),
    [
        ("ring-negative-index", "(start + row)", "(start % 2**32 + row)"),
        ("ring-negative-index", "(start + row)", "(start % 2**64 + row)"),
        ("axis", "update.shape[axis]", "update.shape[-2]"),
    ],
)
def test_a_planted_fault_fails_the_rule_that_it_breaks(tmp_path, rule, part, replacement):
    answers = Answers(ROOT / "conformance", tmp_path, (part, replacement), options=["--rule", rule])
    assert answers.failed()


def test_a_copy_is_recorded(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, COPIES, RETURNS)
    assert answers.failed() == set()
    assert answers.count("in_place", status="returned", same_memory=False) > 20
    # An empty cache has no memory, so it cannot be copied.
    assert answers.count("in_place", status="returned", same_memory=True) > 0


def test_a_partial_write_is_seen(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, WRITES_FIRST)
    partly = {name for name, verdict in answers.verdicts().items() if verdict["in_place"] == "partly-written"}
    assert partly and all(answers.answers[name]["in_place"]["status"] == "refused" for name in partly)


def test_a_changed_update_is_recorded(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, CHANGES_UPDATE)
    assert answers.count("plain", changed=["update"]) > 10
    assert "the call changed update" in answers.done.stdout


def test_a_crash_ends_one_call(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, CRASHES)
    crashed = answers.count("plain", status="crashed")
    assert crashed == answers.count("in_place", status="crashed") > 0
    assert answers.count("plain", status="returned") > 10
    assert "Aborted" in answers.done.stdout


def test_an_endless_loop_ends_one_call(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, HANGS, options=["--timeout", "1", "--only", "*no_*"])
    assert answers.count("plain", status="timeout") > 0
    assert answers.count("plain", status="returned") > 0


def test_one_rule(corpus, tmp_path):
    answers = Answers(corpus, tmp_path, options=["--rule", "refused"])
    assert answers.cases and all(case["rule"] == "refused" for case in answers.cases.values())


def test_a_file_that_cannot_be_loaded(corpus, tmp_path):
    for text, message in (("import absent_module", "ModuleNotFoundError"), ("", "defines none of")):
        (tmp_path / "kernel.py").write_text(text)
        command = [sys.executable, RUN, tmp_path / "kernel.py", "-o", tmp_path / "out", "--corpus", corpus]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1 and message in done.stderr, done.stderr
