"""Times models with real weights in several engines: `cargo xtask bench-real --help`.

Fetches the weights, exports them, converts the exports, compares the tokens of all engines with those of transformers,
and measures. What exists below ROOT is used again.
"""

import argparse
import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import drive
import fetch_and_export as source
import host
import page
from candidates import CAPACITY, CHUNK, Group, Tools, groups_of_folder, groups_of_source
from drive import Failure, Plan, Process

FULL = Plan((64, 1024, 4096, 7900), passes=2, rounds=3, steps=8)
QUICK = Plan((64, 512), passes=1, rounds=2, steps=4)
# The share of the processors' time that other programs may use.
QUIET = 0.05
# The largest difference of a logit between a 4-bit export and its conversion, if products do not round to 8 bits.
TOLERANCE = 3e-2
PAGES = ("README.md", "docs/*.md", "docs/*/*.md")


def text(tokenizer: Path, repository: Path) -> list[int]:
    """Returns tokens of this repository's pages, or of no text if there is no tokenizer."""
    if not tokenizer.exists():
        return [token % 1000 for token in range(CAPACITY)]
    from tokenizers import Tokenizer

    files = [file for pattern in PAGES for file in sorted(repository.glob(pattern))]
    words = "\n".join(file.read_text(encoding="utf-8") for file in files[:20])
    return Tokenizer.from_file(str(tokenizer)).encode(words[: 8 * CAPACITY]).ids[:CAPACITY]


class Bench:
    """Checks and measures groups of candidates."""

    def __init__(self, given: argparse.Namespace, tools: Tools) -> None:
        self._given, self._tools = given, tools
        self._plan = QUICK if given.quick else FULL
        self._steps = 16 if given.quick else 128

    def run(self, group: Group) -> dict[str, Any]:
        """Returns the results of a group, as JSON has them."""
        tokens = text(group.tokenizer, self._tools.repository)
        prompts = [tokens[:count] for count in group.prompts if not self._given.quick or count <= 300]
        left_out, checks = dict(group.left_out), {}
        running: dict[str, Process] = {}
        try:
            reference = self.reference(group, prompts, left_out)
            for each in group.candidates:
                try:
                    process = self.start(
                        f"{group.id} {each.name}", self._tools.worker(each.engine, each.model)
                    )
                    running[each.name] = process
                    process.ask("reset")
                    # The reference comes from transformers itself.
                    compared = None if each.engine.startswith("transformers") else reference
                    checks[each.name] = self.check(group, each.name, process, prompts, compared)
                except Failure as error:
                    left_out[each.name] = str(error)
            timed = {
                each.name: running[each.name]
                for each in group.candidates
                if each.timed and each.name in checks
            }
            plan = replace(self._plan, lengths=tuple(n for n in self._plan.lengths if n < len(tokens)))
            print(f"{group.title}: measuring {'; '.join(timed)}", flush=True)
            times, failed = drive.measure(timed, tokens, plan)
            left_out |= failed
            rows = []
            for name, of_name in times.items():
                sizes = {"caches": int(timed[name].ask("caches")), "peak": timed[name].peak()}
                rows.append({"name": name, **of_name.as_json(), **sizes})
        finally:
            for process in running.values():
                process.close()
        for name, reason in left_out.items():
            print(f"{group.title}: {name} left out: {reason}", flush=True)
        logits = self.logits(group, prompts) if group.logits else []
        found = {
            "candidates": rows,
            "checks": checks,
            "logits": logits,
            "left_out": left_out,
        }
        return {"id": group.id, "title": group.title, "notes": group.notes, **found}

    def start(self, name: str, command: list[Any]) -> Process:
        """Starts a process with a log of this name."""
        log = self._tools.root / "logs" / f"{name}.log".replace(" ", "-").replace(",", "")
        return Process(command, log, self._tools.threads)

    def reference(
        self, group: Group, prompts: list[list[int]], left_out: dict[str, str]
    ) -> list[list[int]] | None:
        """Returns the tokens that transformers chooses, which are computed once."""
        if group.reference is None:
            return None
        name = group.id.split()[0]
        file = self._tools.root / f"reference-{name}-{self._steps}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get("prompts") == prompts:
            return known["tokens"]
        command = self._tools.worker("transformers", group.reference)
        process = self.start(f"reference {name}", command)
        try:
            with source.Step("reference", file):
                tokens = [drive.continuation(process, prompt, self._steps) for prompt in prompts]
        except Failure as error:
            left_out["the comparison with transformers"] = str(error)
            return None
        finally:
            process.close()
        file.write_text(json.dumps({"prompts": prompts, "tokens": tokens}))
        return tokens

    def check(
        self,
        group: Group,
        name: str,
        process: Process,
        prompts: list[list[int]],
        reference: list[list[int]] | None,
    ) -> list[dict[str, int]]:
        """Returns after how many tokens of each prompt an engine first differs from transformers."""
        results = []
        for prompt, wanted in zip(prompts, reference or [], strict=False):
            found = drive.continuation(process, prompt, self._steps)
            same = drive.agreeing(found, wanted)
            results.append({"prompt": len(prompt), "same": same, "of": len(wanted)})
        if results:
            print(f"{group.title}: {name} agrees with transformers: {page.agreement(results)}", flush=True)
        return results

    def logits(self, group: Group, prompts: list[list[int]]) -> list[dict[str, float]]:
        """Returns how far the logits of the converted model are from those of its export."""
        folder = self._tools.root / "without-rounding" / group.id.replace(" ", "-")
        numbers = [self._tools.threads, CAPACITY, CHUNK, self._steps]
        command = [sys.executable, Path(__file__).with_name("logits.py"), *group.logits, folder, *numbers]
        done = drive.output(command, json.dumps(prompts), self._tools.threads)
        results = [
            {"prompt": len(prompt), **each} for prompt, each in zip(prompts, json.loads(done), strict=True)
        ]
        for each in results:
            print(f"{group.title}: {page.difference(each)}", flush=True)
        return results


