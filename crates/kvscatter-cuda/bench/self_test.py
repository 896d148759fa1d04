"""Tests small cases of all libraries that run without a GPU, and the pages with the results.

If a library and a simulated driver are given, our write takes part.
"""

import json
import os
import pathlib
from functools import partial
from types import ModuleType

import choices
import one_case
import report
from cases import Case
from memory import Memory
from names import AGAIN, OURS
from ours import Library, Ours, check_contract
from place import Cpu, FakeDriver, Place
from results import Result, Run, Samples
from way import Role

CACHE_LEVEL = 1 << 16
BUDGET = 1 << 22
MADE_UP = "no GPU: these times are made up"


def run(cases: list[Case], library: pathlib.Path | None, driver: pathlib.Path | None) -> int:
    """Returns 0 if the results of all libraries are right."""
    # Triton reads this when it is imported, and then runs its kernels in Python.
    os.environ["TRITON_INTERPRET"] = "1"
    skipped: dict[str, str] = {}
    peers = one_case.installed(skipped)
    loaded = Library(library, driver) if library and driver else None
    place = FakeDriver(driver) if driver else Cpu()
    results = [of_case(case, place, peers, skipped, loaded) for case in cases]
    found = Run(MADE_UP, 1e6, results, skipped)
    text = report.page(found)
    if report.page(Run.of_json(json.loads(json.dumps(found.as_json())))) != text:
        raise SystemExit("the page changes when the run is written as JSON and read again")
    print(text)
    if loaded:
        results = [of_case(case, place, [], {}, loaded, of_choices=True) for case in cases]
        print(choices.page(Run(MADE_UP, 1e6, results, {})))
    return 0


def of_case(
    case: Case,
    place: Place,
    peers: list[ModuleType],
    skipped: dict[str, str],
    library: Library | None,
    of_choices: bool = False,
) -> Result:
    """Checks all libraries. The times are made up, because the page needs some."""
    memory = Memory(case, place, CACHE_LEVEL, BUDGET)
    ways, ours = one_case.ways_of(peers, memory, skipped), None
    if library:
        if not case.is_functional:
            check_contract(library, memory)
        ours = Ours(library, memory)
        ways = [*(ours.ways_of_choices() if of_choices else ours.ways()), *ways]
        ours.host_time()
    for way in ways:
        one_case.check(memory, way, partial(one_case.enqueue_all, memory, way))
    if ours:
        ours.close()
    names = [way.name for way in ways]
    print(f"{case.label}: right results of {', '.join(names)}", flush=True)
    samples = {name: Samples([2.0, 3.0], [1.0, 2.0], [1.0, 1.0]) for name in [OURS, AGAIN, *names]}
    return Result(case, samples, [way.name for way in ways if way.role is Role.PEER], [1.0], {})
