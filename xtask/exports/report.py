"""Lists the results of `check.py`, and writes them to docs/models/support.md.

python report.py ROOT [--write-docs]
"""

import argparse
import datetime
import json
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporters import EXPORTERS, Exporter
from families import families

PAGE = Path(__file__).parents[2] / "docs" / "models" / "support.md"
TEXT = Path(__file__).with_name("support.md.in")
# The checks in their order, with the words for a cell whose check failed.
FAILED = {
    "export": "not exported",
    "original": "does not run",
    "convert": "refused",
    "certify": "not certified",
    "ort": "other tokens",
    "tract": "✓ not in tract",
    "checker": "✓ invalid",
}
# The columns of the table of families. The names of the exporters begin with them.
TOOLS = ("genai", "mobius", "optimum", "torch-dynamo")
# The messages of exporters about a family that it does not know.
UNKNOWN = re.compile(
    "not currently supported|unsupported architecture|not recognize this architecture|Unknown model_type"
    "|it is not available yet|the graph optimization of|Static cache mode requires"
)
# Parts of reasons that differ between models, and what the page has in their place.
SHORTER = {
    r"\s+": " ",
    r"\S*/(checkpoints|converted|exports)/\S*|/\S*\.onnx\b": "…",
    r"^…:? ": "",
    r'node \d+ "[^"]*" \((\w+)[^)]*\)': r"`\1`",
    r"(Name:)?'/\S*'|\"[^\" ]*\"|0x[0-9a-f]+|node_\w+": "…",
    r"Node \(\S*\)|in node \(\S*\)": "node …",
    r"the mask adds -?[\d.]+": "the mask adds a number",
    r"data-dependent expression .*": "data-dependent expression",
    r"\d+ initializer.*": "initializers without weights",
    # The advice does not apply to a converted model.
    r"; --engine ort also runs operators.*": "",
    r"\|": r"\\|",
    r"\(tensor\(float\) and tensor\(float16\) .*": "(float and float16)",
    "<": "&lt;",
}
Results = dict[tuple[str, str], dict[str, Any]]


@dataclass
class Notes:
    """The footnotes, in the order of the cells that refer to them."""

    reasons: list[str] = field(default_factory=list)

    def mark(self, reason: str) -> str:
        """Returns the reference to a reason."""
        short = _shorten(reason)
        if short not in self.reasons:
            self.reasons.append(short)
        return f"[^{self.reasons.index(short) + 1}]"

    def __str__(self) -> str:
        return "\n".join(f"[^{number}]: {reason}" for number, reason in enumerate(self.reasons, 1))


def _shorten(reason: str) -> str:
    """Leaves out what differs between models: paths, names and numbers of nodes, and addresses."""
    for pattern, short in SHORTER.items():
        reason = re.sub(pattern, short, reason)
    return reason if len(reason) <= 160 else reason[:159] + "…"


def read(root: Path) -> Results:
    """Returns the results of each exporter and family."""
    found: Results = {}
    for exporter in EXPORTERS:
        for family in families():
            file = root / exporter.name / family.name / "result.json"
            if file.exists():
                found[exporter.name, family.name] = json.loads(file.read_text())
    return found


def cell(results: dict[str, Any] | None, notes: Notes) -> str:
    """Returns ✓, the first check that failed, or — if the exporter does not know the family."""
    if results is None:
        return ""
    if UNKNOWN.search(results["export"] or ""):
        return "—"
    for check, words in FAILED.items():
        reason = results.get(check)
        if reason is not None:
            return f"{words}{notes.mark(reason)}"
    return "✓" if results.get("transformers", True) else "✓ᵃ"


def together(marks: dict[str, str]) -> str:
    """Returns the marks of an exporter's variants: the most frequent one, and the variants with others."""
    if not marks:
        return ""
    variants: dict[str, list[str]] = {}
    for variant, mark in marks.items():
        variants.setdefault(mark, []).append(variant)
    usual, *others = sorted(variants, key=lambda mark: -len(variants[mark]))
    return "; ".join([usual, *(f"{', '.join(variants[mark])}: {mark}" for mark in others)])


def counts(results: Results, exporter: Exporter) -> list[str]:
    """Returns the row of an exporter: how many families get how far."""
    rows = [each for (name, _), each in results.items() if name == exporter.name]
    runs = [each for each in rows if each["export"] is None and each["original"] is None]
    static = "static" in exporter.name
    converted = [each for each in runs if static or each["convert"] is None]

    def passed(check: str) -> str:
        return f"{sum(each.get(check, '') is None for each in converted)}"

    opsets = {each["opset"] for each in rows if "opset" in each}
    return [
        exporter.name,
        exporter.numbers,
        " to ".join(f"{opset}" for opset in sorted({min(opsets), max(opsets)})) if opsets else "",
        f"{len(rows)}",
        f"{sum(each['export'] is None for each in rows)}",
        f"{len(runs)}",
        "static already" if static else f"{len(converted)}",
        *(passed(check) for check in ("certify", "ort", "tract", "checker")),
        passed("tensorrt") if exporter.numbers in ("float32", "float16") else "",
    ]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(root: Path) -> str:
    """Returns the whole page."""
    results, notes = read(root), Notes()
    variants = {tool: [each.name for each in EXPORTERS if each.name.startswith(tool)] for tool in TOOLS}
    rows = []
    for family in families():
        marks = {
            tool: {
                name.removeprefix(tool).lstrip("-") or "plain": cell(results.get((name, family.name)), notes)
                for name in names
                if (name, family.name) in results
            }
            for tool, names in variants.items()
        }
        rows.append([family.name, *map(together, marks.values())])
    head = ["exporter", "weights", "operator set", "families", "exported", "run", "converted", "certified"]
    head += ["ONNX Runtime", "tract", "checker", "TensorRT"]
    values = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, {platform.system()}, Python {platform.python_version()}",
        "versions": versions(root),
        "counts": table(head, [counts(results, exporter) for exporter in EXPORTERS]),
        "families": table(["family", *TOOLS], rows),
        "ties": str(ties(results)),
        "notes": str(notes),
    }
    text = TEXT.read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def ties(results: Results) -> int:
    """Returns how many near ties were decided otherwise."""
    return sum(each.get(f"{engine}_ties", 0) for each in results.values() for engine in ("ort", "tract"))


def versions(root: Path) -> str:
    """Returns the packages of each environment that matter, from the lock files."""
    wanted = "onnxruntime-genai mobius-onnx optimum optimum-onnx torch transformers onnxruntime onnx".split()
    lines = []
    for lock in sorted(Path(__file__).with_name("locks").glob("*.txt")):
        pins = dict(line.split("==") for line in lock.read_text().splitlines() if "==" in line)
        own = ", ".join(f"{name} {pins[name]}" for name in wanted if name in pins)
        used = ", ".join(f"`{each.name}`" for each in EXPORTERS if each.environment == lock.stem)
        lines.append(f"- {used}: {own}")
    return "\n".join(lines)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Prints the counts, or writes the page."""
    options = argparse.ArgumentParser()
    options.add_argument("root", type=Path)
    options.add_argument("--write-docs", action="store_true")
    given = options.parse_args()
    text = page(given.root)
    (given.root / "support.md").write_text(text)
    print(f"wrote {given.root / 'support.md'}")
    if given.write_docs:
        PAGE.write_text(text)
        print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
