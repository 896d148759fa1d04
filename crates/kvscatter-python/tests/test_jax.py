"""Compares ``kvscatter.jax`` with the reference, under every transformation of JAX."""

from __future__ import annotations

import random
import re
import runpy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import kvscatter.jax
from kvscatter import errors, reference
from kvscatter._dtypes import FOUR_BITS, ONNX_NAMES, dtype_named
from kvscatter.jax import KvCache, _write, tensor_scatter
from support import ROOT, check_sharded_example

Array = npt.NDArray[Any]
Mode = Literal["linear", "circular"]

BATCH, HEADS, CAPACITY, SIZE, ROWS = 4, 4, 16, 8, 3
STARTS = np.array([0, 5, 13, 2], np.int32)
COLLECTIVES = re.compile("all-gather|all-reduce|all-to-all|collective-permute")


def arrays(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    past = rng.standard_normal((BATCH, HEADS, CAPACITY, SIZE)).astype(np.float32)
    return jnp.asarray(past), jnp.asarray(rng.standard_normal((BATCH, HEADS, ROWS, SIZE)).astype(np.float32))


def expected(past: Any, update: Any, starts: Any = STARTS, **options: Any) -> Array:
    return np.asarray(reference.tensor_scatter(np.asarray(past), np.asarray(update), starts, **options))


def pointers(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.fixture
def wide() -> Any:
    """64-bit types."""
    with jax.enable_x64(True):
        yield


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(set(ONNX_NAMES) - {"object"}))
@pytest.mark.usefixtures("wide")
def test_every_type(name: str) -> None:
    rng = random.Random(name)
    dtype = dtype_named(name)
    assert dtype is not None
    bits = 4 if name in FOUR_BITS else 8 * dtype.itemsize
    most = 2 if name == "bool" else 2 ** min(bits, 8)

    def random_array(shape: tuple[int, ...]) -> Array:
        count = int(np.prod(shape)) * (1 if bits == 4 else dtype.itemsize)
        return np.array([rng.randrange(most) for _ in range(count)], np.uint8).view(dtype).reshape(shape)

    # Every shape is another program to compile.
    for _ in range(5):
        rank = rng.randrange(2, 6)
        shape = [rng.randrange(1, 6) for _ in range(rank)]
        axis = rng.randrange(1, rank)
        rows = rng.randrange(shape[axis] + 1)
        mode: Mode = rng.choice(["linear", "circular"])
        past, update = random_array(tuple(shape)), random_array((*shape[:axis], rows, *shape[axis + 1 :]))
        span = shape[axis] - rows if mode == "linear" else 99
        starts = [rng.randrange(span + 1) for _ in range(shape[0])]
        lengths = rng.choice([None, [rng.randrange(rows + 1) for _ in starts]])
        present = tensor_scatter(past, update, starts, axis=axis, mode=mode, lengths=lengths)
        wanted = expected(past, update, starts, axis=axis, mode=mode, lengths=lengths)
        # Some types have NaN, and JAX keeps its bits.
        as_bytes = np.uint8 if bits == 4 else np.dtype(f"V{dtype.itemsize}")
        assert present.dtype == dtype
        assert (np.asarray(present).view(as_bytes) == wanted.view(as_bytes)).all()


@pytest.mark.parametrize("name", ["int2", "uint2", "float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz"])
def test_other_types_are_refused_by_name(name: str) -> None:
    past = jnp.zeros((1, 2, 1), jnp.dtype(name))
    with pytest.raises(errors.ElementTypeError, match=f"past has dtype {name}, which is not a type of Tens"):
        tensor_scatter(past, past)


def test_random_keys_are_refused() -> None:
    keys = jax.random.split(jax.random.key(0), (1, 2, 1))
    with pytest.raises(errors.ElementTypeError, match="key<fry>"):
        tensor_scatter(keys, keys)


@pytest.mark.parametrize(
    "kind", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, list]
)
def test_types_of_indices(kind: Any) -> None:
    past, update = arrays()
    starts = kind(STARTS) if kind is list else STARTS.astype(kind)
    assert (np.asarray(tensor_scatter(past, update, starts)) == expected(past, update)).all()
    assert (
        np.asarray(jax.jit(tensor_scatter)(past, update, jnp.asarray(starts))) == expected(past, update)
    ).all()


