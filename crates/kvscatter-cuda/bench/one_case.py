"""Measures one case. Each library is checked, then timed, then checked again."""

import importlib
import pathlib
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from types import ModuleType

from cases import Case
from memory import Memory
from ours import Library, Ours, check_contract
from results import Result
from timing import Clocks
from way import Role, Way

HOST_ROUNDS = 15


class WrongResult(Exception):
    """The result of a write is wrong."""


def installed(skipped: MutableMapping[str, str]) -> list[ModuleType]:
    """Returns the installed peers. `skipped` receives the reasons for the others."""
    found = []
    for file in sorted(pathlib.Path(__file__).with_name("peers").glob("with_*.py")):
        try:
            found.append(importlib.import_module(f"peers.{file.stem}"))
        except Exception as why:  # A broken package counts as not installed.
            skipped[file.stem.removeprefix("with_")] = one_line(why)
    return found


def measure(
    gpu: Clocks,
    library: Library,
    peers: Sequence[ModuleType],
    case: Case,
    budget: int,
    seconds: float,
    of_choices: bool = False,
) -> Result:
    """Returns the times of all libraries with right results. A wrong result of our write is an error."""
    memory = Memory(case, gpu.place, gpu.cache_level, budget)
    if not case.is_functional:
        check_contract(library, memory)
    ours, absent = Ours(library, memory), dict[str, str]()
    ways, graphs = [], {}
    for way in [*(ours.ways_of_choices() if of_choices else ours.ways()), *ways_of(peers, memory, absent)]:
        try:
            check(memory, way, partial(enqueue_all, memory, way))
            if way.is_capturable:
                graph = gpu.captured(way, len(memory.writes))
                check(memory, way, graph.replay)
                graphs[way.name] = graph
            ways.append(way)
        except Exception as why:
            # A peer may fail, but our write must not.
            if way.role in (Role.OURS, Role.VARIANT):
                raise
            absent[way.name] = one_line(why)
    host = []
    for _ in range(HOST_ROUNDS):
        memory.place.synchronize()
        host.append(ours.host_time())
    samples = gpu.measure(ways, graphs, len(memory.writes), seconds)
    # By now, every library has made the same writes many times, at full speed.
    refuse_wrong(memory, "all together", memory.wrong())
    ours.close()
    names = [way.name for way in ways if way.role is Role.PEER]
    return Result(case, samples, names, host, absent)


def ways_of(peers: Sequence[ModuleType], memory: Memory, absent: MutableMapping[str, str]) -> list[Way]:
    """Returns the ways of the peers that can write this case."""
    found: list[Way] = []
    for peer in peers:
        try:
            found.extend(peer.ways(memory))
        except Exception as why:  # Absent, or an error of the peer, such as no memory left.
            absent[peer.__name__.removeprefix("peers.with_")] = one_line(why)
    return found


def check(memory: Memory, way: Way, work: Callable[[], object]) -> None:
    """Runs all writes once into painted caches, and compares all caches and their guards."""
    memory.place.synchronize()
    memory.paint()
    way.start_over()
    memory.place.synchronize()
    work()
    if way.wait:
        way.wait()
    memory.place.synchronize()
    if way.role is Role.CEILING:
        return
    refuse_wrong(memory, way.name, memory.wrong(way.caches() if way.caches else None))


def refuse_wrong(memory: Memory, name: str, wrong: str | None) -> None:
    """Raises `WrongResult` if there is a wrong value."""
    if wrong:
        raise WrongResult(f"{memory.case.label}: {name}: {wrong} is wrong")


def enqueue_all(memory: Memory, way: Way) -> None:
    """Runs every write once."""
    for number in range(len(memory.writes)):
        way.write(number)


def one_line(why: BaseException) -> str:
    """Returns the message of an error in one line of limited length."""
    words = " ".join(str(why).split()) or type(why).__name__
    return words if len(words) <= 160 else f"{words[:157]}..."
