import json
import pathlib

import pytest

import report
from cases import Case
from names import AGAIN, MEMCPY, OURS
from results import Result, Run, Samples
from targets import Verdict, summary, verdicts

DECODE = Case(8, 1, 4096, is_ragged=True)
PREFILL = Case(1, 4096, 8192)


def result(case: Case, ours: float, peers: dict[str, float], copy: float = 1.0, noise: float = 0.0) -> Result:
    def samples(time: float) -> Samples:
        return Samples([time] * 8, [time] * 8, [time] * 8)

    all_samples = {OURS: samples(ours), AGAIN: samples(ours * (1 + noise)), MEMCPY: samples(copy)}
    all_samples |= {name: samples(time) for name, time in peers.items()}
    return Result(case, all_samples, list(peers), [ours] * 8, {})


def run(*results: Result, bandwidth: float = 4e6) -> Run:
    return Run("a machine", bandwidth, list(results), {"cupy": "not here"})


def judged(found: Run, target: str) -> list[str]:
    return [verdict.judged for verdict in verdicts(found) if verdict.target.startswith(target)]


@pytest.mark.parametrize(("time", "word"), [(1.4, "met"), (1.5, "met"), (1.6, "missed")])
def test_a_decode_write_has_a_limit(time: float, word: str) -> None:
    assert judged(run(result(DECODE, time, {})), "decode") == [word]


def test_a_limit_within_the_spread_is_neither_met_nor_missed() -> None:
    assert judged(run(result(DECODE, 1.49, {}, noise=0.02)), "decode") == ["inside the spread"]
    assert judged(run(result(DECODE, 1.51, {}, noise=-0.02)), "decode") == ["inside the spread"]


def test_a_prefill_has_a_share_of_the_bandwidth() -> None:
    moved = 2 * PREFILL.copied_bytes
    assert judged(run(result(PREFILL, moved / 4e6, {})), "prefill") == ["met"]
    assert judged(run(result(PREFILL, moved / 4e6 / 0.89, {})), "prefill") == ["missed"]


def test_the_best_peer_counts_and_an_easy_one_has_to_be_beaten() -> None:
    close = result(DECODE, 1.02, {"one": 1.0, "other": 3.0}, copy=1.0)
    assert close.best_peer("replayed") == "one"
    assert judged(run(close), "replayed") == ["met"]
    easy = result(DECODE, 1.02, {"one": 1.0}, copy=0.5)
    assert judged(run(easy), "eager") == ["missed"]
    assert judged(run(result(DECODE, 1.0, {"one": 1.0}, copy=0.5)), "eager") == ["missed"]
    assert judged(run(result(DECODE, 0.99, {"one": 1.0}, copy=0.5)), "eager") == ["met"]


def test_a_peer_that_no_graph_holds_is_compared_eager_only() -> None:
    found = result(DECODE, 1.0, {"one": 2.0})
    found.samples["one"].replayed.clear()
    assert judged(run(found), "replayed") == []
    assert judged(run(found), "eager") == ["met"]


def test_the_summary_names_the_worst_case() -> None:
    many = [
        Verdict("t", name, value, 1.0, value, value) for name, value in (("a", 0.5), ("b", 3.0), ("c", 2.0))
    ]
    assert summary(many) == [("t", {"met": 1, "inside the spread": 0, "missed": 2}, many[1])]
    shares = [Verdict("t", name, value, 0.9, value, value, "≥") for name, value in (("a", 0.95), ("b", 0.5))]
    assert summary(shares)[0][2] is shares[1]


def test_the_page_shows_times_peers_and_who_is_missing() -> None:
    text = report.page(run(result(DECODE, 1.25, {"one": 2.5}, copy=1.0)))
    assert "| decode, B 8, ragged | 1.25 | 1% | – | one | 0.5 | 1.25 | 1.25 | 1.25 | one | 0.5 |" in text
    assert "(A/A) takes 1.00 to 1.00 times as long replayed, and 1.00 to 1.00 times eager." in text
    assert "left out: cupy: not here" in text
    assert "moves 4 TB/s" in text


def test_json_brings_everything_back() -> None:
    before = run(result(DECODE, 1.25, {"one": 2.5}), result(PREFILL, 9.0, {}))
    assert Run.of_json(json.loads(json.dumps(before.as_json()))) == before


def test_the_document_is_rewritten_between_its_markers(tmp_path: pathlib.Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n", encoding="utf-8")
    for text in ("first\n", "second\n"):
        report.write_docs(document, text)
    assert (
        document.read_text(encoding="utf-8")
        == f"before\n\n{report.BEGIN}\n\nsecond\n\n{report.END}\n\nafter\n"
    )


def test_the_page_has_the_markers_once() -> None:
    page = (pathlib.Path(__file__).parents[4] / "docs" / "cuda.md").read_text(encoding="utf-8")
    assert page.count(report.BEGIN) == 1
    assert page.count(report.END) == 1