def test_lists_of_tracers() -> None:
    past, update = arrays()
    write = jax.jit(lambda i, j: tensor_scatter(past, update, [i, 5, j, 2]))
    assert (np.asarray(write(0, 13)) == expected(past, update)).all()


@pytest.mark.usefixtures("wide")
def test_wide_indices() -> None:
    past, update = arrays()
    starts = np.array([0, 2**40, 2**62 + 1, -1])
    wanted = expected(past, update, starts, mode="circular")
    assert (np.asarray(tensor_scatter(past, update, starts, mode="circular")) == wanted).all()
    starts = np.array([0, 2**63 + 5, 1, 1], np.uint64)
    with pytest.raises(Exception, match=re.escape("write_indices[1] is too large: must be at most")):
        tensor_scatter(past, update, starts).block_until_ready()


def test_indices_keep_all_their_bits() -> None:
    past, update = arrays()
    with pytest.raises(
        errors.PositionError, match=re.escape(f"write_indices[2] = {2**32}: does not fit 32 bits")
    ):
        tensor_scatter(past, update, [0, 0, 2**32, 0])


@pytest.mark.parametrize("rows", [16, 512])
def test_large_writes_use_the_threads_of_xla(rows: int) -> None:
    shape = (8, 4, 2048, 64)
    past, update = jnp.zeros(shape), jnp.arange(8 * 4 * rows * 64, dtype=jnp.float32).reshape(8, 4, rows, 64)
    starts = np.arange(8, dtype=np.int32) * 100
    wanted = expected(past, update, starts)
    for _ in range(20):
        assert (np.asarray(tensor_scatter(past, update, starts)) == wanted).all()


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_donated_past_is_written_in_place() -> None:
    past, update = arrays()
    wanted, before = expected(past, update), pointers(past)
    present = jax.jit(tensor_scatter, donate_argnums=0)(past, update, STARTS)
    assert (np.asarray(present) == wanted).all()
    assert past.is_deleted()
    assert pointers(present) == before


def test_a_past_that_is_not_donated_stays() -> None:
    past, update = arrays()
    old = np.array(past)
    present = jax.jit(tensor_scatter)(past, update, STARTS)
    assert (np.asarray(present) == expected(old, update)).all()
    assert (np.asarray(past) == old).all()


def test_a_loop_writes_in_place() -> None:
    past, update = arrays()

    def step(at: Any, cache: jax.Array) -> jax.Array:
        return tensor_scatter(cache, update * at, jnp.full(BATCH, at, jnp.int32))

    loop = jax.jit(lambda past: jax.lax.fori_loop(0, 8, step, past), donate_argnums=0)
    wanted = np.array(past)
    for at in range(8):
        wanted = expected(wanted, update * at, [at] * BATCH)
    # A copy in the loop would be a fusion or a copy of the whole cache.
    text = loop.lower(past).compile().as_text()
    assert f"copy(f32[{BATCH},{HEADS},{CAPACITY},{SIZE}]" not in text
    before = pointers(past)
    present = loop(past)
    assert (np.asarray(present) == wanted).all()
    assert pointers(present) == before


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_positions_that_do_not_fit(transform: Callable[[Any], Any]) -> None:
    past, update = arrays()
    for starts, lengths, message in [
        ([0, 0, 14, 0], None, "write_indices[2] = 14: 14 + 3 rows exceed the cache's capacity of 16"),
        ([0, -1, 0, 0], None, "write_indices[1] = -1: must not be negative"),
        ([0, 0, 0, 0], [0, 1, 2, 4], "lengths[3] = 4"),
        ([0, 0, 0, 0], [0, -1, 2, 3], "lengths[1] = -1"),
    ]:
        call = transform(lambda *them: tensor_scatter(*them[:3], lengths=them[3] if len(them) > 3 else None))
        lists = [jnp.array(starts)] + ([] if lengths is None else [jnp.array(lengths)])
        with pytest.raises(Exception, match=re.escape(message)) as caught:
            call(past, update, *lists).block_until_ready()
        assert isinstance(caught.value, (jax.errors.JaxRuntimeError, ValueError))


