"""Runs histories on engines with planted faults, each of which must be found and shortened."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscatter.histories import Engine, EngineError, History, ProcessEngine, Refused, Report, check, replay
from kvscatter.histories.__main__ import main
from kvscatter.histories._facts import Facts
from kvscatter.histories._history import (
    OPERATIONS,
    Accept,
    Feed,
    Fork,
    Load,
    Refusal,
    Reorder,
    Save,
    Start,
    Truncate,
)
from kvscatter.histories._judge import Reference
from kvscatter.histories._words import story
from ring_engine import (
    SLOTS,
    VOCABULARY,
    WIDTH,
    WINDOW,
    ChangesBeforeRefusal,
    ForgetsRefusal,
    Ring,
    Sample,
)

ROOT = Path(__file__).parents[3]
DECODERS = ROOT / "testdata"
FAULTS: list[type[Engine]] = Ring.__subclasses__()


def found(make: Callable[[], Engine], **options: Any) -> Report:
    report = check(make, minutes=5, histories=1000, **options)
    assert report.failed is not None and not report.passed and report.is_repeatable, str(report)
    return report


def test_a_right_engine_passes() -> None:
    report = check(Ring, minutes=5, histories=300)
    assert report.passed and report.histories == 300, str(report)
    # Every operation was done, and rewinds were refused too.
    assert report.done.keys() == {name for name in OPERATIONS if hasattr(Ring, name)}
    assert report.refused.keys() == {"truncate", "accept"}
    report.assert_passed()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_are_found_and_shortened(fault: type[Engine]) -> None:
    report = found(fault)
    assert report.history is not None and len(report.history) <= 6, str(report)
    with pytest.raises(AssertionError, match="The shortest history"):
        report.assert_passed()


def test_a_capacity_must_be_refused() -> None:
    class Full(Ring):
        windows, edges, capacity = (), (), SLOTS

        def window(self, sample: Sample) -> int:
            return 1000

        def feed(self, rows: list[list[int]]) -> list[Any]:
            if any(
                len(sample.tokens) + len(row) > SLOTS for sample, row in zip(self.samples, rows, strict=True)
            ):
                raise IndexError("full")
            return super().feed(rows)

    assert "feed raises IndexError: full" in found(Full).failed.message  # type: ignore[union-attr]
    Full.refusals = (IndexError,)
    assert check(Full, minutes=5, histories=100).passed


def test_an_engine_that_is_always_wrong_needs_a_reference() -> None:
    class Short(Ring):
        def window(self, sample: Sample) -> int:
            return WINDOW - 1

    class Compared(Short):
        def reference(self, tokens: list[int]) -> Any:
            right = Ring()
            right.start(1)
            return right.feed([tokens])[0]

    assert check(Short, minutes=5, histories=50).passed
    report = found(Compared)
    assert report.history is not None and len(report.history) == 1
    assert report.failed is not None and report.failed.position == WINDOW


def test_adapters_paddings_and_the_last_logits() -> None:
    class Adapted(Ring):
        adapters, paddings = ("plain", "other"), ("left", "right")
        keeps = True

        def start(self, samples: int) -> None:
            super().start(samples)
            self.adapter = "plain"
            self.sides: set[str] = set()

        def feed(self, rows: list[list[int]], padding: str = "") -> list[Any]:
            self.sides.add(padding)
            logits = super().feed(
                [[(token + (self.adapter == "other")) % VOCABULARY for token in row] for row in rows]
            )
            return [each[-1:].reshape(-1) for each in logits]

        def set_adapter(self, name: str) -> None:
            # The rows of the other adapter must go.
            if not self.keeps and name != self.adapter:
                texts = [[*sample.tokens] for sample in self.samples]
                self.adapter = name
                self.samples = [Sample() for _ in texts]
                shift = 1 if name == "other" else -1
                super().feed([[(token + shift) % VOCABULARY for token in text] for text in texts])
            self.adapter = name

    class Right(Adapted):
        keeps = False
        # A saved sample does not say under which adapter it was computed.
        lacks = ("save", "load")

    report = found(Adapted)
    assert report.history is not None and len(report.history) == 3, str(report)
    assert "set adapter other" in str(report)
    right = check(Right, minutes=5, histories=100)
    assert right.passed and right.done["set_adapter"] > 10, str(right)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocabulary": 0}, "vocabulary must be"),
        ({"vocabulary": 47}, r"have the shape \[2, 48\], not \[2, 47\] or \[47\]"),
        ({"tokens": range(2)}, "at least 3 token ids, not 2"),
        ({"tolerance": 10.0}, "a wrong cache cannot be noticed with a tolerance of 10"),
        ({"feed": lambda self, rows: [np.zeros((2, VOCABULARY), int)]}, "must be floating-point"),
        ({"feed": lambda self, rows: None}, "an empty cache does not take two tokens: TypeError"),
    ],
)
def test_adapters_that_cannot_be_tested_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check(type("Changed", (Ring,), changed), minutes=0.1)
    with pytest.raises(ValueError, match="'feed' is not one of truncate"):
        check(Ring, without=["feed"])


def test_equal_seeds_make_equal_histories() -> None:
    first, second, other = (check(Ring, minutes=5, histories=20, seed=seed) for seed in (0, 0, 1))
    assert first.done == second.done != other.done


def test_operations_can_be_left_out() -> None:
    report = check(ForgetsRefusal, minutes=5, histories=100, without=["truncate", "accept"])
    assert report.passed and "truncate" not in report.done


def test_the_report_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = found(ForgetsRefusal)
    files = {name: tmp_path / name for name in ("failure.json", "failure.html", "failure.py")}
    files["failure.json"].write_text(report.json())
    again = replay(ForgetsRefusal, files["failure.json"])
    assert again.failed is not None and again.failed.message == report.failed.message  # type: ignore[union-attr]
    assert replay(Ring, files["failure.json"]).passed
    assert "lengths" in str(again) and "slots" in str(again)
    page = report.html()
    assert (
        page.count("<svg") == 0
        and page.count("<img") >= 2
        and "http" not in page.replace("http://www.w3.org", "")
    )
    assert History.from_document(json.loads(report.json())) == report.history
    # A script needs nothing but the engine and NumPy, so kvscatter cannot be imported in it.
    files["failure.py"].write_text(report.script())
    blocked = "import sys; sys.modules['kvscatter'] = None; import runpy; runpy.run_path(sys.argv[1])"
    ran = subprocess.run(
        [sys.executable, "-c", blocked, files["failure.py"]], capture_output=True, text=True, check=False
    )
    assert "the logits differ by" in ran.stdout and "AssertionError" in ran.stderr, ran.stderr


def test_refused_operations_stay_in_a_history(tmp_path: Path) -> None:
    report = found(ChangesBeforeRefusal, without=["accept"])
    assert report.history is not None
    assert (
        any(isinstance(operation, Refusal) for operation in report.history.operations)
        or len(report.history) <= 3
    )
    report.history.save(tmp_path / "history.json")
    assert History.load(tmp_path / "history.json") == report.history


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no history"),
        ({"kvscatter_history": 2, "operations": []}, "no history"),
        ({"operations": []}, "must be a list"),
        ({"operations": [{"feed": {"rows": [[1]]}}]}, "must be start"),
        ({"operations": [{"start": {"samples": 1}}, {"start": {"samples": 1}}]}, "only the first"),
        ({"operations": [{"start": {"samples": 0}}]}, "at least 1"),
        ({"operations": [{"start": {"samples": True}}]}, "an integer of at least 0, not true"),
        ({"operations": [{"start": {"samples": 10**12}}]}, "at most"),
        ({"operations": [{"start": {"samples": 1}}, {"jump": {}}]}, "'jump' is not an operation"),
        ({"operations": [{"start": {"samples": 1}}, {"feed": {"rows": 5}}]}, "a list of lists, not 5"),
        (
            {"operations": [{"start": {"samples": 1}}, {"feed": {"rows": [[1], [2]]}}]},
            "2 values for 1 sample",
        ),
        ({"operations": [{"start": {"samples": 1}}, {"feed": {}}]}, "feed needs rows"),
        ({"operations": [{"start": {"samples": 1}}, {"truncate": {"lengths": [2]}}]}, "2 of 0 tokens"),
        ({"operations": [{"start": {"samples": 1}}, {"accept": {"counts": [0]}}]}, "has not begun"),
        ({"operations": [{"start": {"samples": 1}}, {"load": {"sample": 0, "file": 0}}]}, "was not saved"),
        ({"operations": [{"start": {"samples": 1}}, {"fork": {"sample": 1}}]}, "sample 1 of 1 sample"),
    ],
)
def test_files_that_are_no_history_are_refused(document: Any, message: str, tmp_path: Path) -> None:
    if isinstance(document, dict):
        document = {"kvscatter_history": 1, **document}
    path = tmp_path / "history.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        replay(Ring, path)


def test_a_history_needs_the_methods_of_the_engine() -> None:
    class Few(Ring):
        lacks = ("fork",)

    history = History((Start(1), Feed(((1, 2),)), Fork(0)))
    with pytest.raises(EngineError, match="has no method fork"):
        replay(Few, history)
    assert "fork" not in Facts(Few()).can and "fork" in Facts(Ring()).can


PROCESS = """
import json, sys
sys.path.insert(0, {folder!r})
from kvscatter.histories import Refused
from ring_engine import Ring
engine = Ring()
facts = {{"name": "a process", "vocabulary": engine.vocabulary, "windows": [6], "batch": 2, "ragged": True}}
print(json.dumps({{**facts, "operations": ["truncate", "fork", "remove"]}}), flush=True)
for line in sys.stdin:
    ((name, arguments),) = json.loads(line).items()
    if {ends} and name == "fork":
        sys.exit(3)
    try:
        logits = getattr(engine, name)(**arguments)
        answer = {{"done": None}} if logits is None else {{"logits": [each.tolist() for each in logits]}}
    except Refused as error:
        answer = {{"refused": str(error)}}
    print(json.dumps(answer), flush=True)
