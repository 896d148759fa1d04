"""The runs of the runtimes: their answers and the verdicts on them."""

import hashlib
import json
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import Failure
from runtimes import Runtime

HERE = Path(__file__).parent
HARNESS = HERE.parents[1] / "conformance" / "run.py"


@dataclass(frozen=True)
class Run:
    """A finished run."""

    runtime: Runtime
    # What run.json of the answers has: the name, version and operators of the adapter.
    about: dict[str, Any]
    installed: dict[str, str]
    python: str
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

    def document(self) -> dict[str, Any]:
        """Returns the run's part of results.json."""
        runtime = self.runtime
        return {
            "id": runtime.id,
            "name": runtime.name,
            "title": runtime.title,
            "version": runtime.version,
            "reported": self.about,
            "calls": runtime.calls,
            "note": runtime.note,
            "command": f"cargo xtask divergences --only {runtime.id}",
            "python": self.python,
            "packages": self.installed,
            "cases": self.cases,
        }


class Runs:
    """The runs of one corpus in one folder. With a rule, only its cases are run, in another folder."""

    def __init__(self, root: Path, corpus: Path, command: Path, rule: str | None) -> None:
        self._folder = root / "rules" / rule if rule else root / "runs"
        self._corpus, self._command, self._rule = corpus, command, rule
        self._sources = fingerprint([corpus, HARNESS.parent, HERE / "adapters"])

    def finished(self, runtime: Runtime) -> Run | None:
        """Returns the run if it is finished and nothing has changed since then."""
        path = self._folder / runtime.id / "finished.json"
        if not path.exists():
            return None
        document = json.loads(path.read_text())
        if document.pop("made_from") != self._made_from(runtime):
            return None
        return Run(runtime, **document)

    def answer(self, runtime: Runtime, python: Path, variables: dict[str, str]) -> Path:
        """Runs the cases and returns the folder of the answers."""
        answers = self._folder / runtime.id / "answers"
        shutil.rmtree(answers, ignore_errors=True)
        adapter = HERE / "adapters" / str(runtime.adapter)
        rule = ["--rule", self._rule] if self._rule else []
        run = [python, HARNESS, adapter, "--output", answers, "--corpus", self._corpus, *rule]
        done = subprocess.run(run, env=variables, capture_output=True, text=True)
        if done.returncode:
            raise Failure((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
        return answers

    def judge(self, runtime: Runtime, answers: Path, installed: dict[str, str]) -> Run:
        """Compares the answers with the expected ones, and finishes the run."""
        judge = [self._command, "verify", self._corpus, "--actual", answers, "--json"]
        done = subprocess.run(judge, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise Failure(f"kvscatter verify: {done.stderr.strip() or done.stdout.strip()}")
        verdicts = {verdict["case"]: verdict for verdict in json.loads(done.stdout)["cases"]}
        about_file = answers / "run.json"
        about = json.loads(about_file.read_text()) if about_file.exists() else {}
        document = {
            "about": about,
            "installed": installed,
            "python": platform.python_version() if installed else "",
            "cases": list(self._cases(answers, verdicts, about.get("operators"))),
        }
        folder = self._folder / runtime.id
        folder.mkdir(parents=True, exist_ok=True)
        finished = {"made_from": self._made_from(runtime), **document}
        (folder / "finished.json").write_text(json.dumps(finished, indent=1))
        return Run(runtime, **document)

    def _cases(
        self, answers: Path, verdicts: dict[str, Any], operators: list[str] | None
    ) -> Iterator[dict[str, Any]]:
        for case in json.loads((self._corpus / "index.json").read_text())["cases"]:
            if self._rule not in (None, case["rule"]) or case["operator"] not in (
                operators or [case["operator"]]
            ):
                continue
            verdict = verdicts[str(self._corpus / case["folder"])]
            path = answers / case["folder"] / "test_data_set_0" / "answer.json"
            answer = json.loads(path.read_text()) if path.exists() else {}
            plain, in_place = answer.get("plain", {}), answer.get("in_place", {})
            yield {
                "case": case["name"],
                "folder": case["folder"],
                "rule": case["rule"],
                "answer": answer_of(verdict),
                "in_place": verdict.get("in_place"),
                "detail": verdict.get("reason", ""),
                "status": plain.get("status", ""),
                "message": plain.get("message", ""),
                "changed": plain.get("changed", []),
                "in_place_status": in_place.get("status", ""),
                "in_place_message": in_place.get("message", ""),
            }

    def _made_from(self, runtime: Runtime) -> str:
        words = [runtime.adapter, *runtime.requirements, *runtime.variables.values(), self._sources]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def answer_of(verdict: dict[str, Any]) -> str:
    """Returns the answer of a verdict."""
    if "answer" in verdict or verdict["verdict"] == "pass":
        return verdict.get("answer", "exact")
    return {"wrong": "differs", "no-output": "refuses", "not-refused": "accepts"}[verdict["failure"]]


def fingerprint(folders: list[Path]) -> str:
    """Returns a hash of all files below the folders."""
    digest = hashlib.sha256()
    files = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    for path in sorted(path for path in files if path.suffix in (".py", ".pb", ".onnx", ".json")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def facts(corpus: Path) -> dict[str, Any]:
    """Returns what the results depend on beside the runtimes."""
    cases = json.loads((corpus / "index.json").read_text())["cases"]
    return {"system": platform.system(), "architecture": platform.machine(), "cases": len(cases)}
