"""Makes one call and writes its outputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from harness.case import Case, NotPossible, is_guarded, read_case


def make_call(run: Callable[[Case, str], Any], job: dict[str, Any]) -> dict[str, Any]:
    """Makes one call of a case, writes its outputs, and returns what happened.

    The kind of the call is plain, in_place, or kept. A kept call is a plain call of a model that uses the old cache
    again. So the cache must not change.
    """
    case, memory = read_case(job)
    before = {name: array.copy() for name, array in case.inputs.items()}
    kind, outputs = job["kind"], []
    call: dict[str, Any] = {"status": "returned"}
    try:
        outputs, same_memory = outputs_of(run(case, kind), case)
        if kind != "plain":
            call["same_memory"] = same_memory
    except NotPossible as error:
        call = {"status": "not-possible", "message": str(error)}
    except Exception as error:
        call = {"status": "refused", "message": one_line(error)}
    # A function may write into the cache that it gets. The verdict on the cache comes from its bytes.
    changed = [n for n, a in case.inputs.items() if n != case.cache_name and not is_same(a, before[n])]
    changed += [f"bytes beside {name}" for name, whole in memory.items() if not is_guarded(whole)]
    if changed:
        call["changed"] = changed
    try:
        write_outputs(Path(job["output"]), call, case, outputs, kind)
    except (TypeError, ValueError, NotImplementedError) as error:
        call["message"] = f"what the call returned is no tensor: {one_line(error)}"
    return call


def outputs_of(made: Any, case: Case) -> tuple[list[np.ndarray], bool]:
    """Returns the outputs as arrays, and whether the first is in the memory of the cache."""
    given = made if isinstance(made, dict) else {"outputs": made}
    outputs = [np.asarray(output) for output in given["outputs"]]
    if len(outputs) != len(case.outputs):
        raise ValueError(f"the call returned {len(outputs)} outputs, and the model has {len(case.outputs)}")
    if case.cache_name is None:
        return outputs, False
    # An empty cache has no memory that a copy could have.
    shared = case.cache.size == 0 or np.shares_memory(outputs[0], case.cache)
    return outputs, bool(shared or given.get("same_memory"))


def write_outputs(
    folder: Path, call: dict[str, Any], case: Case, outputs: list[np.ndarray], kind: str
) -> None:
    """Writes the outputs of a plain call, and the buffers after another call."""
    returned = call["status"] == "returned"
    if kind == "plain":
        for number, (output, name) in enumerate(zip(outputs, case.outputs, strict=False)):
            write(folder / f"output_{number}.pb", output, name)
    elif returned and not call["same_memory"]:
        write(folder / "in_place_0.pb", outputs[0], case.outputs[0])
        write(folder / "past_0.pb", case.cache, case.cache_name)
    elif call["status"] != "not-possible":
        write(folder / "in_place_0.pb", case.cache, case.cache_name)


def write(path: Path, array: np.ndarray, name: str) -> None:
    """Writes an array as a TensorProto."""
    dense = np.ascontiguousarray(array).reshape(array.shape)
    if dense.dtype.kind == "U":
        dense = dense.astype(object)
    path.write_bytes(numpy_helper.from_array(dense, name).SerializeToString())


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns True if all bytes agree, also in NaNs."""
    if one.dtype == object:
        return bool((one == other).all())
    return one.tobytes() == other.tobytes()


def one_line(error: BaseException) -> str:
    """Returns the type and the message of an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:1000]