def test_types_shapes_and_options_are_refused_when_a_program_is_compiled() -> None:
    past, update = arrays()
    for call, kind, message in [
        (
            lambda: tensor_scatter(past, update.astype(jnp.float16)),
            errors.ElementTypeError,
            "update is float16",
        ),
        (lambda: tensor_scatter(past, update[..., 1:]), errors.ShapeError, "update"),
        (lambda: tensor_scatter(past[0, 0, 0], update[0, 0, 0]), errors.ShapeError, "past has 1 dimension"),
        (lambda: tensor_scatter(past, past[:, :, :1], [0]), errors.PositionError, "write_indices has 1"),
        (
            lambda: tensor_scatter(past, update, [[0] * 4]),
            errors.ShapeError,
            "write_indices has 2 dimensions",
        ),
        (
            lambda: tensor_scatter(past, update, [0.5] * 4),
            errors.ElementTypeError,
            "write_indices holds float64",
        ),
        (
            lambda: tensor_scatter(past, update, [True] * 4),
            errors.ElementTypeError,
            "write_indices holds bool",
        ),
        (lambda: tensor_scatter(past, update, lengths=[1]), errors.PositionError, "lengths has 1"),
        (lambda: tensor_scatter(past, update, axis=0), errors.OptionError, "axis"),
        (lambda: tensor_scatter(past, update, axis=4), errors.OptionError, "axis"),
        (lambda: tensor_scatter(past, update, mode="ring"), errors.OptionError, "mode"),  # type: ignore[call-overload]
        (lambda: tensor_scatter(past, update, out_of_range="clamp"), errors.OptionError, "out_of_range"),  # type: ignore[call-overload]
    ]:
        with pytest.raises(kind, match=message):
            jax.jit(call)()


def test_programs_that_the_package_does_not_make_are_refused() -> None:
    past, update = arrays()
    target, same = kvscatter.jax.TARGET, jax.ShapeDtypeStruct(past.shape, past.dtype)
    flags = jax.ShapeDtypeStruct((BATCH,), np.bool_)
    good = {"axis": np.int64(2), "mode": "linear", "skips": False}
    starts = jnp.asarray(STARTS)
    for operands, results, attributes, message in [
        ((past, update), [same], good, "2 arguments, must be 3 or 4"),
        ((past, update, starts), [same, flags, flags], good, "3 results, must be 1 or 2"),
        ((past, update, starts), [same], {"mode": "linear", "skips": True}, "attribute axis is missing"),
        ((past, update, starts), [same], {**good, "mode": "ring"}, "must be linear or circular"),
        ((past, update, starts), [same, flags], good, "there must be a second result skipped"),
        ((past, update, starts), [same], {**good, "skips": True}, "there must be a second result skipped"),
        ((past, update, starts * 1.0), [same], good, "must have integers of 32 or 64 bits"),
        ((past, update, starts[None]), [same], good, "write_indices has shape"),
        ((past, update.astype(jnp.int32), starts), [same], good, "differ in type"),
        ((past, update[..., :1], starts), [same], good, "update"),
        ((past, update, starts[:1]), [same], good, "write_indices"),
        # JAX uses a compiled program again if the attributes are equal, also if their types differ.
        ((past, update, starts), [same], {**good, "axis": np.int32(1)}, "attribute axis has XLA type"),
    ]:
        with pytest.raises(Exception, match=message):
            jax.block_until_ready(jax.ffi.ffi_call(target, results)(*operands, **attributes))
    # Without an alias, one pass copies the past.
    (present,) = jax.ffi.ffi_call(target, [same])(past, update, starts, **good)
    assert (np.asarray(present) == expected(past, update)).all()


