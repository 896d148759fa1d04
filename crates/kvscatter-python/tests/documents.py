"""Runs the examples of Markdown documents and compares what they print.

    python documents.py FILE...

Examples are the code blocks of the language `pycon`. The examples of one document run in order and share
their variables. The standard library runs them, so an environment needs only what the examples need.
"""

import doctest
import pathlib
import re
import sys

BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(text: str, name: str) -> doctest.DocTest:
    """Returns all blocks as one test, with their original line numbers."""
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for number, line in enumerate(block[1].splitlines(), first):
            lines[number] = line
    return doctest.DocTestParser().get_doctest("\n".join(lines), {"__name__": "__main__"}, name, name, 0)


def main(files: list[str]) -> int:
    """Returns zero if every document has examples and all of them print what the document shows."""
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.REPORT_NDIFF)
    for file in files:
        test = examples(pathlib.Path(file).read_text(encoding="utf-8"), file)
        if not test.examples:
            raise SystemExit(f"{file} has no examples")
        runner.run(test)
    results = runner.summarize()
    print(f"{len(files)} documents, {results.attempted} examples, {results.failed} failed")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
