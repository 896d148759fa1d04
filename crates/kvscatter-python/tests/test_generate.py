"""Tests generation after texts and chats. The tokens are those of generation after token ids, which `test_session.py`
tests."""

from __future__ import annotations

import gc
import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvscatter
from kvscatter import Generated, Generator, errors
from kvscatter._text import Pieces, Stops, TextFiles, Tokenizer
from support import TESTDATA, refused

STATIC = TESTDATA / "mobius-llama-static"
GROWING = TESTDATA / "optimum-llama/model.onnx"
TEXT = TESTDATA / "text"
PROMPTS = ["Once", "Hello, é!"]
CHAT = [{"role": "user", "content": "Hi"}]
ENDLESS = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
"""A chat template that runs for years."""
NO_END: dict[str, Any] = {"eos": (), "threads": 1}
"""Options with which texts are long, because no token ends them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a model with a tokenizer."""
    return shutil.copytree(
        TEXT, shutil.copytree(STATIC, tmp_path_factory.mktemp("model") / "m"), dirs_exist_ok=True
    )


@pytest.fixture
def files(folder: Path, tmp_path: Path) -> Path:
    """Returns a copy of the folder to change, without weights."""
    return shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("*.data"))


@pytest.fixture
def generator(folder: Path) -> Iterator[Generator]:
    with Generator(folder, batch=2, threads=1) as opened:
        yield opened


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvscatter generation"]


def test_a_text_is_the_text_of_the_tokens_after_its_tokens(folder: Path) -> None:
    tokenizer = TextFiles(folder).tokenizer()
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    want = kvscatter.generate(folder, ids, 12, threads=1, eos=[255, 193])
    got = kvscatter.generate(folder / "model.onnx", PROMPTS, 12, threads=1)
    assert (got.samples, got.ends) == (want.samples, want.ends)
    assert got.texts == [tokenizer.decode(sample) for sample in want.samples]
    assert want.texts is None
    one = kvscatter.generate(folder, PROMPTS[0], 12, threads=1)
    assert (one.text, one.samples) == (got.texts[0], got.samples[:1])
    for several in (got, want):
        with pytest.raises(AttributeError, match="one prompt that is a text"):
            several.text  # noqa: B018


def test_without_a_limit_a_text_ends_at_an_end_token_or_when_the_cache_is_full(folder: Path) -> None:
    ended = kvscatter.generate(folder, "Once", threads=1)
    assert (ended.ends, ended.samples[0][-1] in (255, 193)) == (["eos"], True)
    assert kvscatter.generate(folder, "Once", **NO_END).ends == ["full"]


def test_a_text_continues_a_saved_text(folder: Path, tmp_path: Path) -> None:
    """The token that begins a text comes once."""
    saved = tmp_path / "once.kvs"
    kvscatter.generate(folder, "Once", 1, save_prefix=saved, threads=1)
    whole = kvscatter.generate(folder, ["Once upon", "Once"], 9, threads=1)
    assert kvscatter.generate(folder, " upon", 9, prefix=saved, threads=1).samples == whole.samples[:1]


def test_prompts_of_any_length_end_for_the_same_reasons(folder: Path) -> None:
    prompts = ["", "a", "a" * 55]
    assert kvscatter.generate(folder, prompts, 8, **NO_END).ends == ["length"] * 3
    assert kvscatter.generate(folder, prompts, **NO_END).ends == ["full"] * 3


def test_a_seed_has_no_effect_without_sampling(generator: Generator) -> None:
    assert generator.generate("Once", 5, seed=3).samples == generator.generate("Once", 5).samples