# ── samples that are skipped ────────────────────────────────────────────────────────────────────────────────────


def test_skipped_samples_are_counted() -> None:
    past, update = arrays()
    starts = np.array([0, 14, -1, 13], np.int32)
    present, skipped = jax.jit(lambda *them: tensor_scatter(*them, out_of_range="skip"))(past, update, starts)
    assert int(skipped) == 2
    assert (np.asarray(present) == expected(past, update, starts, out_of_range="skip")).all()


def test_vmap_counts_for_each_item() -> None:
    past, update = arrays()
    starts = jnp.asarray(STARTS) + jnp.array([[0], [1], [12]])
    _, skipped = jax.vmap(lambda starts: tensor_scatter(past, update, starts, out_of_range="skip"))(starts)
    assert skipped.tolist() == [0, 1, 3]


# ── transformations ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "in_axes", [(0, 0, None), (1, 0, None), (None, 2, 0), (-1, None, 0), (None, None, 0)]
)
def test_vmap_is_one_call(in_axes: tuple[int | None, ...]) -> None:
    past, update = arrays()
    items = 3
    operands: list[jax.Array] = []
    wanted: list[list[Array]] = [[] for _ in range(items)]
    for operand, dim in zip((past, update, jnp.asarray(STARTS)), in_axes, strict=True):
        each = [operand + at if dim is not None and operand.ndim > 1 else operand for at in range(items)]
        operands.append(operand if dim is None else jnp.stack(each, dim))
        for item, value in zip(wanted, each, strict=True):
            item.append(np.asarray(value))
    call = jax.jit(jax.vmap(tensor_scatter, in_axes))
    present = call(*operands)
    for item, (old, new, starts) in zip(np.asarray(present), wanted, strict=True):
        assert (item == expected(old, new, starts)).all()
    assert call.lower(*operands).as_text().count(f"@{kvscatter.jax.TARGET}") == 1


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("lengths", [None, [0, 1, 2, 3]])
@pytest.mark.parametrize("out_of_range", ["error", "skip"])
def test_derivatives(mode: Mode, lengths: list[int] | None, out_of_range: Any) -> None:
    past, update = arrays()
    starts = STARTS + (0 if mode == "linear" and out_of_range == "error" else 2)

    def write(past: jax.Array, update: jax.Array) -> jax.Array:
        result = tensor_scatter(past, update, starts, mode=mode, lengths=lengths, out_of_range=out_of_range)
        return result[0] if out_of_range == "skip" else result

    check_grads(write, (past, update), order=2)
    # The write is linear, so its tangent is a write of tangents.
    _, tangent = jax.jvp(write, (past, update), (update_like(past), update))
    assert (np.asarray(tangent) == np.asarray(write(update_like(past), update))).all()
    batched = jax.vmap(jax.grad(lambda p, u: (write(p, u) ** 2).sum(), (0, 1)))(past[None], update[None])
    single = jax.grad(lambda p, u: (write(p, u) ** 2).sum(), (0, 1))(past, update)
    assert all((np.asarray(a[0]) == np.asarray(b)).all() for a, b in zip(batched, single, strict=True))


def update_like(past: jax.Array) -> jax.Array:
    return jnp.cos(past)


def test_integers_have_no_derivative() -> None:
    past, update = (it.astype(jnp.int32) for it in arrays())
    factor = jnp.float32(2)
    gradient = jax.grad(lambda x: (tensor_scatter(past, update, STARTS) * x).sum())(factor)
    assert float(gradient) == expected(past, update).sum()


