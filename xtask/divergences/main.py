"""Runs the conformance cases in every runtime of runtimes.toml, and collects how each differs.

    cargo xtask divergences [options]

Each version of a runtime has a separate environment below ROOT/environments. Its answers, its verdicts and a file
of what was installed are in ROOT/runs/NAME-VERSION. ROOT/results.json has the verdicts of all. ROOT is
target/divergences. A run that is finished is not repeated until the cases, the adapters or the harness change.
"""

import argparse
import json
import platform
import sys
from datetime import date
from pathlib import Path

from environments import Environments, Failure
from page_markdown import write_page
from runs import Runs
from runtimes import Runtime, read_runtimes

HERE = Path(__file__).parent


def main() -> None:
    """Runs what the arguments select."""
    options = argparse.ArgumentParser(prog="cargo xtask divergences", description=__doc__.split("\n")[0])
    options.add_argument("root", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--command", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument("--plugin", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument("--rust", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument(
        "--corpus", type=Path, default=HERE.parents[1] / "conformance", help=argparse.SUPPRESS
    )
    options.add_argument(
        "--only", action="append", metavar="NAME[-VERSION]", help="a runtime of runtimes.toml; repeat it"
    )
    options.add_argument(
        "--rule", metavar="ID", help="print the verdicts on the cases of one rule, and change no results"
    )
    options.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="'NAME VERSION=FOLDER'",
        help="add the answers in a folder, which conformance/run.py or another program has written",
    )
    options.add_argument("--again", action="store_true", help="repeat finished runs")
    options.add_argument("--write-docs", action="store_true", help="write docs/divergences.md")
    options.add_argument(
        "--list", action="store_true", help="print the names of the runtimes, and run nothing"
    )
    given = options.parse_args()

    document = read_runtimes(HERE / "runtimes.toml")
    runtimes = [*document.runtimes, *(added(text) for text in given.add)]
    wanted = [each for each in runtimes if each.is_selected(given.only)]
    if not wanted:
        raise SystemExit(f"no runtime is named {', '.join(given.only)}: see --list")
    if given.list:
        print("\n".join(each.id for each in wanted))
        return
    runs = Runs(given.root, given.corpus, given.command, given.rule)
    variables = {"KVSCATTER_ORT_LIBRARY": given.plugin, "KVSCATTER_DIVERGENCES": given.rust}
    environments = Environments(given.root / "environments", variables)
    done, failed = [], []
    # Unless they are wanted, runtimes only count if they are finished.
    for runtime in wanted if given.rule else runtimes:
        try:
            if runtime in wanted and (given.again or not runs.is_finished(runtime)):
                python = environments.make(runtime)
                print(f"{runtime.id}: runs", flush=True)
                runs.answer(runtime, python, environments.variables(runtime), environments.installed(python))
            if runs.is_finished(runtime):
                done.append(runs.judge(runtime))
        except Failure as failure:
            print(f"{runtime.id}: {failure}", flush=True)
            failed.append({"runtime": runtime.id, "message": str(failure)})
            continue
        if runtime in wanted:
            print(f"{runtime.id}: {done[-1].summary()}", flush=True)
    if given.rule:
        print("\n".join(line for run in done for line in [run.runtime.id, *run.lines()]))
    else:
        results = {
            "date": date.today().isoformat(),
            "system": platform.system(),
            "architecture": platform.machine(),
            "runtimes": [run.document() for run in done],
            "failed": failed,
            "not_run": document.not_run,
        }
        (given.root / "results.json").write_text(json.dumps(results, indent=1))
        print(f"{len(done)} runtimes: {given.root / 'results.json'}")
    if given.write_docs:
        write_page(given.root / "results.json", given.corpus, HERE.parents[1] / "docs" / "divergences.md")
    sys.exit(1 if failed else 0)


def added(text: str) -> Runtime:
    """Returns the runtime that an option describes."""
    title, equals, folder = text.partition("=")
    name, space, version = title.rpartition(" ")
    if not (equals and space and Path(folder).is_dir()):
        raise SystemExit(f"--add {text!r} must be 'NAME VERSION=FOLDER' with a folder that exists")
    return Runtime(name=name, title=name, version=version, results=Path(folder))


if __name__ == "__main__":
    main()
