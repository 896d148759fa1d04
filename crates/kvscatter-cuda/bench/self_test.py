"""What can be tried without a GPU: small cases on the CPU by all who run there, and the page that follows.

With the library, and a driver for it that runs on the CPU, ours takes part.
"""

import json
import os
import pathlib
from functools import partial
from types import ModuleType

import one_case
import report
from cases import Case
from memory import Memory
from names import AGAIN, OURS
from ours import Library, Ours, check_contract
from place import Cpu, FakeDriver, Place
from results import Result, Run, Samples

CACHE_LEVEL = 1 << 16
BUDGET = 1 << 22


def run(cases: list[Case], library: pathlib.Path | None, driver: pathlib.Path | None) -> int:
    """0 where everyone's results are right."""
    # Read when Triton is imported: its kernels then run in Python.
    os.environ["TRITON_INTERPRET"] = "1"
    skipped: dict[str, str] = {}
    peers = one_case.installed(skipped)
    loaded = Library(library, driver) if library and driver else None
    place = FakeDriver(driver) if driver else Cpu()
    results = [of_case(case, place, peers, loaded, skipped) for case in cases]
    found = Run("no GPU: these times are made up", 1e6, results, skipped)
    text = report.page(found)
    if report.page(Run.of_json(json.loads(json.dumps(found.as_json())))) != text:
        raise SystemExit("the page of what was written as JSON is another one")
    print(text)
    return 0


def of_case(
    case: Case, place: Place, peers: list[ModuleType], library: Library | None, skipped: dict[str, str]
) -> Result:
    """Checks everyone; times are made up, since the page wants some."""
    memory = Memory(case, place, CACHE_LEVEL, BUDGET)
    ways, ours = one_case.ways_of(peers, memory, skipped), None
    if library:
        if not case.is_functional:
            check_contract(library, memory)
        ours = Ours(library, memory)
        ways = [*ours.ways(), *ways]
        ours.host_time()
    for way in ways:
        one_case.check(memory, way, partial(one_case.enqueue_all, memory, way))
    if ours:
        ours.close()
    names = [way.name for way in ways]
    print(f"{case.says}: right are {', '.join(names)}", flush=True)
    samples = {name: Samples([2.0, 3.0], [1.0, 2.0], [1.0, 1.0]) for name in [OURS, AGAIN, *names]}
    return Result(case, samples, [name for name in names if not name.startswith(OURS)], [1.0], {})
