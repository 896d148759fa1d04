"""The plugin that is part of the package, in an installed ONNX Runtime GenAI.

The tests run in new processes, because a process keeps what it has registered.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import models
import onnxruntime
import pytest

PROVIDER = "KvscatterExecutionProvider"

PROGRAM = """
import json, os, shutil, sys
from concurrent.futures import ThreadPoolExecutor

import onnxruntime_genai as og, kvscatter.onnxruntime_genai
from kvscatter.onnxruntime import library
from kvscatter.onnxruntime_genai import register, use

def used(folder):
    config = og.Config(folder)
    use(config)
    return config

def tokens(config):
    # Writes the providers of the attention nodes too, which are in the profile of a session.
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"enable_profiling": "profile"}}}}))
    model = og.Model(config)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=8, min_length=8, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens([5, 6, 7])
    while not generator.is_done():
        generator.generate_next_token()
    return generator.get_sequence(0)[3:].tolist()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a model."""
    return models.write("llama", tmp_path_factory.mktemp("genai") / "llama")


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns what the model generates without the plugin."""
    [printed] = run("print(tokens(og.Config(FOLDER)))", folder, tmp_path_factory.mktemp("plain"))
    return printed


def run(program: str, folder: Path, at: Path) -> list[str]:
    """Runs a program after the lines above. It must print nothing to standard error, also when it ends."""
    text = PROGRAM + f"FOLDER = {str(folder)!r}\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=at)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_two_lines_are_enough(folder: Path, expected: str, tmp_path: Path) -> None:
    program = """
        config = og.Config(FOLDER)
        kvscatter.onnxruntime_genai.use(config)
        print(tokens(config))
    """
    assert run(program, folder, tmp_path) == [expected]
    assert models.providers(tmp_path) == {PROVIDER}


def test_other_models_do_not_use_it(folder: Path, expected: str, tmp_path: Path) -> None:
    assert run("register(); print(tokens(og.Config(FOLDER)))", folder, tmp_path) == [expected]
    assert models.providers(tmp_path) == {"CPUExecutionProvider"}


def test_attention_can_be_left_to_onnx_runtime(folder: Path, expected: str, tmp_path: Path) -> None:
    program = f"""
        config = used(FOLDER)
        config.set_provider_option("{PROVIDER}", "attention", "off")
        print(tokens(config))
    """
    assert run(program, folder, tmp_path) == [expected]
    assert models.providers(tmp_path) == {"CPUExecutionProvider"}


def test_it_may_be_called_often(folder: Path, expected: str, tmp_path: Path) -> None:
    printed = run(
        """
        config = used(FOLDER)
        use(config)
        print(tokens(config))
        use(config)
        print(tokens(config))
        print(tokens(used(FOLDER)), register())
        """,
        folder,
        tmp_path,
    )
    assert printed == [expected, expected, f"{expected} {PROVIDER}"]


def test_many_threads_may_use_it(folder: Path, expected: str, tmp_path: Path) -> None:
    printed = run(
        """
        with ThreadPoolExecutor(16) as threads:
            configs = list(threads.map(lambda _: used(FOLDER), range(64)))
        print(tokens(configs[0]), tokens(configs[-1]))
        """,
        folder,
        tmp_path,
    )
    assert printed == [f"{expected} {expected}"]


def test_it_can_be_unregistered_and_used_again(folder: Path, expected: str, tmp_path: Path) -> None:
    printed = run(
        """
        config = used(FOLDER)
        og.unregister_execution_provider_library(register())
        try:
            tokens(config)
        except Exception as error:
            print(str(error).partition(".")[0])
        use(config)
        print(tokens(config))
        """,
        folder,
        tmp_path,
    )
    assert printed == [f"Unknown provider name '{PROVIDER}'", expected]


@pytest.mark.parametrize("build", ["library()", "shutil.copy(library(), 'another.so')"])
def test_a_plugin_that_another_program_registered_is_kept(
    build: str, folder: Path, expected: str, tmp_path: Path
) -> None:
    program = f"og.register_execution_provider_library('another name', os.path.abspath({build}))\n"
    program += "print(tokens(used(FOLDER)), 'another.so' in open('/proc/self/maps').read())"
    assert run(program, folder, tmp_path) == [f"{expected} {'copy' in build}"]


@pytest.mark.parametrize("first", ["genai", "onnxruntime"])
def test_both_runtimes_use_it_in_one_process(first: str, folder: Path, expected: str, tmp_path: Path) -> None:
    printed = run(
        f"""
        import onnxruntime

        def genai():
            print(tokens(used(FOLDER)))

        def session():
            options = onnxruntime.SessionOptions()
            # It warns that some nodes are not taken.
            options.log_severity_level = 3
            options.add_provider_for_devices(kvscatter.onnxruntime.devices(), {{}})
            print(onnxruntime.InferenceSession(FOLDER + "/model.onnx", options).get_providers()[0])

        for step in (genai, session) if {first == "genai"} else (session, genai):
            step()
        """,
        folder,
        tmp_path,
    )
    assert sorted(printed) == [PROVIDER, expected]


