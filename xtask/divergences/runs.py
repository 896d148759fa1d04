"""The runs of the runtimes: their answers and the verdicts on them."""

import hashlib
import json
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import Failure
from runtimes import Runtime

HERE = Path(__file__).parent
ADAPTERS = HERE / "adapters"
HARNESS = HERE.parents[1] / "conformance" / "run.py"


@dataclass(frozen=True)
class Run:
    """A finished run."""

    runtime: Runtime
    cases: list[dict[str, Any]]

    def summary(self) -> str:
        """Returns the number of cases with each verdict."""
        answers = Counter(case["answer"] for case in self.cases)
        in_place = Counter(case["in_place"] for case in self.cases if case["in_place"])
        counts = [
            ", ".join(f"{count} {what}" for what, count in each.most_common()) for each in (answers, in_place)
        ]
        return f"{counts[0]}" + f"; in place: {counts[1]}" * bool(counts[1])

    def lines(self) -> Iterator[str]:
        """Returns a line for each case."""
        for case in self.cases:
            place = f", in place: {case['in_place']}" if case["in_place"] else ""
            details = [each for each in (case["detail"], case["message"], case["in_place_message"]) if each]
            yield f"  {case['case']}: {case['answer']}{place}" + "".join(
                f"\n      {each}" for each in details
            )

    def no_operator(self) -> dict[str, str]:
        """Returns the first message for each operator of which every valid case was refused."""
        valid = [case for case in self.cases if case["expect"] == "output"]
        refused = {case["operator"]: case["message"] for case in reversed(valid)}
        known = {case["operator"] for case in valid if case["answer"] != "refuses"}
        return {operator: message for operator, message in refused.items() if operator not in known}

    def document(self) -> dict[str, Any]:
        """Returns the run's part of results.json."""
        runtime = self.runtime
        return {
            "id": runtime.id,
            "name": runtime.name,
            "title": runtime.title,
            "version": runtime.version,
            "no_operator": self.no_operator(),
            "cases": self.cases,
        }


class Runs:
    """The runs of one corpus in one folder. With a rule, only its cases are run, in another folder."""

    def __init__(self, root: Path, corpus: Path, command: Path, rule: str | None) -> None:
        self._folder = root / "rules" / rule if rule else root / "runs"
        self._corpus, self._command, self._rule = corpus, command, rule
        cases = [path for path in corpus.rglob("*") if path.suffix in (".pb", ".onnx", ".json")]
        self._sources = fingerprint([*cases, HARNESS, *(HARNESS.parent / "harness").glob("*.py")])

    def is_finished(self, runtime: Runtime) -> bool:
        """Returns True if the answers are there and nothing has changed since then."""
        if runtime.results:
            return True
        path = self._folder / runtime.id / "finished.json"
        return path.exists() and json.loads(path.read_text())["made_from"] == self._made_from(runtime)

    def answer(
        self, runtime: Runtime, python: Path, variables: dict[str, str], installed: dict[str, str]
    ) -> None:
        """Runs the cases. The file of what was installed is written last."""
        folder = self._folder / runtime.id
        shutil.rmtree(folder, ignore_errors=True)
        adapter = ADAPTERS / str(runtime.adapter)
        rule = ["--rule", self._rule] if self._rule else []
        rule += [word for each in runtime.left_out for word in ("--without", each)]
        run = [python, HARNESS, adapter, "--output", folder / "answers", "--corpus", self._corpus, *rule]
        done = subprocess.run(run, env=variables, capture_output=True, text=True)
        if done.returncode:
            raise Failure((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
        finished = {
            "made_from": self._made_from(runtime),
            "python": platform.python_version(),
            "packages": installed,
        }
        (folder / "finished.json").write_text(json.dumps(finished, indent=1))

    def judge(self, runtime: Runtime) -> Run:
        """Compares the answers with the expected ones."""
        answers = runtime.results or self._folder / runtime.id / "answers"
        judge = [self._command, "verify", self._corpus, "--actual", answers, "--json"]
        done = subprocess.run(judge, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise Failure(f"kvscatter verify: {done.stderr.strip() or done.stdout.strip()}")
        verdicts = {verdict["case"]: verdict for verdict in json.loads(done.stdout)["cases"]}
        return Run(runtime, list(self._cases(answers, verdicts, (answers / "run.json").exists())))

    def _cases(self, answers: Path, verdicts: dict[str, Any], has_run: bool) -> Iterator[dict[str, Any]]:
        for case in json.loads((self._corpus / "index.json").read_text())["cases"]:
            # The harness writes a file for each case that it has run. Without one, no output is a refusal.
            path = answers / case["folder"] / "test_data_set_0" / "answer.json"
            if self._rule not in (None, case["rule"]) or (has_run and not path.exists()):
                continue
            verdict = verdicts[str(self._corpus / case["folder"])]
            answer = read_json(path)
            yield {
                "case": case["name"],
                "operator": case["operator"],
                "rule": case["rule"],
                "expect": case["expect"],
                # A call that returned something that is no tensor has no answer.
                "answer": verdict.get("answer", "differs"),
                "in_place": verdict.get("in_place"),
                "detail": verdict.get("reason", ""),
                "message": answer.get("plain", {}).get("message", ""),
                "in_place_message": answer.get("in_place", {}).get("message", ""),
            }

    def _made_from(self, runtime: Runtime) -> str:
        adapter = ADAPTERS / str(runtime.adapter)
        text = adapter.read_text()
        used = [path for path in ADAPTERS.glob("*.py") if path == adapter or path.stem in text]
        words = [*runtime.requirements, *runtime.left_out, *runtime.variables.values(), self._sources]
        return hashlib.sha256(json.dumps([*words, fingerprint(used)]).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Returns the contents of a file, or nothing if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def fingerprint(files: Iterable[Path]) -> str:
    """Returns a hash of files and of their names, which does not depend on the folder that they are in."""
    digests = sorted(hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()