def failures(results: dict[str, Any]) -> list[str]:
    """Returns the checks of our engines and conversions that failed."""
    found = []
    for group in results["groups"]:
        strict = [name for name in group["checks"] if "float32" in group["id"] and "kvscatter" in name]
        found += [
            f"{group['title']}, {name}: another token after a prompt of {check['prompt']:,} and {check['same']} tokens"
            for name in strict
            for check in group["checks"][name]
            if check["same"] < check["of"]
        ]
        found += [
            f"{group['title']}: logits differ by {check['exact']:.2g}, at most {TOLERANCE:g}"
            for check in group["logits"]
            if check["exact"] > TOLERANCE
        ]
    return found


def arguments() -> argparse.Namespace:
    """Reads the options."""
    options = argparse.ArgumentParser(
        prog="cargo xtask bench-real", description="Times models with real weights in several engines."
    )
    options.add_argument("root", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--environments", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument("--command", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument("--tract", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument(
        "--quick", action="store_true", help="few lengths and rounds, to see that everything works"
    )
    options.add_argument(
        "--only",
        action="append",
        metavar="WORDS",
        help="time candidates whose name has these words, such as 'smollm2 4-bit' or 'tract'; repeat it",
    )
    options.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="a folder of GenAI, Optimum, mobius or transformers instead",
    )
    options.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each engine")
    options.add_argument("--prepare", action="store_true", help="make all models and measure nothing")
    options.add_argument("--from", dest="again", action="store_true", help="use the results of the last run")
    options.add_argument(
        "--write-docs",
        action="store_true",
        help="write docs/performance/real.md, its plot (needs matplotlib) and the table of docs/genai.md; with --only, "
        "the last alone",
    )
    return options.parse_args()


def measured(given: argparse.Namespace, tools: Tools) -> dict[str, Any]:
    """Makes the models, and returns the results of all groups."""
    if given.model:
        groups = groups_of_folder(given.model, tools)
    else:
        groups = [group for name in source.SOURCES for group in groups_of_source(name, tools, given.only)]
    groups = [chosen for group in groups if (chosen := group.only(given.only)).candidates]
    if not groups:
        raise Failure(f"no candidate has the words {' or '.join(map(repr, given.only))}")
    results: dict[str, Any] = {"machine": host.facts(tools), "threads": tools.threads}
    if given.prepare:
        return results
    hasty = bool(given.quick or given.model)
    results |= {"hasty": hasty, "whole": not (hasty or given.only), "busy": host.busy()}
    if results["busy"] > QUIET:
        print("other programs run, so these times mean little", flush=True)
    if given.write_docs:
        check_quality(results)
        if results["whole"] and importlib.util.find_spec("matplotlib") is None:
            raise Failure(f"--write-docs draws with matplotlib: {sys.executable} -m pip install matplotlib")
    bench, stolen = Bench(given, tools), host.Stolen()
    results["groups"] = []
    for group in groups:
        results["groups"].append(bench.run(group))
        results["stolen"] = stolen.share()
        # A run that is interrupted keeps its groups, but is not good enough for the page.
        found = results | {"whole": results["whole"] and group is groups[-1]}
        (given.root / "results.json").write_text(json.dumps(found, indent=1))
    return results


def check_quality(results: dict[str, Any]) -> None:
    """Fails if results are not good enough for the pages."""
    if results["hasty"]:
        raise Failure("--write-docs needs a run without --quick and --model")
    if results["busy"] > QUIET:
        used = f"{results['busy']:.0%} of the processors, at most {QUIET:.0%} for --write-docs"
        raise Failure(f"other programs used {used}; end them and measure again")


def main() -> None:
    """Measures what the arguments ask for, and writes the results."""
    given = arguments()
    tools = Tools(given.root, given.environments, given.command, given.tract, given.threads)
    file = given.root / "results.json"
    try:
        if given.again:
            results = json.loads(file.read_text())
        else:
            results = measured(given, tools)
            if given.prepare:
                return
        if given.write_docs:
            check_quality(results)
        failed = failures(results)
        page.write(results, given.root, given.write_docs and not failed)
        if failed:
            raise Failure("\n".join(failed))
    except (Failure, source.Failure) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
