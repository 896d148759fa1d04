"""Measures the cost of a cache write on a GPU, next to other libraries, in one process.

    cargo xtask bench-gpu [OPTION]...

First, each library writes into painted caches, eager and replayed. The caches are compared, with guards
around them, with a loop over samples. Then every round samples each library once, in an order that changes.
Between samples, the device's last cache level is filled with other data. Within a sample, every write goes to
other slots from another update.

With `--choices`, only kvscatter's write is measured, with the default spread over the device and with others.
"""

import argparse
import gc
import json
import pathlib
import platform
import random
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import choices
import report
from cases import CASES, SMALL, Case
from results import Result, Run
from targets import verdicts

FOLDER = "crates/kvscatter-cuda/bench"
PAGE = pathlib.Path("docs/cuda.md")
PACKAGES = ("torch", "triton", "jax", "cupy-cuda13x", "cupy-cuda12x")
# A case does not begin if fewer seconds are left.
LONGEST_CASE = 40
OF_A_CASE = 5  # seconds of timing
# The share of the device's memory for each of caches, their expected contents, and updates.
SHARE = 0.12


def main() -> int:
    """Returns 0 if everything was measured or tested, and all results were right."""
    given = options().parse_args()
    if given.self_test:
        import self_test

        return self_test.run(SMALL, given.library, given.driver)
    if given.read:
        run = Run.of_json(json.loads(given.read.read_text(encoding="utf-8")))
    else:
        if given.library is None:
            raise SystemExit("--library: missing; `cargo xtask bench-gpu` builds it and prints its path")
        run = measure(CASES, given.library, given.seconds, given.choices)
    text = choices.page(run) if given.choices else report.page(run)
    print(f"\n{text}", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        results, table = ("choices.json", "choices.md") if given.choices else ("results.json", "table.md")
        (given.out / results).write_text(json.dumps(run.as_json()), encoding="utf-8")
        (given.out / table).write_text(text, encoding="utf-8")
    if given.choices:
        return 0
    if given.write_docs:
        report.write_docs(PAGE, text)
    missed = [verdict for verdict in verdicts(run) if verdict.judged == "missed"]
    for verdict in missed:
        print(f"missed: {verdict.target}: {verdict.case}: {report.shown(verdict.value)}")
    return 0


def options() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog="cargo xtask bench-gpu")
    parser.add_argument("--library", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--driver", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where results.json and table.md go")
    parser.add_argument(
        "--seconds",
        type=float,
        default=450,
        metavar="N",
        help="seconds for all cases (%(default)s); a case that might not end in time is left out",
    )
    parser.add_argument(
        "--read", type=pathlib.Path, metavar="FILE", help="a results.json, instead of measuring"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--write-docs", action="store_true", help="rewrite the tables of docs/cuda.md")
    form.add_argument(
        "--choices",
        action="store_true",
        help="time kvscatter alone, and change each choice of how a launch is spread over the device in turn",
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="test small cases of all libraries without a GPU, and the tables",
    )
    return parser


def measure(cases: list[Case], library_file: pathlib.Path, seconds: float, of_choices: bool = False) -> Run:
    """Measures all cases for which there is time.

    Our write is measured next to others, or next to itself with other choices.
    """
    begin = time.monotonic()
    random.seed(1)
    if why := missing():
        raise SystemExit(
            f"{why}; where there is a device, {FOLDER} and {library_file} are enough, and no Rust is needed:\n"
            f"    python3 bench_gpu.py --library {library_file.name} --out DIR"
        )
    import torch

    import one_case
    from ours import Library
    from timing import Clocks

    gpu, library = Clocks(), Library(library_file)
    run = Run(machine(torch.cuda.get_device_name()), gpu.copy_bandwidth(), [], {})
    print(f"{run.machine}: copies move {run.copy_bandwidth / 1e6:.3g} TB/s", flush=True)
    peers = [] if of_choices else one_case.installed(run.skipped)
    budget = int(SHARE * gpu.properties.total_memory)
    for case in cases:
        left = seconds - (time.monotonic() - begin)
        if left < LONGEST_CASE:
            run.skipped[case.label] = "no time left"
            continue
        result = one_case.measure(gpu, library, peers, case, budget, OF_A_CASE, of_choices)
        run.results.append(result)
        print(line(result), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    return run


def missing() -> str | None:
    """Returns what is missing on this machine, if anything."""
    try:
        import torch
    except ImportError as why:
        return f"PyTorch, which memory and streams come from, is missing: {why}"
    return None if torch.cuda.is_available() else "no CUDA device"


def line(result: Result) -> str:
    """Returns a line about one case, printed as soon as the case is measured."""
    times = (f"{name} {report.shown(result.median(name, 'replayed'))}" for name in result.samples)
    return f"{result.case.label}: {', '.join(times)} µs" + "".join(
        f"; no {name}: {why}" for name, why in result.absent.items()
    )


def machine(name: str) -> str:
    """Returns the GPU, its driver, and the versions of the libraries."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError):
        found = []
    driver = f", driver {found[0]}" if found else ""
    return f"{name}{driver}; Python {platform.python_version()}, {', '.join(packages())}"


def packages() -> list[str]:
    """Returns the installed packages with their versions."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