@pytest.mark.usefixtures("wide")
def test_derivatives_with_wide_and_unsigned_indices() -> None:
    past, update = arrays()
    for starts in (STARTS.astype(np.uint32), STARTS.astype(np.int64) + 2**40):
        write = partial(tensor_scatter, write_indices=starts, mode="circular")
        check_grads(write, (past, update), order=1)


def test_empty_dimensions() -> None:
    past, update = arrays()
    assert tensor_scatter(past, update[:, :, :0], STARTS).shape == past.shape
    assert tensor_scatter(past[:0], update[:0], STARTS[:0]).shape == (0, HEADS, CAPACITY, SIZE)
    assert tensor_scatter(past[:, :, :0], update[:, :, :0]).shape == (BATCH, HEADS, 0, SIZE)
    assert jax.vmap(tensor_scatter)(past[None, :0], update[None, :0], STARTS[None, :0]).shape[1] == 0
    assert jax.vmap(tensor_scatter, (0, 0, None))(past[None][:0], update[None][:0], STARTS).shape[0] == 0
    check_grads(lambda *them: tensor_scatter(*them, STARTS), (past, update[:, :, :0]), order=1)


# ── devices ─────────────────────────────────────────────────────────────────────────────────────────────────────


def mesh() -> Mesh:
    assert len(jax.devices()) == 4
    return Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))