@pytest.mark.skipif(onnxruntime.__version__ < "1.25", reason="KvSession needs onnxruntime 1.25")
@pytest.mark.parametrize("first", ["genai", "KvSession"])
def test_a_kv_session_has_the_same_runtime(first: str, folder: Path, expected: str, tmp_path: Path) -> None:
    static = models.SOURCE.with_name("mobius-llama-static") / "model.onnx"
    printed = run(
        f"""
        def genai():
            print(tokens(used(FOLDER)))

        def session():
            with kvscatter.KvSession({str(static)!r}) as session:
                print("plugin" in session.engine)

        for step in (genai, session) if {first == "genai"} else (session, genai):
            step()
        """,
        folder,
        tmp_path,
    )
    assert sorted(printed) == sorted(["True", expected])


@pytest.mark.parametrize("interface", ["Python", "C"])
def test_the_line_in_the_configuration(interface: str, folder: Path, expected: str, tmp_path: Path) -> None:
    """The page for C++ programs names this call and this line."""
    asking = models.write("llama", tmp_path / "asking")
    file = asking / "genai_config.json"
    line = f'"provider_options": [{{"{PROVIDER}": {{}}}}]'
    file.write_text(file.read_text().replace('"provider_options": []', line))
    printed = run(
        f"""
        import ctypes
        if {interface == "Python"}:
            register()
        else:
            genai = ctypes.CDLL(os.path.join(os.path.dirname(og.__file__), "libonnxruntime-genai.so"))
            genai.OgaRegisterExecutionProviderLibrary(b"kvscatter", library().encode())
        print(tokens(og.Config(FOLDER)))
        """,
        asking,
        tmp_path,
    )
    assert printed == [expected]
    assert models.providers(tmp_path) == {PROVIDER}


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.12.2", "kvscatter.onnxruntime_genai needs onnxruntime-genai 0.13 or newer, this is 0.12.2"),
        ("0.12rc1", "kvscatter.onnxruntime_genai needs onnxruntime-genai 0.13 or newer, this is 0.12rc1"),
        ("main", "kvscatter.onnxruntime_genai needs onnxruntime-genai 0.13 or newer, this is main"),
        (
            None,
            "kvscatter.onnxruntime_genai needs onnxruntime-genai 0.13 or newer: pip install onnxruntime-genai",
        ),
    ],
)
def test_a_runtime_that_is_too_old_or_missing(
    version: str | None, message: str, folder: Path, tmp_path: Path
) -> None:
    printed = run(
        f"""
        config, version = og.Config(FOLDER), {version!r}
        if version is None:
            sys.modules["onnxruntime_genai"] = None
        else:
            og.__version__ = version
        for call in (register, lambda: use(config)):
            try:
                call()
            except ImportError as error:
                print(error)
        """,
        folder,
        tmp_path,
    )
    assert printed == [message] * 2


def test_a_runtime_whose_variable_is_removed(folder: Path, tmp_path: Path) -> None:
    printed = run(
        """
        del os.environ["ORT_LIB_PATH"]
        try:
            use(og.Config(FOLDER))
        except ImportError as error:
            print(error)
        """,
        folder,
        tmp_path,
    )
    assert printed == ["onnxruntime_genai sets ORT_LIB_PATH when it is imported, and it is not set"]


def test_a_runtime_without_plugins(folder: Path, tmp_path: Path) -> None:
    """The variable has the library that the package itself has loaded."""
    printed = run(
        """
        os.environ["ORT_LIB_PATH"] = library()
        try:
            use(og.Config(FOLDER))
        except kvscatter.SessionError as error:
            print(str(error).removeprefix(library()))
        """,
        folder,
        tmp_path,
    )
    assert printed == [": is a library, but not ONNX Runtime's: it exports no OrtGetApiBase"]


def test_only_a_configuration_is_taken(folder: Path, tmp_path: Path) -> None:
    printed = run(
        """
        for wrong in (FOLDER, None, og.Config):
            try:
                use(wrong)
            except TypeError as error:
                print(error)
        """,
        folder,
        tmp_path,
    )
    wanted = "config must be an onnxruntime_genai.Config, not"
    assert printed == [f"{wanted} str", f"{wanted} NoneType", f"{wanted} pybind11_type"]


def test_the_package_does_not_import_it() -> None:
    program = (
        "import sys, kvscatter; print('onnxruntime_genai' in sys.modules, dir(kvscatter.onnxruntime_genai))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False ['register', 'use']\n"
