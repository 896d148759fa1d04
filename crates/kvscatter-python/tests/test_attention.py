"""Compares ``kvscatter.attention`` with the oracle, on random calls with painted memory, and tests its errors."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvscatter
from attention_calls import random_call, swapped
from kvscatter import errors
from support import Array, bits, refused

CALLS = int(os.environ.get("KVSCATTER_ATTENTION_CALLS", "600"))
"""The number of random calls. ``cargo xtask nightly`` makes 20,000."""


# ── random calls ────────────────────────────────────────────────────────────────────────────────────────────────


def placed(array: Array, rng: random.Random, *, like: str) -> tuple[Array, Array]:
    """Returns the same values in a view with gaps, whose first three dimensions are in any order in memory, and the
    array around the view."""
    last = array.ndim - 1
    order = (
        [*rng.sample(range(last), last), last]
        if like == "rows"
        else rng.sample(range(array.ndim), array.ndim)
    )
    steps = [rng.choice((1, 1, 2)) for _ in order]
    if like == "rows":
        steps[-1] = 1
    margin = rng.randrange(1, 3)
    canvas = np.empty(
        [array.shape[d] * step + 2 * margin for d, step in zip(order, steps, strict=True)], array.dtype
    )
    canvas.reshape(-1).view(np.uint8)[:] = 1 if array.dtype == np.bool_ else 0xA5
    cut = [slice(margin, margin + array.shape[d] * step, step) for d, step in zip(order, steps, strict=True)]
    view = canvas[tuple(cut)].transpose(np.argsort(order))
    assert view.shape == array.shape
    view[...] = array
    return view, canvas


@pytest.mark.parametrize("part", range(8))
def test_random_calls(part: int) -> None:
    for seed in range(part, CALLS, 8):
        check_call(seed)


def check_call(seed: int) -> None:
    call, rng = random_call(seed), random.Random(-seed)
    layout = rng.choice(["bhsd", "bshd"])
    arrays, canvases = {}, []
    for name, array in call.arrays.items():
        given = swapped(array) if name in ("q", "k", "v") and layout == "bshd" else array
        if rng.random() < 0.5:
            given, canvas = placed(given, rng, like="rows" if name in ("q", "k", "v") else "any")
            canvases.append(canvas)
        else:
            given = np.ascontiguousarray(given)
            canvases.append(given)
        if rng.random() < 0.5:
            given.setflags(write=False)
        arrays[name] = given
    before = [bits(canvas) for canvas in canvases]
    shape = swapped(call.expected).shape if layout == "bshd" else call.expected.shape
    out, out_canvas = placed(np.full(shape, 3, call.arrays["q"].dtype), rng, like="rows")
    painted = out_canvas.copy()
    options = {**call.options, "layout": layout, "threads": rng.choice([None, 1, 2, 3])}
    message = f"seed {seed}: {options} { {name: (it.dtype, it.shape) for name, it in arrays.items()} }"

    attend = kvscatter.prepare_attention(**arrays, **options)
    new = kvscatter.attention(**arrays, **call.numbers, **options)
    assert kvscatter.attention(**arrays, **call.numbers, **options, out=out) is out, message
    again = attend(**arrays, **call.numbers)
    assert (new.dtype, new.shape, new.flags.c_contiguous) == (out.dtype, shape, True), message
    assert bits(new) == bits(np.ascontiguousarray(out)) == bits(again), message
    found = (swapped(new) if layout == "bshd" else new).astype(np.float64)
    assert (np.abs(found - call.expected) <= call.tolerance).all(), (
        message,
        np.nanmax(np.abs(found - call.expected) - call.tolerance, initial=0),
    )
    out[...] = 3
    assert bits(out_canvas) == bits(painted), message
    assert [bits(canvas) for canvas in canvases] == before, message


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


def misaligned(*shape: int) -> Array:
    memory = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)
    return memory[1:].view(np.float32).reshape(shape)


Q, K, CODES = ones(2, 4, 3, 8), ones(2, 2, 5, 8), ones(2, 2, 5, 8, dtype=np.int8)
BLOCKS, TABLES = ones(4, 2, 5, 8), np.array([[0, 1], [2, 3]])
ROW_SCALES = {"k_scale": ones(2, 2, 5), "v_scale": ones(2, 2, 5)}
VALID: dict[str, Any] = {"q": Q, "k": K, "v": K, "lengths": [5, 4]}

REFUSED: list[tuple[str, str | None, dict[str, Any]]] = [
    # types
    ("element_type", None, {name: ones(2, 4, 3, 8, dtype=np.float64) for name in ("q", "out")}),
    ("element_type", None, {name: ones(2, 4, 3, 8, dtype=np.int32) for name in ("q", "out")}),
    ("element_type_mismatch", "out", {"out": ones(2, 4, 3, 8, dtype=np.float16)}),
    ("element_type_mismatch", "v", {"v": ones(2, 2, 5, 8, dtype=np.float16)}),
    (
        "element_type",
        None,
        {"k": ones(2, 2, 5, 8, dtype=np.float64), "v": ones(2, 2, 5, 8, dtype=np.float64)},
    ),
    ("element_type", None, {"k": ones(2, 2, 5, 8, dtype=np.uint8), "v": ones(2, 2, 5, 8, dtype=np.uint8)}),
    ("element_type_mismatch", "sink", {"sink": ones(4, dtype=np.float16)}),
    ("element_type_mismatch", "mask", {"mask": ones(3, 5, dtype=np.float64)}),
    ("element_type_mismatch", "mask", {"mask": ones(3, 5, dtype=np.int8)}),
    (
        "element_type_mismatch",
        "k_scale",
        {"k": CODES, "v": CODES, **ROW_SCALES, "k_scale": ones(2, 2, 5, dtype=np.float16)},
    ),
    ("not_integers", "lengths", {"lengths": [5.0, 4.0]}),
    ("not_integers", "lengths", {"lengths": np.array([5.0, 4.0])}),
    ("not_integers", "starts", {"starts": [True, False]}),
    ("not_integers", "block_tables", {"k": BLOCKS, "v": BLOCKS, "block_tables": ones(2, 2)}),
    # shapes
    ("rank", "q", {"q": Q[0]}),
    ("rank", "k", {"k": K[0]}),
    ("rank", "lengths", {"lengths": np.array([[5, 4]])}),
    ("rank", "block_tables", {"k": BLOCKS, "v": BLOCKS, "block_tables": np.array([0, 1])}),
    ("heads", None, {"q": ones(2, 3, 3, 8), "out": ones(2, 3, 3, 8)}),
    ("dimension_mismatch", None, {"k": ones(2, 2, 5, 7)}),
    ("dimension_mismatch", None, {"k": ones(2, 2, 6, 8)}),
    ("dimension_mismatch", None, {"k": ones(1, 2, 5, 8), "v": ones(1, 2, 5, 8)}),
    ("dimension_mismatch", None, {"mask": ones(4, 5)}),
    ("dimension_mismatch", None, {"mask": ones(3, 6)}),
    ("list_length", None, {"lengths": [5]}),
    ("list_length", None, {"starts": [0, 0, 0]}),
    ("list_length", None, {"sink": ones(5)}),
    ("dimension_mismatch", "v_scale", {"k": CODES, "v": CODES, **ROW_SCALES, "v_scale": ones(2, 2, 4)}),
    ("dimension_mismatch", "k_scale", {"k": CODES, "v": CODES, **ROW_SCALES, "k_scale": ones(5, 2, 2)}),
    ("dimension_mismatch", "k_scale", {"k": CODES, "v": CODES, **ROW_SCALES, "k_scale": ones(20)}),
    ("dimension_mismatch", "v_scale", {"k": CODES, "v": CODES, **ROW_SCALES, "v_scale": ones(2, 8)}),
    ("dimension_mismatch", "k_scale", {"k": CODES, "v": CODES, "k_scale": ones(8, 2), "v_scale": ones(2, 8)}),
    ("list_length", None, {"k": BLOCKS, "v": BLOCKS, "block_tables": TABLES[:1]}),
    ("out_shape", "out", {"out": ones(2, 4, 3, 7)}),
    ("out_shape", "out", {"out": ones(2, 3, 4, 8)}),
    # options
    ("number_range", None, {"scale": -1.0}),
    ("number_range", None, {"scale": float("nan")}),
    ("number_range", None, {"softcap": float("inf")}),
    ("keyword_type", "scale", {"scale": "a"}),
    ("choice", "layout", {"layout": "bsd"}),
    ("choice", "mode", {"mode": "ring"}),
    ("scale_missing", "v_scale", {"k": CODES, "v": CODES, "k_scale": ones(2, 2, 5)}),
    ("combination", None, {"k": CODES, "v": CODES}),
    ("combination", None, {**ROW_SCALES}),
    ("combination", None, {"k": BLOCKS, "v": BLOCKS, "block_tables": TABLES, "mode": "circular"}),
    # positions
    ("length_out_of_range", None, {"lengths": [5, 6]}),
    ("length_out_of_range", None, {"lengths": [-1, 5]}),
    ("length_out_of_range", None, {"lengths": [-1, 5], "mode": "circular"}),
    ("negative_start", None, {"starts": [0, -1]}),
    ("integer_range", "lengths", {"lengths": [5, 2**63]}),
    ("block_out_of_range", None, {"k": BLOCKS, "v": BLOCKS, "block_tables": TABLES + 1, "lengths": [5, 10]}),
    ("block_out_of_range", None, {"k": BLOCKS, "v": BLOCKS, "block_tables": TABLES - 2**40}),
    # memory
    ("tensor", "q", {"q": misaligned(2, 4, 3, 8)}),
    ("tensor", "k", {"k": misaligned(2, 2, 5, 8)}),
    ("tensor", "out", {"out": misaligned(2, 4, 3, 8)}),
    ("tensor", "k", {"k": K[:, :, ::-1]}),
    ("tensor", "q", {"q": Q[..., ::-1]}),
    ("tensor", "v", {"v": ones(2, 2, 5, 16)[..., ::2]}),
    ("tensor", "out", {"out": ones(2, 4, 3, 16)[..., ::2]}),
    ("tensor", "v", {"v": np.ma.ones((2, 2, 5, 8), np.float32)}),
]


@pytest.mark.parametrize(("kind", "argument", "changed"), REFUSED)
def test_an_error_leaves_the_result_unchanged(
    kind: str, argument: str | None, changed: dict[str, Any]
) -> None:
    out, canvas = placed(np.full(Q.shape, 3, np.float32), random.Random(1), like="rows")
    before = canvas.copy()
    given = {**VALID, "out": out, **changed}
    other = given["out"].copy()
    refused(kind, argument, kvscatter.attention, **given)
    assert bits(canvas) == bits(before) and bits(given["out"]) == bits(other)
    refused(
        kind,
        argument,
        kvscatter.attention,
        **{name: it for name, it in given.items() if name != "out"}
        | ({"out": changed["out"]} if "out" in changed else {}),
    )


def test_objects_that_are_not_numbers_are_refused() -> None:
    strings = np.full(K.shape, "a", object)
    given = {
        "q": strings,
        "k": strings,
        "v": strings,
        "mask": strings[0, 0, :, 0],
        "sink": strings[0, 0, 0, :4],
    }
    for name, array in given.items():
        with pytest.raises(errors.ElementTypeError):
            kvscatter.attention(**{**VALID, name: array})
        with pytest.raises(errors.ElementTypeError):
            kvscatter.attention(**{**VALID, name: [[1.0]]})
    with pytest.raises(errors.ElementTypeError):
        kvscatter.attention(**VALID, out=np.full(Q.shape, "a", object))


def test_a_result_that_shares_memory_is_refused() -> None:
    memory = np.zeros(4096, np.float32)
    q, k, mask = (
        memory[:192].reshape(Q.shape),
        memory[200:360].reshape(K.shape),
        memory[400:415].reshape(3, 5),
    )
    for begin, name in ((0, "q"), (191, "q"), (100, "q"), (359, "k"), (300, "k"), (210, "k")):
        out = memory[begin : begin + 192].reshape(Q.shape)
        error = refused("overlap", "out", kvscatter.attention, q, k, K, [5, 4], out=out)
        assert error.with_ == name
    error = refused(
        "overlap", "out", kvscatter.attention, Q, K, K, mask=mask, out=memory[390:582].reshape(Q.shape)
    )
    assert error.with_ == "mask" and not memory.any()
    alone = np.lib.stride_tricks.as_strided(memory, Q.shape, (384, 96, 4, 4))
    refused("overlap", None, kvscatter.attention, Q, K, K, out=alone)
    read_only = np.zeros(Q.shape, np.float32)
    read_only.setflags(write=False)
    refused("read_only", "out", kvscatter.attention, Q, K, K, out=read_only)
    assert not memory.any()


def test_a_prepared_call_takes_only_its_forms() -> None:
    mask = ones(3, 5)
    attend = kvscatter.prepare_attention(Q, K, K, mask=mask)
    wanted = kvscatter.attention(Q, K, K, [5, 4], mask=mask)
    out = np.full(Q.shape, 3, np.float32)
    for kind, argument, changed in [
        ("prepared", "q", {"q": Q[:1]}),
        ("prepared", "q", {"q": Q.astype(np.float16)}),
        ("prepared", "k", {"k": ones(2, 5, 2, 8).swapaxes(1, 2)}),
        ("prepared", "v", {"v": ones(2, 2, 6, 8)}),
        ("prepared", "mask", {"mask": ones(1, 5)}),
        ("prepared", "out", {"out": ones(2, 3, 4, 8).swapaxes(1, 2)}),
        ("combination", None, {"mask": None}),
        ("combination", None, {"sink": ones(4)}),
        ("combination", None, {**ROW_SCALES}),
        ("length_out_of_range", None, {"lengths": [6, 0]}),
        ("overlap", "out", {"q": out}),
    ]:
        given: dict[str, Any] = {**VALID, "mask": mask, "out": out, **changed}
        refused(kind, argument, attend, **given)
        assert (out == 3).all()
    assert attend(Q, K, K, [5, 4], mask=mask, out=out) is out and bits(out) == bits(wanted)
    into = kvscatter.prepare_attention(Q, K, K, out=out[:, ::1])
    refused("out_missing", "out", into, Q, K, K)


# ── sizes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sizes_of_zero() -> None:
    for q, k, v in [
        ((0, 4, 3, 8), (0, 2, 5, 8), (0, 2, 5, 8)),
        ((2, 4, 0, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
        ((2, 4, 3, 8), (2, 2, 0, 8), (2, 2, 0, 8)),
        ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 0)),
        ((2, 4, 3, 0), (2, 2, 5, 0), (2, 2, 5, 8)),
    ]:
        found = kvscatter.attention(ones(*q), ones(*k), ones(*v))
        assert found.shape == (*q[:3], v[3]) and np.isfinite(found).all()
        assert k[2] > 0 or not found.any()


def wide(*shape: int, dtype: Any = np.float32) -> Array:
    return np.broadcast_to(np.ones((), dtype), shape)


def test_shapes_of_any_size_may_be_claimed() -> None:
    """Arrays with strides of 0 have few bytes."""
    q, far = ones(1, 1, 1, 1), 2**40
    found = kvscatter.attention(q, wide(1, 1, far, 1), wide(1, 1, far, 1), [3])
    assert found.tolist() == [[[[1.0]]]]
    for given in [
        {"q": wide(far, 1, 1, 1), "k": wide(far, 1, 4, 1), "v": wide(far, 1, 4, 1)},
        {"q": wide(1, far, 1, 1), "k": wide(1, 1, 4, 1), "v": wide(1, 1, 4, 1)},
        {"q": wide(1, 1, far, 1), "k": wide(1, 1, 4, 1), "v": wide(1, 1, 4, 1)},
        {"q": q, "k": wide(1, 1, far, 1), "v": wide(1, 1, far, 1), "mask": wide(far), "lengths": [3]},
        {"q": q, "k": q, "v": q, "block_tables": wide(1, far, dtype=np.int32), "lengths": [1]},
    ]:
        with pytest.raises(MemoryError):
            kvscatter.attention(**given)
    empty = wide(1, 1, far, 0)
    refused("too_large", None, kvscatter.attention, ones(1, 1, 1, 0), empty, empty, [3])


# ── threads and processes ───────────────────────────────────────────────────────────────────────────────────────


def test_many_threads_may_call_one_prepared_attention() -> None:
    numbers = np.random.default_rng(4)
    k, v = (numbers.standard_normal((4, 2, 2048, 64)).astype(np.float32) for _ in range(2))
    queries = [numbers.standard_normal((4, 8, 1, 64)).astype(np.float32) for _ in range(8)]
    lengths = [2048, 7, 1500, 1023]
    attend = kvscatter.prepare_attention(queries[0], k, v)
    wanted = [bits(kvscatter.attention(q, k, v, lengths, threads=1)) for q in queries]
    wrong: list[int] = []

    def work(index: int) -> None:
        for turn in range(12):
            at = (index + turn) % len(queries)
            if bits(attend(queries[at], k, v, lengths)) != wanted[at]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKED = """
