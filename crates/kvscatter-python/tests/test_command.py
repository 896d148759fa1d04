"""Tests the command that the wheel installs. The tests of the crate `kvscatter-cli` test what it does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import kvscatter
from support import TESTDATA

COMMAND = str(Path(sysconfig.get_path("scripts")) / "kvscatter")
STATIC = TESTDATA / "mobius-llama-static"
GROWING = TESTDATA / "optimum-llama/model.onnx"


def run(
    *arguments: str | Path, command: tuple[str, ...] = (COMMAND,), **settings: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command with more environment variables. The variables that name an ONNX Runtime are not set."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVSCATTER_ORT", "ORT_"))
    }
    environment = {**kept, "COLUMNS": "100", **settings}
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        input="",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a model with a tokenizer and a chat template."""
    made = shutil.copytree(STATIC, tmp_path_factory.mktemp("model") / "m")
    return shutil.copytree(TESTDATA / "text", made, dirs_exist_ok=True)


@pytest.mark.parametrize(
    "command", [(COMMAND,), (sys.executable, "-m", "kvscatter")], ids=["script", "module"]
)
def test_it_is_installed(command: tuple[str, ...]) -> None:
    version = run("--version", command=command)
    assert (version.returncode, version.stdout) == (0, f"kvscatter {kvscatter.__version__}\n")
    shown = run("help", "convert", command=command)
    assert shown.returncode == 0
    assert "\nUsage: kvscatter convert [OPTIONS]" in shown.stdout
    completions = run("completions", "bash", command=command)
    assert completions.stdout.startswith("_kvscatter()")
    assert completions.returncode == 0


def test_exit_codes_and_errors() -> None:
    model = STATIC / "model.onnx"
    assert run("inspect", model).returncode == 0
    refused = run("inspect", model, "--target", "tensorrt", "--json")
    assert (refused.returncode, refused.stderr) == (1, "")
    assert json.loads(refused.stdout)["tensorrt"]
    for arguments in (("inspect", "missing.onnx"), ("nonsense",), ("convert", model)):
        failed = run(*arguments)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.startswith("error: ")
        assert failed.stderr.count("\n") == 1
    failed = run("inspect", "missing.onnx", "--json")
    assert json.loads(failed.stderr)["error"]["kind"] == "file"
    nothing = run()
    assert nothing.returncode == 2
    assert "Usage: kvscatter" in nothing.stderr
    assert run("generate", model, "--prompt-ids", "1", "--engine", "tract").returncode == 2


def test_it_writes_to_the_streams_of_the_process() -> None:
    """Python buffers its own standard output, and the command does not use it."""
    program = "import sys; from kvscatter._command import main; print('first'); sys.stdout.flush(); sys.exit(main())"
    done = run("--version", command=(sys.executable, "-c", program))
    assert done.stdout == f"first\nkvscatter {kvscatter.__version__}\n"


def test_models_run_in_the_onnxruntime_of_this_python(tmp_path: Path) -> None:
    model, static = STATIC / "model.onnx", tmp_path / "static.onnx"
    assert run("convert", GROWING, "-o", static, "--max-seq", "32").returncode == 0
    # The interpreter of another environment is not searched.
    empty = {"PATH": str(tmp_path), "VIRTUAL_ENV": str(tmp_path)}
    certified = run("certify", static, "--original", GROWING, "--no-timing", "--json", **empty)
    certificate = json.loads(certified.stdout)
    assert (certified.returncode, certificate["verdict"]) == (0, "passed")
    assert certificate["runtime"]["plugin"] == f"kvscatter {kvscatter.__version__}"
    assert certificate["command"].startswith("kvscatter certify ")
    generated = run("generate", model, "--prompt-ids", "1,2,3", "--max-new-tokens", "9", "--json", **empty)
    expected = kvscatter.generate(STATIC, [[1, 2, 3]], 9, eos=())
    assert [sample["tokens"] for sample in json.loads(generated.stdout)["samples"]] == expected.samples
    plain = run("generate", model, "--prompt-ids", "1", "--ort-plugin", "none", "--json")
    assert json.loads(plain.stdout)["engine"]["plugin"] is None
    ran = run("run", model, "--dim", "batch=1", "--dim", "sequence_len=1", "--json", **empty)
    assert json.loads(ran.stdout)[0]["engine"]["name"] == "ONNX Runtime", ran


def test_options_and_the_environment_choose_another_onnxruntime() -> None:
    model = STATIC / "model.onnx"
    for name in ("KVSCATTER_ORT_LIB", "ORT_DYLIB_PATH"):
        failed = run("generate", model, "--prompt-ids", "1", **{name: "/missing"})
        assert failed.returncode == 2
        assert failed.stderr.startswith("error: /missing: ")
    failed = run("generate", model, "--prompt-ids", "1", "--ort-lib", "/absent", KVSCATTER_ORT_LIB="/missing")
    assert failed.stderr.startswith("error: /absent: ")
    failed = run("generate", model, "--prompt-ids", "1", KVSCATTER_ORT_PLUGIN="/missing.so")
    assert "/missing.so" in failed.stderr
    plain = run("generate", model, "--prompt-ids", "1", "--json", KVSCATTER_ORT_PLUGIN="none")
    assert json.loads(plain.stdout)["engine"]["plugin"] is None


def test_texts_and_chats(folder: Path, tmp_path: Path) -> None:
    text = run("generate", folder, "--prompt", "Once", "--max-new-tokens", "12", "--json")
    (sample,) = json.loads(text.stdout)["samples"]
    assert sample["text"] == kvscatter.generate(folder, "Once", 12).text
    chat = run("generate", folder, "--chat", "--prompt", "Hi", "--max-new-tokens", "12", "--json")
    (sample,) = json.loads(chat.stdout)["samples"]
    assert sample["text"] == kvscatter.chat(folder, [{"role": "user", "content": "Hi"}], 12)
    endless = shutil.copytree(folder, tmp_path / "m")
    for template, why in [
        ("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3, "too long"),
        ("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "template"),
        ("{{ 'x' | indent(4000000000) }}", "memory"),
    ]:
        (endless / "chat_template.jinja").write_text(template)
        refused = run("generate", endless, "--chat", "--prompt", "Hi")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert why in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_ctrl_c_ends_it_as_a_signal(folder: Path) -> None:
    # A shell that runs the tests in the background may ignore the signal, and programs that it starts inherit that.
    def restore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    words = [COMMAND, "generate", str(folder), "--chat", "--max-new-tokens", "3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=restore) as chat:
        assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
        chat.stdin.write(b"Hi\n")
        chat.stdin.flush()
        assert chat.stdout.read(1)
        # The first signal ends the answer if that is not complete.
        while chat.poll() is None:
            chat.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert chat.returncode == -signal.SIGINT
        assert b"Traceback" not in chat.stderr.read()


def test_ctrl_c_is_ignored_where_it_was_ignored() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    program = "import os, signal, sys; from kvscatter._command import main; code = main(); "
    program += "os.kill(os.getpid(), signal.SIGINT); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", program, "inspect", STATIC], preexec_fn=ignore, check=False)
    assert done.returncode == 0
