"""Runs a kernel or a runtime on the conformance cases, and writes its answers to a folder.

    python run.py my_kernel.py -o results
    kvscatter verify conformance --actual results

`my_kernel.py` defines functions over NumPy arrays. Define only those that you have:

    def tensor_scatter(past_cache, update, write_indices, *, axis, mode): ...
    def attention(q, k, v, *, mask, nonpad_kv_seqlen, is_causal, scale, softcap, q_num_heads, kv_num_heads,
                  left_window_size, right_window_size, past_key, past_value): ...
    def kv_cache_update(cache, update, write_indices, update_lengths, *, cache_mode, update_form): ...
    def kv_cache_operation(new_kv, layer_id, past, token_offset, seq_len): ...

A function returns the output. It may write into the cache and return that, or return nothing. It raises any exception
to refuse a call. An absent input is None. A parameter that your function does not have is left out, unless the case
sets it. With a parameter `in_place`, a function is asked for a plain call or to write into the cache, and may return
`{"output": ..., "same_memory": True}`. `attention` may return `(y, present_key, present_value)`, which the rule
attention-present-without-past needs.

A runtime that loads ONNX models defines this instead:

    def run(case, in_place): ...          # returns the outputs as a list of arrays
    def name(): ...                       # optional, like version()
    OPERATORS = ["TensorScatter"]         # optional: the operators that it is asked for

`case` is a `Case` of harness/case.py. With `in_place`, `run` writes into the memory of `case.cache`. A runtime
whose caches are in other memory copies them into `case.cache` before it returns or fails. It returns
`{"outputs": [...], "same_memory": True}`, or False if it made a copy. It raises `NotPossible`, of the same file, if it
cannot be asked to write in place.

The types that NumPy lacks (bfloat16, float8, 4-bit) are those of the package ml_dtypes.
"""

import argparse
import fnmatch
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from harness.case import DATA
from harness.worker import Worker


def main() -> None:
    """Runs the cases that the arguments select."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("kernel", type=Path, help="a Python file with your functions")
    options.add_argument("-o", "--output", type=Path, required=True, help="the folder for the answers")
    options.add_argument("--corpus", type=Path, default=Path(__file__).parent, help="another folder of cases")
    options.add_argument("--only", metavar="GLOB", help="run the cases whose names match, such as 'ring-*'")
    options.add_argument("--rule", metavar="ID", help="run the cases of one rule of index.json")
    options.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="ID",
        help="leave out the cases of a rule; repeat it",
    )
    options.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for one call (60)")
    given = options.parse_args()
    index = json.loads((given.corpus / "index.json").read_text())
    selected = [
        case
        for case in index["cases"]
        if fnmatch.fnmatch(case["name"], given.only or "*")
        and given.rule in (None, case["rule"])
        and case["rule"] not in given.without
    ]
    if not selected:
        raise SystemExit(
            f"no case of {given.corpus} has the name {given.only or '*'} and the rule {given.rule or '*'}"
        )
    run_cases(given, selected, is_whole=len(selected) == len(index["cases"]))


def run_cases(given: argparse.Namespace, selected: list[dict[str, Any]], is_whole: bool) -> None:
    """Runs the cases and prints what happened, and the command that judges the answers."""
    given.output.mkdir(parents=True, exist_ok=True)
    with Worker(given.kernel, given.output / "output.txt", given.timeout) as worker:
        about = worker.load()
        (given.output / "run.json").write_text(json.dumps(about, indent=1))
        print(f"{about['name']} {about['version']}".strip())
        asked = [case for case in selected if case["operator"] in about["operators"]]
        counts: Counter[str] = Counter()
        for number, case in enumerate(asked, 1):
            answer = run_case(worker, given.corpus / case["folder"], given.output / case["folder"], case)
            counts.update(f"{kind} {call['status']}" for kind, call in answer.items())
            progress(number, len(asked), case["name"], answer)
    print(f"{len(asked)} cases: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}")
    skipped = sorted({case["operator"] for case in selected} - set(about["operators"]))
    if skipped:
        print(f"not asked for: {', '.join(skipped)}")
    print(f"what the kernel printed: {given.output / 'output.txt'}")
    print("\nNow compare the answers with the expected ones:")
    for words in judging(given, asked, is_whole=is_whole and len(asked) == len(selected)):
        print(f"  kvscatter verify {words}")


def judging(given: argparse.Namespace, asked: list[dict[str, Any]], is_whole: bool) -> list[str]:
    """Returns the arguments of the command that judges these cases and no others."""
    if is_whole:
        return [f"{given.corpus} --actual {given.output}"]
    if not (given.only or given.rule or given.without):
        groups = sorted({case["folder"].split("/")[0] for case in asked})
        return [f"{given.corpus / group} --actual {given.output / group}" for group in groups]
    folders: dict[str, list[str]] = {}
    for case in asked:
        folders.setdefault(os.path.dirname(case["folder"]), []).append(str(given.corpus / case["folder"]))
    return [f"{' '.join(cases)} --actual {given.output / group}" for group, cases in folders.items()]


def run_case(worker: Worker, folder: Path, output: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Makes the calls of one case and writes the answer."""
    shutil.rmtree(output, ignore_errors=True)
    (output / DATA).mkdir(parents=True)
    job = {"folder": folder, "output": output / DATA, "name": case["name"], "operator": case["operator"]}
    answer = {"plain": worker.call({**job, "kind": "plain"})}
    if case["in_place"] is not None:
        kind = "kept" if case["in_place"] == "no" else "in_place"
        answer["in_place"] = worker.call({**job, "kind": kind})
    (output / DATA / "answer.json").write_text(json.dumps(answer, indent=1))
    return answer


def progress(number: int, count: int, name: str, answer: dict[str, Any]) -> None:
    """Prints crashes, timeouts and changed inputs. On a terminal, also the number of the case."""
    for kind, call in answer.items():
        faults = [call["status"]] * (call["status"] in ("crashed", "timeout"))
        faults += [f"the call changed {name}" for name in call.get("changed", [])]
        for fault in faults:
            print(f"\r{name}, {kind.replace('_', ' ')}: {fault} {call.get('message', '')}".rstrip())
    if sys.stdout.isatty():
        print(f"\r{number} of {count} ", end="\n" if number == count else "", flush=True)


if __name__ == "__main__":
    main()
