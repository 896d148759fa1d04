"""Writes the tables of docs/cache-types.md, and compares them with the targets."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages
import paired

COMMAND = "cargo xtask bench-cache-types"
PAGE = pages.ROOT / "docs" / "cache-types.md"
NARROW = ("float16", "bfloat16", "int8")
NONE = "–"
Found = Any


@dataclass(frozen=True)
class Target:
    """A number that was measured, and the limit that it must keep."""

    what: str
    value: float | None
    limit: float
    is_least: bool = False
    is_undecided: bool = False
    """Whether the limit is within the noise."""

    def is_met(self) -> bool:
        """Returns whether the number keeps the limit."""
        if self.value is None or self.is_undecided:
            return False
        return self.value >= self.limit if self.is_least else self.value <= self.limit

    def line(self) -> str:
        """Returns the number and the limit."""
        value = NONE if self.value is None else f"{self.value:.3g}"
        limit = f"{'at least' if self.is_least else 'at most'} {self.limit:.3g}"
        return f"{self.what}: {value}, {limit}{', within the noise' if self.is_undecided else ''}"


def write(results: dict[str, Found], folder: Path, docs: bool) -> None:
    """Prints the tables, and writes them to a folder and to the page."""
    text = generated(results)
    (folder / "cache-types.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n\nwrote {folder / 'cache-types.md'}")
    if docs:
        pages.write(PAGE, COMMAND, text)
        print(f"wrote {PAGE}")


def generated(results: dict[str, Found]) -> str:
    """Returns the generated part of the page."""
    parts, targets = [], []
    for name, (title, table) in TABLES.items():
        if name in results:
            text, of_table = table(results[name]["found"])
            parts += [f"### {title}", text]
            targets += of_table
    missed = [target for target in targets if not target.is_met()]
    text = (
        f"{len(targets) - len(missed)} of {len(targets)} targets are met{'. The others:' if missed else '.'}"
    )
    parts += ["### Targets", text, "\n".join(f"- {target.line()}" for target in missed)]
    return "\n\n".join(filter(None, [*parts, machines(results)]))


def machines(results: dict[str, Found]) -> str:
    """Returns the machine and the commit of the tables. Most pages have one."""
    tables: dict[str, list[str]] = {}
    for name, table in results.items():
        facts = "; ".join(f"{key}: {fact}" for key, fact in table["machine"].items())
        tables.setdefault(facts, []).append(TABLES[name][0])
    alone = len(tables) == 1
    lines = [f"- {facts}{'' if alone else ': ' + ', '.join(titles)}." for facts, titles in tables.items()]
    stolen = max((table["stolen"] for table in results.values()), default=0)
    return "\n".join([*lines, f"- Other virtual machines took at most {stolen:.1%} of the time of a table."])


def kernel(found: Found) -> tuple[str, list[Target]]:
    """Returns the ratios of one call of attention."""
    lines, targets, columns = [], [], [(isa, kind) for isa in ("", ", AVX2") for kind in NARROW]
    for case in (case for row in found["rows"] for case in row["cases"]):
        subjects = {each["name"]: each for each in case["subjects"]}
        plain = subjects.get("float32 caches", {}).get("time")
        cells = []
        for isa, kind in columns:
            over = subjects.get(f"{kind} caches{isa}", {}).get("over", {})
            ratio = over.get(f"float32 caches{isa}")
            cells.append(NONE if ratio is None else pages.digits(ratio))
        lines.append([case["name"], pages.shown(plain["median"]) if plain else NONE, *cells])
        targets += [
            Target(
                f"attention, {case['name']}, {each['subject']}",
                each["ratio"],
                each["limit"],
                is_undecided=each["status"] == "undecided",
            )
            for each in case["verdicts"]
        ]
    head = [
        "heads and slots",
        "float32, AVX-512",
        *(f"{kind}, {isa[2:] or 'AVX-512'}" for isa, kind in columns),
    ]
    text = (
        "One call for one new token, with one thread. The time with caches of float32, and then that of the other "
        "types divided by that of float32 with the same instructions:"
    )
    return f"{text}\n\n{pages.table(head, lines)}", targets


def layer(found: Found) -> tuple[str, list[Target]]:
    """Returns the times of a layer against ONNX Runtime's own int8."""
    lines = []
    targets = []
    for each in found:
        ours, theirs = (statistics.median(each["seconds"][name]) * 1e9 for name in ("ours", "theirs"))
        ratio = paired.ratio(each["seconds"], "ours", "theirs")
        lines.append([_heads(each), pages.shown(ours), pages.shown(theirs), pages.digits(ratio)])
        targets.append(Target(f"layer, {_heads(each)}", ratio, 0.6))
    head = ["heads", "the plugin", "GroupQueryAttention", "ratio"]
    text = (
        "A layer with int8 caches of 4,096 tokens, for one new token and with one thread: rotation, codes, write and "
        "attention in the plugin, and ONNX Runtime's `GroupQueryAttention` with one scale for each cache:"
    )
    return f"{text}\n\n{pages.table(head, lines)}", targets


def layer_line(found: Found) -> str:
    """Returns the ratio of one layer."""
    ratio = paired.ratio(found["seconds"], "ours", "theirs")
    return f"layer, {_heads(found)}: {ratio:.2f} × GroupQueryAttention"


def _heads(found: Found) -> str:
    query, stored, size = found["heads"]
    return f"{query} over {stored} of {size}"