SPECS = [
    P("x"),
    P(None, "x"),
    P(None, None, None, "x"),
    P("x", "y"),
    P(("x", "y")),
    P(None, "x", None, "y"),
    P(),
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("skips", [False, True])
def test_sharded_caches_are_written_without_communication(spec: P, skips: bool) -> None:
    past, update = arrays()
    starts = STARTS + (1 if skips else 0)
    policy: Any = "skip" if skips else "error"
    sharded = jax.device_put(past, NamedSharding(mesh(), spec))
    write = jax.jit(lambda *them: tensor_scatter(*them, out_of_range=policy), donate_argnums=0)
    text = write.lower(sharded, update, starts).compile().as_text()
    # The number of skipped samples is summed over the devices with parts of the batch.
    assert set(COLLECTIVES.findall(text)) <= ({"all-reduce"} if skips and spec and spec[0] else set())
    before, wanted = pointers(sharded), expected(past, update, starts, out_of_range=policy)
    result = write(sharded, update, starts)
    present = result[0] if skips else result
    assert (np.asarray(present) == wanted).all()
    assert pointers(present) == before
    assert not skips or int(result[1]) == 1


def placed(array: Any, spec: P) -> jax.Array:
    return jax.device_put(jnp.asarray(array), NamedSharding(mesh(), spec))


PLACES = [P(), P("x"), P("y"), P(None, "x"), P("x", "y"), P("y", "x")]


@pytest.mark.parametrize("of_update", PLACES)
@pytest.mark.parametrize("of_past", PLACES)
def test_operands_and_results_may_be_placed_in_any_way(of_past: P, of_update: P) -> None:
    past, update = arrays()
    wanted = expected(past, update)
    for of_starts, of_present in ((P(), P("y")), (P("x"), P()), (P("y"), P("x", "y"))):
        write = jax.jit(tensor_scatter, out_shardings=NamedSharding(mesh(), of_present))
        present = write(placed(past, of_past), placed(update, of_update), placed(STARTS, of_starts))
        assert (np.asarray(present) == wanted).all(), (of_starts, of_present)


def test_a_sharded_batch_that_does_not_divide_evenly() -> None:
    past, update = (it[:3] for it in arrays())
    sharding = NamedSharding(mesh(), P("x"))

    @jax.jit
    def write(past: jax.Array, update: jax.Array, starts: jax.Array) -> jax.Array:
        past, starts = (jax.lax.with_sharding_constraint(it, sharding) for it in (past, starts))
        return tensor_scatter(past, update, starts * 0 - 1 + starts)

    assert (np.asarray(write(past, update, STARTS[:3] + 1)) == expected(past, update, STARTS[:3])).all()


def test_the_sequence_of_a_sharded_operand_is_refused() -> None:
    past, update = arrays()
    for operands, message in [
        ((placed(past, P(None, None, "x")), update), "past is sharded along its sequence"),
        ((past, placed(past, P(None, None, "x"))), "update is sharded along its sequence"),
    ]:
        with pytest.raises(Exception, match=message):
            jax.jit(tensor_scatter)(*operands)


def test_plain_arrays_in_a_mesh() -> None:
    past, update = arrays()
    with jax.set_mesh(mesh()):
        assert (np.asarray(jax.jit(tensor_scatter)(past, update, STARTS)) == expected(past, update)).all()


def test_explicit_shardings_are_refused_by_name() -> None:
    past, update = arrays()
    explicit = Mesh(mesh().devices, ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        assert (np.asarray(jax.jit(tensor_scatter)(past, update, STARTS)) == expected(past, update)).all()
        sharded = jax.device_put(past, NamedSharding(explicit, P("x")))
        with pytest.raises(errors.OptionError, match="past has the explicit sharding"):
            jax.jit(tensor_scatter)(sharded, update, STARTS)
        with pytest.raises(errors.OptionError, match="write_indices has the explicit sharding"):
            jax.jit(tensor_scatter)(past, update, jax.device_put(STARTS, NamedSharding(explicit, P("x"))))
        write = jax.shard_map(tensor_scatter, in_specs=(P("x"), P("x"), P("x")), out_specs=P("x"))
        operands = sharded, *(jax.device_put(it, NamedSharding(explicit, P("x"))) for it in (update, STARTS))
        assert (np.asarray(jax.jit(write)(*operands)) == expected(past, update)).all()


SPECS_OF_PARTS = P("x", "y"), P("x", "y"), P("x")


@pytest.mark.parametrize("checks", [False, True])
def test_shard_map(checks: bool) -> None:
    past, update = arrays()
    write = jax.shard_map(
        tensor_scatter, mesh=mesh(), in_specs=SPECS_OF_PARTS, out_specs=P("x", "y"), check_vma=checks
    )
    assert (np.asarray(jax.jit(write)(past, update, STARTS)) == expected(past, update)).all()


def test_shard_map_over_some_axes() -> None:
    past, update = arrays()
    heads = P(None, "y"), P(None, "y"), P()

    def of_part(past: jax.Array, update: jax.Array, starts: jax.Array) -> jax.Array:
        return jax.shard_map(tensor_scatter, in_specs=heads, out_specs=heads[0], axis_names={"y"})(
            past, update, starts
        )

    def over_samples(write: Any) -> Any:
        return jax.jit(jax.shard_map(write, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}))

    with jax.set_mesh(mesh()):
        assert (np.asarray(over_samples(of_part)(past, update, STARTS)) == expected(past, update)).all()
        with pytest.raises(Exception, match="nest another one over the axes that are left"):
            over_samples(tensor_scatter)(placed(past, P("x")), placed(update, P("x", "y")), STARTS)


def test_a_loop_and_derivatives_in_shard_map() -> None:
    past, update = arrays()

    def loop(past: jax.Array, update: jax.Array, starts: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 4, lambda at, cache: tensor_scatter(cache, update, starts * 0 + at), past)

    mapped = jax.jit(jax.shard_map(loop, mesh=mesh(), in_specs=SPECS_OF_PARTS, out_specs=P("x", "y")))
    wanted = np.array(past)
    for at in range(4):
        wanted = expected(wanted, update, [at] * BATCH)
    assert (np.asarray(mapped(past, update, STARTS)) == wanted).all()
    write = jax.shard_map(tensor_scatter, mesh=mesh(), in_specs=SPECS_OF_PARTS, out_specs=P("x", "y"))
    gradient = jax.jit(jax.grad(lambda update: (write(past, update, STARTS) ** 2).sum()))(update)
    assert (np.asarray(gradient) == 2 * np.asarray(update)).all()
    with pytest.raises(ValueError, match="out_specs"):
        jax.shard_map(tensor_scatter, mesh=mesh(), in_specs=SPECS_OF_PARTS, out_specs=P())(
            past, update, STARTS
        )


# ── export ──────────────────────────────────────────────────────────────────────────────────────────────────────


def exported(call: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    allowed = [export.DisabledSafetyCheck.custom_call(kvscatter.jax.TARGET)]
    return export.export(jax.jit(call), disabled_checks=allowed, **options)(*operands)


def test_export() -> None:
    past, update = arrays()
    again = export.deserialize(exported(tensor_scatter, past, update, STARTS).serialize())
    assert (np.asarray(again.call(past, update, STARTS)) == expected(past, update)).all()


def test_exported_sizes_may_be_symbolic() -> None:
    """The program checks symbolic sizes when it runs."""
    batch, slots = export.symbolic_shape("batch, slots")
    past, update = arrays()
    program = exported(
        tensor_scatter,
        jax.ShapeDtypeStruct((batch, HEADS, slots, SIZE), jnp.float32),
        jax.ShapeDtypeStruct((batch, HEADS, ROWS, SIZE), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
    )
    assert (np.asarray(program.call(past, update, STARTS)) == expected(past, update)).all()
    for items in (1, 3):
        of = slice(items), slice(None), slice(8 * items)
        found = program.call(past[of], update[:items], STARTS[:items])
        assert (np.asarray(found) == expected(past[of], update[:items], STARTS[:items])).all()
    with pytest.raises(Exception, match="update"):
        jax.block_until_ready(program.call(past[:, :, : ROWS - 1], update, STARTS))
    with pytest.raises(errors.ShapeError, match="heads|dimension|update"):
        exported(
            tensor_scatter,
            jax.ShapeDtypeStruct((batch, HEADS, slots, SIZE), jnp.float32),
            jax.ShapeDtypeStruct((batch, HEADS + 1, ROWS, SIZE), jnp.float32),
        )


# ── CUDA ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("out_of_range", ["error", "skip"])
def test_programs_for_cuda_make_one_call_with_a_status(out_of_range: Any) -> None:
    def write(*operands: Any) -> Any:
        return tensor_scatter(*operands, out_of_range=out_of_range)

    text = exported(write, *arrays(), STARTS, platforms=["cuda"]).mlir_module()
    (call,) = (line for line in text.splitlines() if "custom_call @kvscatter" in line)
    assert "tensor<4xui32>" in call and f"skips = {str(out_of_range == 'skip').lower()}" in call
    assert "output_operand_alias" in call


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_samples_that_do_not_fit_are_those_of_the_cpu(mode: Any, dtype: Any) -> None:
    """A program for CUDA computes the list that the call on the CPU reports."""
    (limits, rows, capacity) = np.iinfo(dtype), 3, 9
    starts = np.array([limits.min, limits.min + 1, -1, 0, 5, 6, 7, 8, 9, limits.max], dtype)
    starts, lengths = (it.ravel() for it in np.meshgrid(starts, np.arange(rows + 1, dtype=dtype)))
    past, update = jnp.zeros((starts.size, capacity, 2)), jnp.ones((starts.size, rows, 2))
    for lists in ([starts], [starts, lengths]):
        found = _write._misfits(capacity, rows, [jnp.asarray(it) for it in lists], mode)
        call = _write.write(len(lists), 1, mode, True)
        _, skipped = call(past, update, *(jnp.asarray(it, jnp.int32) for it in lists))
        assert found.tolist() == skipped.tolist()
        assert mode == "circular" or 0 < sum(found.tolist()) < starts.size


# ── decoding ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """Returns the functions of the example, and the tokens that its model has without caches."""
    functions = runpy.run_path(str(ROOT / "examples/sharded/jax_heads.py"))
    return {**functions, "expected": functions["decode_without_caches"](functions["make_weights"]())}


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_the_tokens_are_those_of_a_growing_cache(example: dict[str, Any], loop: str) -> None:
    weights, prompts, count = example["make_weights"](), example["PROMPTS"], example["NEW_TOKENS"]
    sizes = {"heads": example["KV_HEADS"], "head_size": example["HEAD_SIZE"], "chunk": example["CHUNK"]}
    cache = KvCache.zeros(example["WINDOWS"], batch=len(prompts), capacity=example["CAPACITY"], **sizes)
    assert [layer.slots for layer in cache.layers] == [32, 11, 32, 11]
    cache, token = jax.jit(example["step"])(weights, cache, *example["padded"](prompts, example["CHUNK"]))

    def decode(cache: KvCache, token: jax.Array) -> tuple[KvCache, jax.Array]:
        def one(carry: Any, _: None) -> Any:
            cache, token = carry
            return example["step"](weights, cache, token[:, None], jnp.ones_like(token)), token

        if loop == "scan":
            (cache, _), tokens = jax.lax.scan(one, (cache, token), None, count)
            return cache, tokens

        def body(carry: Any) -> Any:
            at, cache, token, tokens = carry
            (cache, after), _ = one((cache, token), None)
            return at + 1, cache, after, tokens.at[at].set(token)

        tokens = jnp.zeros((count, len(prompts)), token.dtype)
        return jax.lax.while_loop(lambda carry: carry[0] < count, body, (0, cache, token, tokens))[1::2]

    before = pointers(cache.layers[1].keys)
    after, tokens = jax.jit(decode, donate_argnums=0)(cache, token)
    assert pointers(after.layers[1].keys) == before
    assert after.lengths.tolist() == [len(prompt) + count for prompt in prompts]
    assert tokens.T.tolist() == example["expected"]


def test_the_example_with_several_devices_decodes_the_same_tokens() -> None:
    check_sharded_example("jax_heads.py")


def test_a_step_that_is_too_long_for_a_ring_is_refused() -> None:
    cache = KvCache.zeros([4], batch=1, capacity=32, heads=1, head_size=1, chunk=2)
    rows = jnp.zeros((1, 3, 1, 1))
    with pytest.raises(errors.OptionError, match="keys have 3 rows: the ring of layer 0, of 5 slots"):
        cache.write(0, rows, rows)


def test_padding_and_ended_samples_need_no_room() -> None:
    cache = KvCache.zeros([None], batch=2, capacity=4, heads=1, head_size=1, chunk=2)
    rows = jnp.arange(1.0, 5).reshape(2, 2, 1, 1)
    for _ in range(2):
        cache = cache.write(0, rows, rows).advance(2)
    ended = cache.write(0, rows, rows, real=[0, 0])
    assert (np.asarray(ended.layers[0].keys) == np.asarray(cache.layers[0].keys)).all()
    assert cache.layers[0].keys[:, :, 0, 0].tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]
    back = cache.advance([-1, -4]).write(0, rows * 5, rows, real=[1, 2])
    assert back.layers[0].keys[:, :, 0, 0].tolist() == [[1, 2, 1, 5], [15, 20, 3, 4]]
    with pytest.raises(Exception, match=re.escape("write_indices[0] = 4: 4 + 2 rows exceed")):
        jax.block_until_ready(cache.write(0, rows, rows))


def test_caches_that_no_decoder_has_are_refused() -> None:
    sizes = {"batch": 1, "capacity": 8, "heads": 1, "head_size": 1, "chunk": 1}
    for wrong in ({"chunk": 0}, {"capacity": 0}, {"batch": -1}):
        with pytest.raises(errors.OptionError, match="must be from 1 to"):
            KvCache.zeros([None], **{**sizes, **wrong})
    with pytest.raises(errors.OptionError, match="windows = 0: must be from 1 to"):
        KvCache.zeros([0], **sizes)
    cache = KvCache.zeros([3], **sizes)
    with pytest.raises(errors.ShapeError, match="both must have one shape"):
        cache.write(0, jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 3, 1, 1)))
