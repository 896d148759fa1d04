"""Lists the third-party code in the Python package and its licences in `THIRD-PARTY.txt`, from `Cargo.lock`.

    python3 notices.py [--write]

Without `--write`, the script fails if the file is not current. If a crate offers several licences, the first one in
`CHOSEN` is used. The file does not list macros and build scripts, because no wheel contains them. Cargo must have
fetched the crates.
"""

import argparse
import json
import pathlib
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "crates/kvscatter-python/THIRD-PARTY.txt"

TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
"""The targets of the wheels. A crate is listed if it is linked on any of them."""

CHOSEN = ("Apache-2.0", "MIT", "BSD-2-Clause", "BSL-1.0", "ISC", "Zlib")
"""The accepted licences, in order of preference. All except Apache-2.0 require the crate's own licence text."""

HEAD = """\
The compiled module of this package contains third-party code under the licences that are listed here. The text
of Apache-2.0 is in LICENSE-APACHE, next to this file. The texts of the other licences follow the list.

Not from a crate: the Rust standard library (Apache-2.0, https://github.com/rust-lang/rust), and code generated
from onnx.proto (Apache-2.0, https://github.com/onnx/onnx).

"""


def crates() -> list[dict[str, Any]]:
    """Returns the linked third-party crates in alphabetical order, as `cargo metadata` describes them."""
    tree = ["tree", "--package", "kvscatter-python", "--edges", "normal,no-proc-macro", "--no-dedupe"]
    tree += ["--prefix", "none", "--format", "{p}", *(f"--target={target}" for target in TARGETS)]
    # A line is "name v1.2.3". Lines of crates in this repository also have a path.
    lines = set(cargo(*tree).split("\n")) - {""}
    linked = {tuple(line.split(" v")) for line in lines if "(/" not in line}
    every: list[dict[str, Any]] = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    found = [crate for crate in every if crate["source"] and (crate["name"], crate["version"]) in linked]
    if len(found) != len(linked):
        raise SystemExit(
            f"{len(linked)} crates are linked, and cargo metadata describes {len(found)} of them"
        )
    return sorted(found, key=lambda crate: (crate["name"], crate["version"]))


def cargo(*arguments: str) -> str:
    """Returns the output of cargo."""
    return subprocess.run(
        ["cargo", *arguments, "--locked"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def chosen(crate: dict[str, Any]) -> str:
    """Returns the licence under which the crate is used."""
    offered = crate["license"].replace("/", " OR ").split(" OR ")
    for licence in CHOSEN:
        if licence in offered:
            return licence
    raise SystemExit(f"{crate['name']} is {crate['license']}: read it, and add it to CHOSEN")


def notice(crate: dict[str, Any], licence: str) -> list[str]:
    """Returns the texts to include for a crate: its notice, and its licence unless that is Apache-2.0."""
    folder = pathlib.Path(crate["manifest_path"]).parent
    texts = sorted(folder.glob("NOTICE*"))
    if licence != "Apache-2.0":
        names = (f"LICENSE-{licence.split('-')[0].upper()}", "LICENSE", "LICENSE.txt", "LICENSE.md")
        own = [folder / name for name in names if (folder / name).exists()]
        if not own:
            raise SystemExit(f"{crate['name']} is {licence}, and none of {', '.join(names)} is in {folder}")
        texts.append(own[0])
    return ["\n".join(line.rstrip() for line in text.read_text().strip().splitlines()) for text in texts]


def document() -> str:
    """Returns the contents of the file."""
    rows, texts = [], []
    for crate in crates():
        licence = chosen(crate)
        title = f"{crate['name']} {crate['version']}"
        rows.append(f"{title:<28} {licence:<13} {crate['repository'] or ''}".rstrip())
        texts += [f"{'-' * 80}\n{title}\n\n{text}\n" for text in notice(crate, licence)]
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(texts)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--write", action="store_true")
    made = document()
    if options.parse_args().write:
        FILE.write_text(made)
    elif not FILE.exists() or FILE.read_text() != made:
        raise SystemExit(f"{FILE.relative_to(ROOT)} is not current: python3 xtask/python/notices.py --write")