import os, sys
import numpy as np
import kvscatter

q, cache = np.ones((4, 8, 1, 64), np.float32), np.ones((4, 2, 2048, 64), np.float32)
attend = kvscatter.prepare_attention(q, cache, cache, threads=4)
for _ in range(3):
    assert (attend(q, cache, cache) == 1).all()
for _ in range(5):
    child = os.fork()
    if child == 0:
        right = (attend(q, cache, cache) == 1).all() and (kvscatter.attention(q, cache, cache) == 1).all()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (attend(q, cache, cache) == 1).all()
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ── other libraries ─────────────────────────────────────────────────────────────────────────────────────────────


def test_tensors_of_pytorch() -> None:
    # The folder of the tests of PyTorch has its name.
    torch = pytest.importorskip("torch._C") and pytest.importorskip("torch")
    q, k = normal(*Q.shape), normal(*K.shape)
    found = kvscatter.attention(*(torch.from_numpy(it) for it in (q, k, k)), torch.tensor([5, 4]))
    assert isinstance(found, torch.Tensor)
    assert bits(found.numpy()) == bits(kvscatter.attention(q, k, k, [5, 4]))
    half = [torch.from_numpy(it).bfloat16() for it in (q, k, k)]
    found = kvscatter.attention(*half, [5, 4])
    assert found.dtype == torch.bfloat16
    same = kvscatter.attention(*(it.astype(ml_dtypes.bfloat16) for it in (q, k, k)), [5, 4])
    assert bits(found.view(torch.int16).numpy()) == bits(same)


def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax.numpy")
    q, k = normal(*Q.shape), normal(*K.shape)
    found = kvscatter.attention(*(jax.asarray(it) for it in (q, k, k)), jax.array([5, 4]))
    assert isinstance(found, jax.ndarray)
    assert bits(np.asarray(found)) == bits(kvscatter.attention(q, k, k, [5, 4]))


def normal(*shape: int) -> Array:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)