@pytest.mark.parametrize("options", [{}, {"draft": 5}, {"do_sample": True, "seed": 3}])
def test_the_pieces_of_a_stream_are_the_text(generator: Generator, options: dict[str, Any]) -> None:
    texts = generator.generate(PROMPTS, 40, eos=(), **options).texts
    assert texts is not None
    one = generator.generate(PROMPTS[0], 40, eos=(), stream=True, **options)
    pieces = list(one)
    assert ("".join(pieces), "" in pieces) == (texts[0], False)
    assert len(pieces) > 5 or "draft" in options
    assert one.generated is not None and (one.generated.text, one.generated.ends) == (texts[0], ["length"])
    both = ["", ""]
    for prompt, piece in generator.generate(PROMPTS, 40, eos=(), stream=True, **options):
        both[prompt] += piece
    assert both == texts
    assert not threads()


def random_tokens(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Returns tokens of which many are parts of characters."""
    parts = [token for text in ("é€😀", "the cat") for token in tokenizer.encode(text)]
    return [
        rng.choice(parts) if rng.random() < 0.6 else rng.randrange(300) for _ in range(rng.randrange(1, 60))
    ]


def byte_fallback() -> Tokenizer:
    """Returns a tokenizer like that of Llama 2."""
    words = {"▁": 259, "▁the": 260, "▁cat": 261, "é": 262, "a": 263}
    bytes_ = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    written = {
        "added_tokens": [{"id": id, "content": content, **added} for content, id in special.items()],
        "normalizer": {"type": "Prepend", "prepend": "▁"},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "vocab": {**special, **bytes_, **words},
            "merges": [],
        },
    }
    return Tokenizer(Path("tokenizer.json"), json.dumps(written), None)


@pytest.mark.parametrize(
    "make", [lambda: TextFiles(TEXT).tokenizer(), byte_fallback], ids=["bytes", "fallback"]
)
def test_pieces_of_any_tokens_are_their_text(make: Callable[[], Tokenizer]) -> None:
    tokenizer, rng = make(), random.Random(5)
    for _ in range(300):
        tokens = random_tokens(tokenizer, rng)
        pieces = Pieces(tokenizer)
        parts = [*map(pieces.push, tokens), pieces.finish()]
        assert "".join(parts) == tokenizer.decode(tokens), tokens


def test_no_piece_ends_in_the_middle_of_a_character() -> None:
    tokenizer = TextFiles(TEXT).tokenizer()
    pieces = Pieces(tokenizer)
    tokens = tokenizer.encode("a😀b")[1:]
    assert [*map(pieces.push, tokens), pieces.finish()] == ["a", "", "", "", "😀", "b", ""]


@pytest.mark.parametrize(
    ("stops", "pieces", "want", "ends"),
    [
        (["END"], ["one EN", "D two", "x"], ["one ", "", "", ""], True),
        (["END"], ["one E", "xit"], ["one ", "Exit", ""], False),
        (["END"], ["one E"], ["one ", "E"], False),
        (["c", "b"], ["abc"], ["a", ""], True),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""], True),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", "", ""], True),
        ([" upon a", "pon"], [" upon a time"], [" u", ""], True),
        ([" upon a", "pon"], [" up", "on a"], ["", " u", ""], True),
        (["pon", "upon"], ["upon"], ["", ""], True),
        ([], ["a", "b"], ["a", "b", ""], False),
    ],
)
def test_a_text_ends_before_the_first_stop(
    stops: list[str], pieces: list[str], want: list[str], ends: bool
) -> None:
    stop = Stops(stops)
    assert ([*map(stop.push, pieces), stop.finish()], stop.has_stopped) == (want, ends)


def test_a_stop_ends_one_prompt_of_a_batch(generator: Generator) -> None:
    texts = generator.generate(PROMPTS, 30, eos=()).texts
    assert texts is not None
    stop = texts[0][5:8]
    assert stop not in texts[1]
    cut = texts[0].index(stop)
    stopped = generator.generate(PROMPTS, 30, eos=(), stop=stop)
    assert (stopped.texts, stopped.ends) == ([texts[0][:cut], texts[1]], ["stopped", "length"])
    assert len(stopped.samples[0]) < 30
    assert (
        "".join(generator.generate(PROMPTS[0], 30, eos=(), stop=["nowhere", stop], stream=True))
        == texts[0][:cut]
    )


def test_a_chat_in_turns_is_the_same_as_a_new_one(folder: Path, generator: Generator) -> None:
    messages: list[dict[str, str]] = []
    for question in ("Hi", "Who?", "é"):
        messages.append({"role": "user", "content": question})
        answer = generator.chat(messages, 4, eos=())
        assert answer == kvscatter.chat(folder, messages, 4, **NO_END)
        assert answer == "".join(generator.chat(messages, 4, eos=(), stream=True))
        messages.append({"role": "assistant", "content": answer})


def test_a_later_call_computes_only_new_tokens(generator: Generator) -> None:
    first = generator.generate("Once", 5, eos=())
    tokens = len(generator.tokenizer.encode("Once"))
    assert first.prompt_tokens == tokens
    again = generator.generate([[0, *generator.tokenizer.encode("Once")[1:], *first.samples[0], 9]], 5)
    assert again.prompt_tokens == 2, "the last token of the first call and the new one"
    fresh = kvscatter.generate(
        STATIC, [[*generator.tokenizer.encode("Once"), *first.samples[0], 9]], 5, threads=1
    )
    assert again.samples == fresh.samples
    assert generator.capacity == 64 and generator.engine == first.engine


@pytest.mark.parametrize("end", ["close", "with", "delete", "raise"])
def test_a_stream_that_ends_early_ends_its_thread(generator: Generator, end: str) -> None:
    steps: list[int] = []

    def progress(tokens: int, _samples: int) -> None:
        steps.append(tokens)
        if end == "raise" and tokens == 3:
            raise LookupError("of progress")

    stream = generator.generate("Once", eos=(), stream=True, progress=progress)
    assert not threads(), "nothing runs before the first piece"
    next(stream)
    assert len(threads()) == 1
    assert refused("busy", None, generator.generate, "a", 1).args
    if end == "close":
        stream.close()
    elif end == "with":
        with stream:
            next(stream)
    elif end == "delete":
        del stream
        gc.collect()
    else:
        with pytest.raises(LookupError, match="of progress"):
            list(stream)
    assert not threads()
    assert len(steps) < 10
    assert generator.generate("Once", 3).text == "".join(generator.generate("Once", 3, stream=True))


def read_by_two(stream: Iterator[str]) -> list[list[str] | BaseException]:
    """Reads a stream in two threads. Returns the pieces of each, or its exception."""
    results: list[list[str] | BaseException] = []

    def read() -> None:
        try:
            results.append(list(stream))
        except BaseException as error:
            results.append(error)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    return results


def test_two_threads_read_one_stream(generator: Generator) -> None:
    pieces = list(generator.generate("Once", 40, eos=(), stream=True))
    for _ in range(5):
        stream = generator.generate("Once", 40, eos=(), stream=True)
        results = read_by_two(stream)
        read = [piece for result in results if isinstance(result, list) for piece in result]
        assert (len(results), sorted(read)) == (2, sorted(pieces))
        assert stream.generated is not None and stream.generated.text == "".join(pieces)


def test_one_of_two_readers_gets_an_exception(generator: Generator) -> None:
    def progress(tokens: int, _samples: int) -> None:
        if tokens == 9:
            raise LookupError("of progress")

    results = read_by_two(generator.generate("Once", eos=(), stream=True, progress=progress))
    assert sorted(type(result).__name__ for result in results) == ["LookupError", "list"]


def test_a_closed_stream_ends_its_readers(generator: Generator) -> None:
    runs, goes_on = threading.Event(), threading.Event()

    def progress(tokens: int, _samples: int) -> None:
        runs.set()
        assert goes_on.wait(60)

    stream = generator.generate("Once", eos=(), stream=True, progress=progress)

    def close() -> None:
        assert runs.wait(60)
        # This call ends after the run of the model.
        threading.Timer(0.1, goes_on.set).start()
        stream.close()

    closer = threading.Thread(target=close)
    closer.start()
    results = read_by_two(stream)
    closer.join()
    assert all(isinstance(result, list) for result in results), results
    assert not threads()


def test_ctrl_c_ends_a_stream(generator: Generator) -> None:
    started = threading.Event()

    def progress(tokens: int, _samples: int) -> None:
        started.set()
        time.sleep(0.02)

    def send() -> None:
        assert started.wait(60)
        signal.raise_signal(signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        list(generator.generate("Once", eos=(), stream=True, progress=progress))
    sender.join()
    assert not threads()


def test_python_exits_with_an_open_stream(folder: Path) -> None:
    program = (
        "import sys, kvscatter\n"
        "stream = kvscatter.generate(sys.argv[1], 'Once', eos=(), stream=True, threads=1)\n"
        "assert 'tokenizers' in sys.modules and next(stream)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder], timeout=120, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_packages_for_text_are_imported_when_they_are_needed() -> None:
    program = "import sys, kvscatter; print({'tokenizers', 'jinja2'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_a_missing_package_names_the_extra(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    if package == "jinja2":
        monkeypatch.setattr("kvscatter._text._environment", lambda: pytest.fail("not reached"))
    with pytest.raises(ImportError) as missing:
        kvscatter.chat(folder, CHAT)
    assert str(missing.value) == f"text needs the package {package}: pip install kvscatter[text]"


def test_a_folder_is_converted_once(
    tmp_path: Path, conversions: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(TEXT, shutil.copytree(GROWING.parent, tmp_path / "m"), dirs_exist_ok=True)
    caplog.set_level(logging.INFO, "kvscatter")
    prompts = [[5, 9, 200], [7, 7, 7]]
    want = kvscatter.generate(folder, prompts, 6, convert=False, threads=1)
    assert want.written_per_step > 0 and "as it was exported" in caplog.messages[-1]
    for level, begins in ((logging.WARNING, "converted in "), (logging.INFO, "using the conversion ")):
        got = kvscatter.generate(folder, prompts, 6, max_seq=40, threads=1)
        assert (got.samples, caplog.records[-1].levelno) == (want.samples, level)
        assert caplog.messages[-1].startswith(begins) and str(conversions) in caplog.messages[-1]
    with Generator(folder, max_seq=40, threads=1) as generator:
        assert generator.capacity == 40
        assert generator.generate("Once", 5).texts is not None
    refused("capacity_useless", "capacity", Generator, folder, max_seq=40, capacity=40)
    refused("max_seq_useless", "max_seq", Generator, folder, max_seq=40, convert=False)


def test_each_type_of_caches_has_a_conversion(tmp_path: Path, conversions: Path) -> None:
    folder = shutil.copytree(GROWING.parent, tmp_path / "m")
    prompts, before = [[5, 9, 200], [7, 7, 7]], set(conversions.iterdir())
    wide = kvscatter.generate(folder, prompts, 6, threads=1)
    written = [wide.written_per_step]
    types: list[dict[str, Any]] = [{"cache_type": name} for name in ("float16", "int8")]
    for options in [*types, {"cache_type": "int8", "rotation": False}]:
        got = kvscatter.generate(folder, prompts, 6, threads=1, **options)
        assert [len(sample) for sample in got.samples] == [6, 6]
        written.append(got.written_per_step)
    assert written[1] == wide.written_per_step / 2 and written[1] > written[2] == written[3]
    assert len([path for path in set(conversions.iterdir()) - before if path.is_dir()]) == 4
    refused("cache_type_useless", "cache_type", Generator, folder, cache_type="int8", convert=False)
    refused("choice", "cache_type", Generator, folder, cache_type="int4")


@pytest.mark.parametrize("number", range(len(json.loads((TEXT / "templates.json").read_text())["cases"])))
def test_a_chat_template_writes_the_text_that_transformers_writes(files: Path, number: int) -> None:
    written = json.loads((TEXT / "templates.json").read_text())
    case = written["cases"][number]
    (files / "chat_template.jinja").write_text(case["template"])
    template = TextFiles(files).chat_template()
    for chat, want in zip(written["chats"], case["texts"], strict=True):
        if isinstance(want, str):
            assert template(chat) == want
        else:
            assert failure(lambda chat=chat: template(chat)).kind == "template"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "line 1: the chat template fails: "),
        ("\n{{ 1 / 0 }}", "line 2: the chat template fails: division by zero"),
        ("{{ raise_exception('Roles\nmust alternate') }}", "refuses this chat: Roles must alternate"),
        ("{{ raise_exception('\x1b]0;x\x07\u202e') }}", r"refuses this chat: \x1b]0;x\x07\u202e"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader for this environment specified"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}x{% endfor %}", "writes more than 9999 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
        ("{{ missing.name }}", "'missing' is undefined"),
        ("x" * (1 << 18) + "y", "has more than 262144 characters"),
        ("{{ 9 ** 9999 }}", "an integer of more than 4096 bits"),
        ("{{ 2 ** 2222 * 2 ** 2222 }}", "an integer of more than 4096 bits"),
    ],
)
def test_a_bad_template_is_one_line(
    files: Path, template: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscatter._text.MAX_TEXT", 9999)
    (files / "chat_template.jinja").write_text(template)
    error = failure(lambda: TextFiles(files).chat_template()(CHAT))
    assert error.kind == "template" and message in str(error) and "chat_template.jinja" in str(error)


def test_the_time_of_a_template_is_limited(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscatter._text.MAX_SECONDS", 0.1)
    (files / "chat_template.jinja").write_text(ENDLESS)
    before = sys.gettrace()
    error = failure(lambda: TextFiles(files).chat_template()(CHAT))
    assert "takes more than 0.1 seconds" in str(error) and sys.gettrace() is before


def test_ctrl_c_ends_a_template(files: Path) -> None:
    (files / "chat_template.jinja").write_text(ENDLESS)
    template = TextFiles(files).chat_template()

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            template(CHAT)
    finally:
        signal.signal(signal.SIGALRM, before)


def failure(call: Callable[[], object]) -> errors.SessionError:
    with pytest.raises(errors.SessionError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


def written(name: str, content: str | bytes | None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            written("tokenizer.json", None),
            "no_tokenizer",
            "contains no tokenizer.json, which turns text into tokens",
        ),
        (written("tokenizer.json", "{}"), "tokenizer", "tokenizer.json: not a tokenizer: "),
        (written("tokenizer.json", b"\xff"), "file", "tokenizer.json: not UTF-8"),
        (written("tokenizer_config.json", "{"), "json", "tokenizer_config.json: not JSON: "),
        (written("tokenizer_config.json", "[" * 100_000), "json", "tokenizer_config.json: not JSON: "),
        *(
            (written(f"{name}_config.json", "[]"), "json", f"{name}_config.json: must be an object")
            for name in ("tokenizer", "generation")
        ),
        (written("tokenizer_config.json", " " * (1 << 24) + "{}"), "file", "has more than 16777216 bytes"),
        (
            written("tokenizer_config.json", '{"chat_template": 3}'),
            "no_template",
            "contains no chat template",
        ),
        (written("tokenizer_config.json", '{"chat_template": []}'), "no_template", 'no template "default"'),
        (
            written("generation_config.json", '{"eos_token_id": "x"}'),
            "end_token",
            "generation_config.json: eos_token_id must be a token id or a list of token ids",
        ),
        (
            written("generation_config.json", '{"eos_token_id": [7, 256]}'),
            "end_token",
            "generation_config.json: eos_token_id is 256, but the model has 256 tokens; eos= chooses other end tokens",
        ),
    ],
)
def test_a_wrong_file_is_named(files: Path, change: Callable[[Path], None], kind: str, message: str) -> None:
    change(files)
    error = failure(lambda: kvscatter.chat(files, CHAT))
    assert (error.kind, message in str(error)) == (kind, True), str(error)


def test_a_tokenizer_that_panics_is_named(files: Path) -> None:
    content = json.loads((files / "tokenizer.json").read_text())
    content["post_processor"]["special_tokens"] = {}
    (files / "tokenizer.json").write_text(json.dumps(content))
    error = failure(lambda: kvscatter.generate(files, "a"))
    assert error.kind == "encode" and "tokenizer.json: cannot encode this text: " in str(error)


def test_a_pipe_is_not_read(files: Path) -> None:
    import os

    (files / "tokenizer.json").unlink()
    os.mkfifo(files / "tokenizer.json")
    assert "not a regular file" in str(failure(lambda: kvscatter.generate(files, "a")))


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    content["model"]["vocab"]["more"] = 300
    (other / "tokenizer.json").write_text(json.dumps(content))
    error = failure(lambda: kvscatter.generate(other, "a", threads=1))
    assert error.kind == "other_vocabulary"
    assert "the token 'more' with id 300, but the model has 256 tokens" in str(error)


def test_the_end_tokens_are_those_of_the_first_file_that_has_some(files: Path) -> None:
    def tokens() -> list[int]:
        read = TextFiles(files)
        return read.end_tokens(read.tokenizer(), None)

    assert tokens() == [255, 193]
    written("generation_config.json", '{"eos_token_id": null}')(files)
    assert tokens() == [255]
    written("genai_config.json", '{"model": {"eos_token_id": 7}}')(files)
    assert tokens() == [7]
    written("genai_config.json", None)(files)
    written("tokenizer_config.json", '{"eos_token": {"content": "<s>"}}')(files)
    assert tokens() == [0]
    written("tokenizer_config.json", "{}")(files)
    assert tokens() == []
    written("tokenizer_config.json", '{"eos_token": "<none>"}')(files)
    assert "the end token '<none>' is not in the tokenizer" in str(failure(tokens))


def test_the_configuration_chooses_the_ends_of_a_text(files: Path) -> None:
    def tokens(config: str) -> list[int]:
        written("tokenizer_config.json", config)(files)
        return TextFiles(files).tokenizer().encode("O")

    ends = '"bos_token": "<s>", "eos_token": "</s>"'
    assert tokens(f"{{{ends}}}") == [0, 4]
    assert tokens(f'{{{ends}, "add_bos_token": false}}') == [4]
    assert tokens(f'{{{ends}, "add_bos_token": true, "add_eos_token": true}}') == [0, 4, 255]


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "END"},
        {"pad_token": {"content": "END", "special": False}},
        {"additional_special_tokens": ["END"]},
        {"extra_special_tokens": {"image_token": "END"}},
        {"added_tokens_decoder": {"40": {"content": "END", "special": True}}},
    ],
)
def test_the_configuration_makes_tokens_special(files: Path, config: dict[str, Any]) -> None:
    """As in transformers, but a token that the tokenizer does not have is not added."""

    def decoded(content: dict[str, Any]) -> tuple[str, list[int]]:
        written("tokenizer_config.json", json.dumps({**content, "cls_token": "<none>"}))(files)
        tokenizer = TextFiles(files).tokenizer()
        return tokenizer.decode([4, 40, 5]), tokenizer.encode("nEND")

    assert decoded({}) == ("OENDn", [0, 5, 43, 51, 42])
    assert decoded(config) == ("On", [0, 5, 40])


def test_end_tokens_that_are_not_special_have_a_text(generator: Generator) -> None:
    tokens = generator.generate("Once", 3, eos=()).samples[0]
    ended = generator.generate("Once", eos=tokens[2:])
    assert (ended.ends, ended.samples[0]) == (["eos"], tokens)
    assert ended.text == generator.tokenizer.decode(tokens) != generator.tokenizer.decode(tokens[:2])
    assert "".join(generator.generate("Once", eos=tokens[2:], stream=True)) == ended.text


WRONG: list[tuple[str, str | None, Callable[[Path], object]]] = [
    ("prompt_too_long", "prompts", lambda folder: kvscatter.generate(folder, "a" * 64)),
    ("prompt_too_long", "prompts", lambda folder: list(kvscatter.generate(folder, "a" * 64, stream=True))),
    ("keyword_type", "prompts", lambda folder: kvscatter.generate(folder, ["a", 3])),  # type: ignore[list-item]
    ("not_text", "stream", lambda folder: kvscatter.generate(folder, [[1]], stream=True)),  # type: ignore[call-overload]
    ("not_text", "stop", lambda folder: kvscatter.generate(folder, [[1]], stop="a")),
    ("stop", "stop", lambda folder: kvscatter.generate(folder, "a", stop=["a", ""])),
    ("keyword_type", "stop", lambda folder: kvscatter.generate(folder, "a", stop=3)),  # type: ignore[call-overload]
    ("no_prompts", "messages", lambda folder: kvscatter.chat(folder, [])),
    ("keyword_type", "messages", lambda folder: kvscatter.chat(folder, "Hi")),  # type: ignore[arg-type]
    ("keyword_type", "messages", lambda folder: kvscatter.chat(folder, ["Hi"])),  # type: ignore[list-item]
    ("message", "messages", lambda folder: kvscatter.chat(folder, [{"role": "user"}])),
    ("keyword_type", "messages", lambda folder: kvscatter.chat(folder, [{"role": "user", "content": 3}])),
    ("option_range", "temperature", lambda folder: kvscatter.generate(folder, "a", temperature=0.0)),
    ("eos_unknown", "eos", lambda folder: kvscatter.generate(folder, "a", eos=[256])),
]


@pytest.mark.parametrize(("kind", "argument", "call"), WRONG)
def test_a_wrong_call(folder: Path, kind: str, argument: str, call: Callable[[Path], object]) -> None:
    refused(kind, argument, call, folder)
    assert not threads()


EARLY: list[tuple[str, Callable[[Path], None] | None, Callable[[Path], object]]] = [
    ("no_tokenizer", written("tokenizer.json", None), lambda folder: kvscatter.generate(folder, "a")),
    ("no_template", written("tokenizer_config.json", "{}"), lambda folder: kvscatter.chat(folder, CHAT)),
    ("template", written("chat_template.jinja", "{{ 1 / 0 }}"), lambda folder: kvscatter.chat(folder, CHAT)),
    (
        "end_token",
        written("generation_config.json", '{"eos_token_id": 256}'),
        lambda folder: kvscatter.generate(folder, "a"),
    ),
    ("folder", written("config.json", "[]"), lambda folder: kvscatter.generate(folder, "a")),
    ("folder", written("genai_config.json", "[]"), lambda folder: kvscatter.generate(folder, "a")),
    ("eos_unknown", None, lambda folder: kvscatter.generate(folder, "a", eos=[256])),
    ("prompt_token_unknown", None, lambda folder: kvscatter.generate(folder, [[1, 256]])),
    ("prompt_empty", None, lambda folder: kvscatter.generate(folder, [[1], []])),
    ("not_integers", None, lambda folder: kvscatter.generate(folder, [["a"]])),  # type: ignore[list-item]
    ("no_prompts", None, lambda folder: kvscatter.generate(folder, [])),
    ("integer_range", None, lambda folder: kvscatter.generate(folder, "a", threads=0)),
    ("integer_range", None, lambda folder: Generator(folder, batch=0)),
    ("capacity_useless", None, lambda folder: Generator(folder, capacity=40)),
    ("option_range", None, lambda folder: kvscatter.generate(folder, "a", top_p=2.0)),
    ("save_prompts", None, lambda folder: kvscatter.generate(folder, ["a", "b"], save_prefix="x.kvs")),
    ("io", None, lambda folder: kvscatter.generate(folder, "a", prefix="missing.kvs")),
    ("runtime_unusable", None, lambda folder: kvscatter.generate(folder, "a", onnxruntime="missing")),
]


@pytest.mark.parametrize(("kind", "change", "call"), EARLY, ids=[kind for kind, *_ in EARLY])
def test_errors_come_before_a_conversion(
    tmp_path: Path,
    kind: str,
    change: Callable[[Path], None] | None,
    call: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVSCATTER_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(TEXT, shutil.copytree(GROWING.parent, tmp_path / "m"), dirs_exist_ok=True)
    if change is not None:
        change(folder)
    with pytest.raises(kvscatter.Error) as caught:
        call(folder)
    assert caught.value.kind == kind, caught.value
    assert not (tmp_path / "cache").exists()


def test_a_merged_decoder_is_checked_before_its_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCATTER_CACHE", str(tmp_path / "cache"))
    merged = TESTDATA / "decoders/optimum-1.18-gpt2-merged"
    refused("prompt_token_unknown", "prompts", kvscatter.generate, merged, [[64]])
    refused("capacity_useless", "capacity", Generator, merged, capacity=40)
    assert not (tmp_path / "cache").exists()


def test_errors_come_before_the_weights_are_read(files: Path) -> None:
    refused("prompt_too_long", "prompts", kvscatter.generate, files, "a" * 64)
    refused("eos_unknown", "eos", kvscatter.generate, files, "a", eos=[256])
    with pytest.raises(errors.SessionError, match="model.onnx.data"):
        kvscatter.generate(files, "a")
    # Loading a conversion begins with a check of its memory.
    small: dict[str, Any] = {"max_seq": 40, "memory": 1}
    refused("prompt_too_long", "prompts", kvscatter.generate, GROWING, [[1] * 41], **small)
    with pytest.raises(errors.OptionError, match="memory="):
        kvscatter.generate(GROWING, [[1]], **small)


def test_a_text_without_tokens_is_refused(folder: Path, files: Path) -> None:
    assert kvscatter.generate(folder, "", 3, threads=1).texts is not None
    written("tokenizer_config.json", '{"add_bos_token": false}')(files)
    for prompts in ("", ["a", ""]):
        error = refused("prompt_empty", "prompts", kvscatter.generate, files, prompts)
        assert str(error) == f"prompt {len(prompts) // 2} is empty: at least one token is needed"


def test_an_argument_that_does_not_exist_is_refused(folder: Path, generator: Generator) -> None:
    calls: list[Callable[[], object]] = [
        lambda: kvscatter.generate(folder, "a", temprature=1.0),  # type: ignore[call-overload]
        lambda: kvscatter.chat(folder, CHAT, tokens=1),  # type: ignore[call-overload]
        lambda: Generator(folder, top_k=1),  # type: ignore[call-arg]
        lambda: generator.generate("a", capacity=3),  # type: ignore[call-overload]
        lambda: generator.chat(CHAT, capacity=3),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            call()


def test_a_closed_generator_ends_its_stream_and_is_refused(folder: Path) -> None:
    with Generator(folder, threads=1) as generator:
        assert isinstance(generator.generate("a", 1), Generated)
        stream = generator.generate("Once", eos=(), stream=True)
        next(stream)
    assert (list(stream), threads()) == ([], [])
    refused("closed", None, generator.generate, "a", 1)
    generator.close()


def test_a_model_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.SessionError, match="contains no .onnx file"):
        kvscatter.generate(tmp_path, "a")
    with pytest.raises(errors.SessionError, match=r"cannot be made static: .* \(convert=\)$"):
        kvscatter.generate(GROWING, [[1]], max_seq=1 << 40)