"""


def test_engines_in_other_processes() -> None:
    def process(ends: bool) -> ProcessEngine:
        program = PROCESS.format(folder=str(Path(__file__).parent), ends=ends)
        return ProcessEngine([sys.executable, "-c", program], batch=3)

    report = check(lambda: process(False), minutes=5, histories=20)
    assert report.passed and report.engine == "a process", str(report)
    assert report.refused and report.done.keys() == {"start", "feed", "truncate", "fork", "remove"}
    ended = found(lambda: process(True))
    assert ended.failed is not None and "has ended with status 3" in ended.failed.message
    assert ended.history is not None and len(ended.history) == 1
    with pytest.raises(EngineError, match="'color' is not a fact"):
        ProcessEngine([sys.executable, "-c", 'print(\'{"operations": [], "color": 1}\')'])


@pytest.mark.parametrize(
    "model",
    [
        "mobius-llama-dynamic",
        "decoders/optimum-0.1-mistral-window",
        "decoders/transformers-lfm2",
        "genai-llama-gqa",
    ],
)
def test_sessions_and_exported_decoders_pass(model: str) -> None:
    from kvscatter.histories.adapters.onnxruntime import OnnxRuntime
    from kvscatter.histories.adapters.session import Session

    path = str(DECODERS / model / "model.onnx")
    engines: list[Callable[[], Engine]] = [lambda: OnnxRuntime(path), lambda: Session(path)]
    for make in engines[: 1 if model == "genai-llama-gqa" else 2]:
        report = check(make, minutes=5, histories=30)
        assert report.passed and report.done["feed"] > 20, str(report)


def test_jax_moves_a_write_that_does_not_fit() -> None:
    from kvscatter.histories.adapters.jax import Jax

    report = check(lambda: Jax("unchecked"), minutes=5, histories=50)
    assert report.history is not None and len(report.history) <= 2, str(report)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = Path(__file__).with_name("ring_engine.py")
    engine = f"{engines}:SwapsInPlace"
    files = [f"--{kind}={tmp_path / 'failure'}.{kind}" for kind in ("json", "html", "script")]
    assert main([engine, "--minutes", "1", *files]) == 1
    assert "SwapsInPlace: FAILED" in capsys.readouterr().out
    assert main([f"{engines}:Ring", f"--replay={tmp_path / 'failure.json'}"]) == 0
    assert "Ring: passed" in capsys.readouterr().out
    assert main(["--list"]) == 0
    assert "session: MODEL" in capsys.readouterr().out
    for arguments, message in [
        ([], "ADAPTER is missing"),
        (["nothing"], "'nothing' is none of"),
        (["session"], "session needs a model"),
        (["jax:fast"], "jax has no variant 'fast'"),
        ([f"{engines}:Sample"], "no class 'Sample' derived from"),
        (["missing.py:Ring"], "missing.py is not a file"),
        ([engine, "--replay", "missing.json"], "missing.json"),
    ]:
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


PYTEST = """
import sys

