"""Checks the plugin in ONNX Runtime on the cases of a seed, as the plugin's tests do.

The last line has the numbers of calls that were accepted and refused. A difference is an error.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
TESTS = pathlib.Path(__file__).parents[2] / "crates/kvscatter-ort-plugin/python-tests"
sys.path.insert(0, str(TESTS))

import onnxruntime as ort  # noqa: E402 - the runtime reads the variable when it is imported

import test_cases as writes  # noqa: E402
import test_operator_attention as reads  # noqa: E402
import test_operator_group_query as steps  # noqa: E402
from support import attention, group_query  # noqa: E402
from support.sessions import HAS_WINDOWS, LIBRARY, PROVIDER, unregister  # noqa: E402

WRITES, READS, STEPS = "624", "234", "225"


def _check(folder: pathlib.Path, seed: str) -> tuple[int, int]:
    accepted = refused = 0
    command = [os.environ["KVSCATTER_COMMAND"], "cases", "--output", folder / "cases", "--seed", seed]
    subprocess.run([*command, "--count", WRITES], check=True, stdout=subprocess.DEVNULL)
    for case_folder in sorted((folder / "cases").iterdir()):
        case = writes.Case(case_folder)
        if case.is_carried:
            with _Noted(case_folder.name):
                writes.check(case)
            accepted, refused = accepted + (not case.refused), refused + bool(case.refused)
    path = folder / "attention.jsonl"
    subprocess.run([os.environ["KVSCATTER_ATTENTION_CASES"], path, seed, READS], check=True)
    for n, case in enumerate(attention.cases(path)):
        if case.refusal or (case.opset >= 25 and not HAS_WINDOWS):
            continue
        with _Noted(case.name):
            reads.check(case, n, shaped=n % 4 < 2)
        accepted += 1
    path = folder / "group_query.jsonl"
    subprocess.run([os.environ["KVSCATTER_GROUP_QUERY_CASES"], path, seed, STEPS], check=True)
    for n, case in enumerate(group_query.cases(path)):
        with _Noted(case.name):
            steps.check(case.painted(), n, shaped=n % 4 < 2)
        accepted += 1
    return accepted, refused


class _Noted:
    """Adds the name of a case to a failure."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, _kind, failure, _trace):
        if failure is not None:
            failure.add_note(f"case {self.name}")


def _main(seed: str) -> None:
    ort.set_default_logger_severity(4)
    ort.register_execution_provider_library(PROVIDER, LIBRARY)
    with tempfile.TemporaryDirectory() as folder:
        print(*_check(pathlib.Path(folder), seed))
    unregister()


_main(sys.argv[1])
