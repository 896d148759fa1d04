"""The plugin that is part of the package, in an installed ONNX Runtime of any version.

The tests run in new processes, because a process keeps what it has registered.
"""

import subprocess
import sys
import textwrap

import onnxruntime
import pytest

VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])

# A model with one TensorScatter in a ring, for an element type that ONNX Runtime's own kernel does not take.
MODEL = """
import ctypes

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
import kvscatter
from kvscatter.onnxruntime import devices, library, register

def model(domain="", **attributes):
    i64, f8 = TensorProto.INT64, TensorProto.FLOAT8E4M3FN
    inputs, outputs = [("past", f8, [1, 4, 1]), ("new", f8, [1, 2, 1]), ("at", i64, [1])], ["present"]
    node = helper.make_node("TensorScatter", ["past", "new", "at"], outputs, domain=domain, mode="circular")
    present = helper.make_tensor_value_info("present", f8, [1, 4, 1])
    inputs = [helper.make_tensor_value_info(*each) for each in inputs]
    graph = helper.make_graph([node], "write", inputs, [present])
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("com.kvscatter", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11).SerializeToString()

def bytes_written(session):
    def value(data, *shape):
        data = np.array(data, np.uint8).reshape(shape)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(data, TensorProto.FLOAT8E4M3FN)

    binding = session.io_binding()
    present = value([9, 9, 9, 9], 1, 4, 1)
    binding.bind_ortvalue_input("past", value([1, 2, 3, 4], 1, 4, 1))
    binding.bind_ortvalue_input("new", value([5, 6], 1, 2, 1))
    binding.bind_cpu_input("at", np.array([3]))
    binding.bind_ortvalue_output("present", present)
    session.run_with_iobinding(binding)
    return list(ctypes.string_at(present.data_ptr(), 4))
"""


def run(program: str) -> list[str]:
    """Runs a program after the lines above. It must print nothing to standard error, also when it ends."""
    text = MODEL + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_a_session_names_the_devices() -> None:
    printed = run("""
        options = ort.SessionOptions()
        options.add_provider_for_devices(devices(), {})
        print(bytes_written(ort.InferenceSession(model(), options)))
    """)
    assert printed == ["[6, 2, 3, 5]"]


@pytest.mark.skipif(VERSION < (1, 25), reason="onnxruntime 1.24 knows no plugin by its name")
def test_a_session_names_the_provider() -> None:
    printed = run("""
        providers = [kvscatter.onnxruntime.register(), "CPUExecutionProvider"]
        session = ort.InferenceSession(model(), providers=providers)
        print(session.get_providers(), bytes_written(session))
    """)
    assert printed == ["['KvscatterExecutionProvider', 'CPUExecutionProvider'] [6, 2, 3, 5]"]


def test_other_sessions_do_not_use_it() -> None:
    printed = run("""
        register()
        ort.set_default_logger_severity(4)
        try:
            ort.InferenceSession(model(), providers=["CPUExecutionProvider"])
        except Exception as error:
            print("TensorScatter" in str(error))
    """)
    assert printed == ["True"]


def test_the_custom_operators_are_in_the_same_library() -> None:
    printed = run("""
        options = ort.SessionOptions()
        options.register_custom_ops_library(library())
        session = ort.InferenceSession(model("com.kvscatter"), options)
        print(bytes_written(session))
    """)
    assert printed == ["[6, 2, 3, 5]"]


def test_many_threads_may_register_it() -> None:
    printed = run("""
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(16) as threads:
            print(set(threads.map(lambda _: register(), range(64))))
        print({device.ep_name for device in devices()}, register())
        ort.unregister_execution_provider_library(register())
        print([device.ep_name for device in ort.get_ep_devices() if "Kv" in device.ep_name], register())
        print(len(devices()) > 0)
    """)
    name = "KvscatterExecutionProvider"
    assert printed == [f"{{'{name}'}}", f"{{'{name}'}} {name}", f"[] {name}", "True"]


def test_a_plugin_that_another_program_registered_is_kept() -> None:
    printed = run("""
        ort.register_execution_provider_library("another name", library())
        print(register(), len({device.ep_name for device in devices()}))
        ort.unregister_execution_provider_library("another name")
    """)
    assert printed == ["KvscatterExecutionProvider 1"]


@pytest.mark.skipif(VERSION < (1, 25), reason="KvSession needs onnxruntime 1.25")
def test_both_copies_of_onnxruntime_use_it() -> None:
    """KvSession runs in the library of the package, and InferenceSession in the package's module."""
    printed = run("""
        static = "testdata/mobius-llama-static/model.onnx"
        for order in range(2):
            with kvscatter.KvSession(static) as session:
                print(session.engine == f"ONNX Runtime {ort.__version__} with plugin kvscatter {kvscatter.__version__}")
            options = ort.SessionOptions()
            options.add_provider_for_devices(devices(), {})
            print(bytes_written(ort.InferenceSession(model(), options)))
    """)
    assert printed == ["True", "[6, 2, 3, 5]"] * 2


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("1.23.2", "kvscatter.onnxruntime needs onnxruntime 1.24 or newer, this is 1.23.2"),
        (None, "kvscatter.onnxruntime needs onnxruntime 1.24 or newer: pip install onnxruntime"),
    ],
)
def test_a_runtime_that_is_too_old_or_missing(version: str | None, message: str) -> None:
    printed = run(f"""
        import sys
        version = {version!r}
        if version is None:
            sys.modules["onnxruntime"] = None
        else:
            ort.__version__ = version
        for call in (register, devices):
            try:
                call()
            except ImportError as error:
                print(error)
    """)
    assert printed == [message] * 2


def test_the_package_does_not_import_it() -> None:
    program = "import sys, kvscatter; print('onnxruntime' in sys.modules, kvscatter.onnxruntime.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False kvscatter.onnxruntime\n"
