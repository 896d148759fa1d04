"""The matrix as one HTML page without other files, for wide and for narrow screens."""

from html import escape
from pathlib import Path
from typing import Any

from matrix import VERDICTS, Cell, Group, Matrix, plain, versions
from picture import picture

STYLE = (Path(__file__).parent / "page.css").read_text()
SCRIPT = (Path(__file__).parent / "page.js").read_text()
REPOSITORY = ".."


def page(matrix: Matrix, corpus: Path) -> str:
    """Returns the page."""
    operators = list(dict.fromkeys(rule["operator"] for rule in matrix.rules))
    sections = "".join(section(matrix, corpus, operator) for operator in operators)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>How runtimes write and read a KV cache</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>How runtimes write and read a KV cache</h1>
<p>{introduction(matrix)}</p>
{legend()}
<nav>{"".join(f'<a href="#{operator}">{operator}</a>' for operator in operators)}<a href="#not-run">Not run</a></nav>
</header>
<main>
{sections}
{not_run(matrix)}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def introduction(matrix: Matrix) -> str:
    """Returns the first paragraph."""
    names = {runtime["name"] for runtime in matrix.runtimes}
    cases = sum(len(cases) for cases in matrix.cases.values())
    return (
        f"{cases} cases for {len(matrix.rules)} rules, answered by {len(matrix.runtimes)} versions of {len(names)} "
        f"runtimes on {escape(matrix.system)}, {matrix.date}. The cases are in "
        f'<a href="{REPOSITORY}/conformance/README.md">conformance</a>. A runtime that differs from a rule with the '
        "basis <em>choice</em> breaks no document."
    )


def legend() -> str:
    """Returns the meaning of the symbols."""
    symbols: dict[str, list[str]] = {}
    for verdict, (symbol, _) in VERDICTS.items():
        symbols.setdefault(symbol, []).append(verdict)
    items = "".join(
        f'<li><span class="v {css(verdicts[0])}">{symbol}</span>'
        f"<span>{'; '.join(f'<b>{each}</b> {VERDICTS[each][1]}' for each in verdicts)}</span></li>"
        for symbol, verdicts in symbols.items()
    )
    return f'<details class="legend"><summary>What the symbols mean</summary><ul>{items}</ul></details>'


def section(matrix: Matrix, corpus: Path, operator: str) -> str:
    """Returns the table of the newest versions, and one article for each rule."""
    rules = [rule for rule in matrix.rules if rule["operator"] == operator]
    newest = [
        runtime for runtime in matrix.newest() if any(matrix.cell(runtime, rule).cases for rule in rules)
    ]
    articles = "".join(article(matrix, corpus, rule) for rule in rules)
    return f"""<section id="{operator}">
<h2>{operator}</h2>
{table(matrix, rules, newest)}
{articles}
</section>
"""


def table(matrix: Matrix, rules: list[dict[str, Any]], runtimes: list[dict[str, Any]]) -> str:
    """Returns a table with a row for each rule and a column for each runtime."""
    head = "".join(
        f'<th scope="col"><span>{escape(each["name"])} {escape(each["version"])}</span></th>'
        for each in runtimes
    )
    rows = ""
    for rule in rules:
        cells = "".join(f"<td>{symbol(matrix.cell(each, rule))}</td>" for each in runtimes)
        rows += f'<tr><th scope="row"><a href="#{rule["id"]}">{rule["id"]}</a></th>{cells}</tr>'
    return f'<div class="scroll"><table><thead><tr><th>rule</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def symbol(cell: Cell) -> str:
    """Returns the symbol of a cell. A title has its words."""
    if not cell.cases:
        return '<span class="v none" title="no such operator">·</span>'
    return f'<span class="v {css(cell.worst)}" title="{escape(str(cell))}">{VERDICTS[cell.worst][0]}</span>'


def css(verdict: str) -> str:
    """Returns the class of a verdict: good, fair, poor or bad."""
    if verdict == "exact":
        return "good"
    if verdict in ("copies", "refuses"):
        return "fair"
    return "poor" if verdict in ("ignores", "skips", "accepts") else "bad"


def article(matrix: Matrix, corpus: Path, rule: dict[str, Any]) -> str:
    """Returns a rule with its picture, and the runtimes grouped by their answers."""
    cases = matrix.cases[rule["id"]]
    drawn, case = picture(corpus, cases)
    links = ", ".join(
        f'<a href="{REPOSITORY}/conformance/{each["folder"]}">{each["name"].split("/")[1]}</a>'
        for each in cases
    )
    groups = "".join(group(each, matrix, rule) for each in matrix.groups(rule))
    return f"""<article id="{rule["id"]}">
<h3>{rule["id"]} <small>{rule["basis"]}</small></h3>
<p>{escape(rule["rule"])} <a href="{REPOSITORY}/{rule["semantics"]}">Details</a></p>
<figure>{drawn}<figcaption>{case["name"].split("/")[1]}: {escape(case["what"])}</figcaption></figure>
<ul class="groups">{groups}</ul>
<p class="cases">Cases: {links}</p>
</article>
"""


def group(group: Group, matrix: Matrix, rule: dict[str, Any]) -> str:
    """Returns the runtimes with one answer, the first difference and the command that repeats it."""
    last = group.runtimes[-1]
    detail = ""
    if group.cell.first:
        cell = matrix.cell(last, rule)
        case, message = cell.first or ("", "")
        detail = (
            f'<p class="detail">{escape(last["name"])} {escape(last["version"])}, {escape(case)}: '
            f"{escape(plain(message))}</p>"
        )
    command = f"cargo xtask divergences --only {last['id']} --rule {rule['id']}"
    return (
        f"<li>{symbol(group.cell)}<div><p><b>{escape(str(group.cell))}</b> "
        f"{escape(versions(group.runtimes, matrix.runtimes))}</p>{detail}"
        f'<p class="command"><code>{escape(command)}</code></p></div></li>'
    )


def not_run(matrix: Matrix) -> str:
    """Returns what could not be run, in the words of its documents."""
    entries = "".join(
        f"<li><b>{escape(each['name'])}</b> was not run. {escape(each['reason'])} Its document: "
        f"<q>{escape(each['words'])}</q> ({escape(each['source'])})</li>"
        for each in matrix.not_run
    )
    lacking = "".join(
        f"<li><b>{escape(runtime['title'])} {escape(runtime['version'])}</b> refuses every valid case of "
        f"{escape(operator)}: <q>{escape(plain(message))}</q></li>"
        for runtime in matrix.newest()
        for operator, message in runtime["no_operator"].items()
    )
    calls = "".join(
        f"<li><b>{escape(runtime['title'])}</b>, {escape(operator)}: <code>{escape(call)}</code></li>"
        for runtime in matrix.newest()
        for operator, call in runtime["calls"].items()
    )
    return f"""<section id="not-run">
<h2>Not run</h2><ul>{entries}</ul>
<h2>No such operator</h2><ul>{lacking}</ul>
<h2>What was called</h2><ul>{calls}</ul>
</section>
"""