def step(found: Found) -> tuple[str, list[Target]]:
    """Returns the times of whole steps."""
    lines, targets = [], []
    for length, seconds in found["seconds"].items():
        tokens = int(length)
        ratios = {kind: paired.ratio(seconds, kind, "float32") for kind in NARROW}
        plain = pages.shown(statistics.median(seconds["float32"]) * 1e9)
        lines.append([f"{tokens:,}", plain, *map(pages.digits, ratios.values())])
        for kind, ratio in ratios.items():
            limit = 1.03 if tokens <= 64 else 1 / 1.5 if tokens >= 7900 and kind == "int8" else 1.0
            targets.append(Target(f"step, {kind}, {tokens:,} tokens", ratio, limit))
    text = (
        f"A whole step of {found['model']}, in the plugin with {found['threads']} threads. The time with caches of "
        "float32, and that of the other types divided by it:"
    )
    return f"{text}\n\n{pages.table(['tokens in the caches', 'float32', *NARROW], lines)}", targets


def step_line(length: int, seconds: dict[str, list[float]]) -> str:
    """Returns the ratios after so many tokens."""
    ratios = ", ".join(f"{kind} {paired.ratio(seconds, kind, 'float32'):.3f}" for kind in seconds)
    return f"step, {length:,} tokens: {statistics.median(seconds['float32']) * 1e3:.2f} ms × {ratios}"


def size(found: Found) -> tuple[str, list[Target]]:
    """Returns the bytes of the caches."""
    lines, targets = [], []
    limits = {"float16": 0.5, "bfloat16": 0.5, "int8": 0.27}
    for model, types in found.items():
        ratios = {kind: types[kind] / types["float32"] for kind in NARROW}
        cells = [f"{types[kind] / (1 << 20):.1f} MiB ({ratio:.3f})" for kind, ratio in ratios.items()]
        lines.append([model, f"{types['float32'] / (1 << 20):.1f} MiB", *cells])
        targets += [Target(f"bytes, {model}, {kind}", ratios[kind], limits[kind]) for kind in NARROW]
    text = "The caches of a sample of 8,192 tokens with their scales, and in brackets divided by float32:"
    return f"{text}\n\n{pages.table(['model', 'float32', *NARROW], lines)}", targets


def quality(found: Found) -> tuple[str, list[Target]]:
    """Returns how far the logits are from those with caches of float32."""
    lines, targets, continued = [], [], []
    for model, each in found.items():
        title = model
        for kind, numbers in each["types"].items():
            cells = [f"{numbers['mean']:.1e}", f"{numbers['p99']:.1e}", f"{numbers['same']:.2%}"]
            lines.append([title, kind, *cells])
            title = ""
            if kind in ("float16", "int8"):
                limit = 1e-5 if kind == "float16" else 2e-3 if model.startswith("Gemma") else 1e-3
                targets.append(Target(f"mean KL, {model}, {kind}", numbers["mean"], limit))
            if kind == "int8":
                targets.append(Target(f"top word, {model}, int8", numbers["same"], 0.98, is_least=True))
        for text in each["continued"]:
            continued.append(f"- {model}: {text['same']} of {text['of']} after {text['prompt']:,}")
            equal = text["same"] / text["of"]
            what = f"equal tokens, {model}, float16, after {text['prompt']:,}"
            targets.append(Target(what, equal, 1.0, is_least=True))
    count = next(iter(found.values()))["tokens"]
    text = (
        f"The logits of {count:,} tokens of a text against those with caches of float32: the Kullback-Leibler "
        "divergence in nats, its mean and what 99% of the tokens do not exceed, and how often the most likely token "
        "is the same:"
    )
    table = pages.table(["model", "caches", "mean KL", "99%", "same token"], lines, left=2)
    more = (
        "Tokens that a model chooses with float16 until one differs from those with float32, after a prompt:"
    )
    return f"{text}\n\n{table}\n\n{more}\n\n" + "\n".join(continued), targets


def quality_line(numbers: dict[str, float]) -> str:
    """Returns the numbers of one type."""
    return f"mean KL {numbers['mean']:.1e}, 99% {numbers['p99']:.1e}, same token {numbers['same']:.2%}"


def codes(found: Found) -> tuple[str, list[Target]]:
    """Returns how many codes differ between engines."""
    lines, targets = [], []
    for each in found:
        part = {"key": "keys, rotated", "value": "values"}[each["part"]]
        lines.append([each["engine"], part, f"{each['count']:,}", f"{each['share']:.3%}", str(each["most"])])
        what = f"codes, {each['engine']}, {part}"
        most = Target(f"{what}, largest difference", each["most"], 1)
        targets.append(most if each["part"] == "key" else Target(f"{what}, share", each["share"], 0))
    head = ["engine", "codes of", "number", "that differ", "by at most"]
    text = (
        "The codes of the first layer of SmolLM2-135M after 300 tokens, against those that the plugin stores:"
    )
    return f"{text}\n\n{pages.table(head, lines, left=2)}", targets


def codes_line(each: Found) -> str:
    """Returns the numbers of one engine and part."""
    return (
        f"codes of {each['part']}s, {each['engine']}: {each['share']:.3%} differ, by at most {each['most']}"
    )


TABLES = {
    "kernel": ("One call of attention", kernel),
    "layer": ("A layer against ONNX Runtime's own int8", layer),
    "step": ("A whole step", step),
    "bytes": ("Bytes", size),
    "quality": ("Error", quality),
    "codes": ("Equal codes in every engine", codes),
}
