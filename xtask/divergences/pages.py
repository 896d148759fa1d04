"""Writes the pages of the matrix: `python pages.py RESULTS CORPUS DOCS`."""

import json
import sys
from pathlib import Path

from matrix import Matrix
from page_html import page
from page_markdown import with_tables


def main(results: Path, corpus: Path, docs: Path) -> None:
    """Writes docs/divergences.md between its marks, and docs/divergences.html."""
    index = json.loads((corpus / "index.json").read_text())
    matrix = Matrix(json.loads(results.read_text()), index)
    markdown = docs / "divergences.md"
    markdown.write_text(with_tables(markdown.read_text(), matrix))
    (docs / "divergences.html").write_text(page(matrix, corpus))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