def test_before_the_fixture_is_used():
    assert "kvscatter" not in sys.modules and "hypothesis.stateful" not in sys.modules

def test_right(histories):
    from ring_engine import Ring
    assert histories.check(Ring, histories=20).passed

def test_wrong(histories):
    from ring_engine import SharesForkedRows
    histories.check(SharesForkedRows, histories=500)
"""


def test_the_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_engine.py").write_text(PYTEST)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    words = [
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        tmp_path / "base",
        tmp_path,
    ]
    ran = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, check=False
    )
    assert "2 passed" in ran.stdout and "1 failed" in ran.stdout, ran.stdout
    assert "The shortest history that fails" in ran.stdout
    assert [path.name for path in sorted((tmp_path / "base").glob("test_wrong0/*"))] == [
        "failure.html",
        "failure.json",
    ]


def test_the_engine_of_the_page(tmp_path: Path) -> None:
    """The page has an engine with a fault, what the command prints for it, and the method that mends it."""
    page = (ROOT / "docs" / "histories.md").read_text()
    code, mended = page.split("```python\n")[1].split("```")[0], page.split("```python\n")[2].split("```")[0]

    def module(source: str, name: str) -> Any:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
        return made

    report = found(module(code, "ring").Ring)
    # The last digits of the difference depend on the machine.
    story = str(report).split("\n\n")[1].rpartition(" differ by ")[0]
    assert story in page
    right = code.replace(code[code.index("    def truncate") : code.index("    def remove")], mended + "\n")
    passed = check(module(right, "right_ring").Ring, minutes=5, histories=300)
    assert passed.passed and passed.refused["truncate"], str(passed)


def test_the_logits_of_a_text_are_computed_once() -> None:
    class Counting(Ring):
        runs = 0

        def feed(self, rows: list[list[int]]) -> list[Any]:
            Counting.runs += 1
            return super().feed(rows)

    reference = Reference(Counting())
    for _ in range(3):
        reference.logits((1, 2, 3), None)
    assert Counting.runs == 1


def test_stories_name_samples_and_numbers() -> None:
    operations = [
        (Feed(((1, 2), ())), "feed 2 tokens to sample 0"),
        (
            Feed(((1,), (2, 3)), "left"),
            "feed 1 token to sample 0 and 2 tokens to sample 1, padded on the left",
        ),
        (Truncate((3, 1)), "truncate sample 0 to 3 tokens and sample 1 to 1 token"),
        (Accept((2, 0)), "accept the first tokens of the draft: 2 of sample 0 and 0 of sample 1"),
        (Reorder((1, 0)), "reorder: the samples become copies of 1 and 0"),
        (Save(0, 1), "save sample 0 to file 1"),
        (Load(1, 1), "load sample 1 from file 1"),
        (Refusal(Fork(0)), "append a copy of sample 0: refused"),
    ]
    assert [story(operation) for operation, _ in operations] == [text for _, text in operations]


class Full(Ring):
    """Has a capacity, and no window."""

    windows, edges, capacity = (), (), 100
    refuses_at = 100

    def window(self, sample: Sample) -> int:
        return 1000

    def slot(self, position: int) -> int:
        return position

    def start(self, samples: int) -> None:
        super().start(samples)
        for sample in self.samples:
            sample.rows = np.zeros((2, 200, WIDTH))

    def feed(self, rows: list[list[int]]) -> list[Any]:
        if any(
            len(sample.tokens) + len(row) > self.refuses_at
            for sample, row in zip(self.samples, rows, strict=True)
        ):
            raise Refused("full")
        return super().feed(rows)

    lacks = ("add", "fork", "reorder", "save", "load", "poison", "truncate", "accept")


@pytest.mark.parametrize(
    ("refuses_at", "message"), [(90, "is refused although the capacity is 100"), (150, "the capacity is 100")]
)
def test_capacities_are_filled(refuses_at: int, message: str) -> None:
    report = found(type("Other", (Full,), {"refuses_at": refuses_at}))
    assert report.failed is not None and message in report.failed.message, str(report)
    assert check(Full, minutes=5, histories=30).longest == 100


def test_an_engine_that_ends_the_program_fails() -> None:
    class Exits(Ring):
        def fork(self, sample: int) -> None:
            sys.exit(0)

    report = found(Exits)
    assert (
        report.failed is not None
        and "fork raises SystemExit: 0 (test_histories.py, line" in report.failed.message
    )


def test_a_reference_that_fails_is_reported() -> None:
    class Short(Ring):
        def reference(self, tokens: list[int]) -> Any:
            if len(tokens) > 9:
                raise IndexError("too long")
            right = Ring()
            right.start(1)
            return right.feed([tokens])[0]

    report = found(Short)
    assert (
        report.failed is not None
        and "but an empty cache fails on them: IndexError: too long" in report.failed.message
    )
    assert report.history is not None and len(report.history) == 1


def test_a_shorter_history_fails_in_the_same_way_and_has_no_more_samples_than_the_batch() -> None:
    class Two(Ring):
        batch = 2

        def add(self) -> None:
            if len(self.samples) == 2:
                raise KeyError("no free row")
            super().add()

        def remove(self, sample: int) -> None:
            super().remove(sample)
            self.samples[0].rows += 1

    report = found(Two)
    assert report.failed is not None and report.failed.kind == "logits", str(report)


def test_a_fault_of_an_earlier_history_is_told_apart() -> None:
    class Dirty(Ring):
        moved = 0

        def truncate(self, lengths: list[int]) -> None:
            super().truncate(lengths)
            self.moved = 1

        def slot(self, position: int) -> int:
            return (position + self.moved * (position > 3)) % SLOTS

    report = check(Dirty, minutes=5, histories=500)
    assert report.failed is not None
    assert report.is_repeatable or "did not fail again on new engines" in str(report)


def test_engines_must_be_separate() -> None:
    engine = Ring()
    with pytest.raises(EngineError, match="a new engine each time"):
        check(lambda: engine, minutes=0.1)
    with pytest.raises(TypeError, match="not an engine"):
        check(engine, minutes=0.1)  # type: ignore[arg-type]


def test_a_slow_engine_ends_in_time() -> None:
    class Slow(Ring):
        def feed(self, rows: list[list[int]]) -> list[Any]:
            time.sleep(0.1)
            return super().feed(rows)

    begun = time.monotonic()
    assert check(Slow, minutes=0.02).passed
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"windows": 10}, "Changed.windows must be a tuple of integers of at least 1, not 10"),
        ({"capacity": -3}, "capacity must be None or an integer of at least 1, not -3"),
        ({"refusals": ValueError}, "refusals must be a tuple of classes of exceptions"),
        ({"feed": Engine.feed}, "Changed has no method feed"),
    ],
)
def test_facts_of_other_types_are_refused(fact: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check(type("Changed", (Ring,), fact), minutes=0.1)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (History((Start(4),)), "4 samples, and batch is 3"),
        (History((Start(1), Feed(((99,),)))), "token 99, and vocabulary is 48"),
        (History((Start(1), Feed(((9,),), "left\nprint()"))), r"pads on the 'left\\nprint\(\)'"),
    ],
)
def test_histories_of_other_engines_are_refused(history: History, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        replay(Ring, history)


def test_known_prefixes_are_fed_again() -> None:
    class Prefixes(Ring):
        """Skips a first token that it has seen at the same place, without its rows."""

        def start(self, samples: int) -> None:
            super().start(samples)
            self.known: set[int] = set()

        def decode(self, sample: Sample, token: int) -> Any:
            is_known = not sample.tokens and token in self.known
            self.known |= {token} if not sample.tokens else set()
            logits = super().decode(sample, token)
            if is_known:
                sample.rows[:, 0] = 0
            return logits

    class NewPrefixes(Prefixes):
        def reference(self, tokens: list[int]) -> Any:
            right = Ring()
            right.start(1)
            return right.feed([tokens])[0]

    assert found(NewPrefixes).failed is not None


@pytest.mark.parametrize(
    "patch", sorted((ROOT / "testdata" / "faults").glob("*.patch")), ids=lambda patch: patch.stem
)
def test_planted_faults_fit_the_sources(patch: Path) -> None:
    """`cargo xtask histories` builds and finds them."""
    described, model, *_ = patch.read_text().splitlines()
    assert described.startswith("Fault: ") and model in ("Model: linear", "Model: ring", "Model: state")
    subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)


def test_refusals_that_depend_on_earlier_histories_are_told() -> None:
    class Moody(Ring):
        refused = 0

        def truncate(self, lengths: list[int]) -> None:
            self.refused += 1
            if self.refused % 3 == 0:
                raise Refused("not now")
            super().truncate(lengths)

    report = check(Moody, minutes=5, histories=300)
    assert report.passed and report.inconsistent > 0, str(report)
    assert "an operation was refused in only one of two equal histories" in str(report)
