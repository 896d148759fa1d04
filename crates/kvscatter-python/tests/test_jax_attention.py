"""Compares ``kvscatter.jax.attention`` with ``kvscatter.attention`` and the oracle, and its derivatives with those of
differences."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import kvscatter
import kvscatter.jax
from attention_calls import Call, random_call, swapped
from kvscatter import errors
from kvscatter.jax import ATTENTION_TARGET, KvCache, attention
from kvscatter.jax import _attention as module
from support import Array, bits

BATCH, HEADS, KV_HEADS, SLOTS, SIZE, QUERIES = 3, 4, 2, 12, 8, 2
LENGTHS = np.array([12, 0, 5], np.int32)


def arrays(seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    shapes = (BATCH, HEADS, QUERIES, SIZE), (BATCH, KV_HEADS, SLOTS, SIZE), (BATCH, KV_HEADS, SLOTS, SIZE + 1)
    q, k, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    return q, k, v


def in_jax(call: Call, layout: str = "bhsd") -> dict[str, Any]:
    """Returns the arguments of a call as arrays of JAX."""
    turned = {
        name: swapped(array) if layout == "bshd" and name in ("q", "k", "v") else array
        for name, array in call.arrays.items()
    }
    numbers = {name: np.asarray(it, np.int32) for name, it in call.numbers.items() if it is not None}
    return {name: jnp.asarray(it) for name, it in (turned | numbers).items()}


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(24))
def test_random_calls_have_the_bits_of_numpy(seed: int) -> None:
    """Every shape is another program to compile."""
    call = random_call(seed)
    layout: Any = "bshd" if seed % 3 == 0 else "bhsd"
    given = in_jax(call, layout)
    found = jax.jit(lambda given: attention(**given, **call.options, layout=layout))(given)
    as_numpy: dict[str, Any] = {name: np.asarray(it) for name, it in given.items()}
    wanted = kvscatter.attention(**as_numpy, **call.options, layout=layout)
    assert found.dtype == wanted.dtype and bits(np.asarray(found)) == bits(wanted)
    # The derivatives are those of operations of JAX, which give nearly the same.
    names = tuple(name for name in given if name not in ("q", "k", "v", "lengths"))
    slots = given["k"].shape[1 if layout == "bshd" else 2] * (
        given["block_tables"].shape[1] if "block_tables" in given else 1
    )
    lengths = given.get("lengths", jnp.full(given["q"].shape[0], slots, jnp.int32))
    options = module.Options(**call.options, layout=layout)
    composed = jax.jit(partial(module._composed, names, options))
    result = composed(*(given[it] for it in "qkv"), lengths, *(given[it] for it in names))
    expected, tolerance = (swapped(it) if layout == "bshd" else it for it in (call.expected, call.tolerance))
    assert (np.abs(np.asarray(result, np.float64) - expected) <= 2 * tolerance + 1e-6).all()


def test_lengths_are_integers_of_any_type() -> None:
    q, k, v = arrays()
    wanted = attention(q, k, v, LENGTHS)
    for kind in (np.int8, np.int16, np.uint8, np.uint32, np.int64, list):
        lengths = LENGTHS.tolist() if kind is list else LENGTHS.astype(kind)
        assert bits(np.asarray(attention(q, k, v, lengths))) == bits(np.asarray(wanted))
    with jax.enable_x64(True):
        for kind in (np.int64, np.uint64):
            found = attention(q, k, v, jnp.asarray(LENGTHS.astype(kind)))
            assert bits(np.asarray(found)) == bits(np.asarray(wanted))
        with pytest.raises(Exception, match=re.escape(f"lengths[2] = {2**40}: must be between 0 and 12")):
            attention(q, k, v, jnp.array([1, 2, 2**40])).block_until_ready()
        tables = jnp.array([[0], [1], [2**32 + 1]])
        with pytest.raises(Exception, match=re.escape("block_tables[2][0] = -1")):
            attention(q, k, v, block_tables=tables).block_until_ready()


def test_long_calls_use_the_threads_of_xla() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (
        rng.standard_normal((2, heads, rows, 64)).astype(np.float32)
        for heads, rows in ((8, 4), (2, 4096), (2, 4096))
    )
    wanted = kvscatter.attention(q, k, v, [4096, 3000], threads=1)
    for _ in range(5):
        assert bits(np.asarray(attention(q, k, v, [4096, 3000]))) == bits(wanted)


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_numbers_that_do_not_fit(transform: Callable[[Any], Any]) -> None:
    q, k, v = arrays()
    tables = jnp.array([[0], [1], [3]])
    for given, message in [
        ({"lengths": [0, 1, 13]}, "lengths[2] = 13: must be between 0 and 12"),
        ({"lengths": [0, -1, 3]}, "lengths[1] = -1: must be between 0 and 12"),
        ({"lengths": [1, 2, 3], "starts": [0, 0, -2]}, "starts[2] = -2: must be at least 0"),
        ({"lengths": [1, 2, 3], "block_tables": tables}, "block_tables[2][0] = 3: must be between 0 and 2"),
    ]:
        call = transform(lambda given: attention(q, k, v, **given))
        with pytest.raises(Exception, match=re.escape(message)) as caught:
            call({name: jnp.asarray(it) for name, it in given.items()}).block_until_ready()
        assert isinstance(caught.value, (jax.errors.JaxRuntimeError, ValueError))


def test_types_shapes_and_options_are_refused_when_a_program_is_compiled() -> None:
    q, k, v = arrays()
    codes = {"k": k.astype(jnp.int8), "v": v.astype(jnp.int8)}
    scales = {"k_scale": jnp.ones(k.shape[:3]), "v_scale": jnp.ones(v.shape[:3])}
    for of, message, given in [
        (errors.ElementTypeError, "q has dtype int32", {"q": q.astype(jnp.int32)}),
        (errors.ElementTypeError, "k has dtype uint8", {"k": k.astype(jnp.uint8)}),
        (errors.ElementTypeError, "v is float16, must be float32", {"v": v.astype(jnp.float16)}),
        (
            errors.ElementTypeError,
            "mask is float16, must be float32",
            {"mask": jnp.zeros(SLOTS, jnp.float16)},
        ),
        (errors.ElementTypeError, "sink is int32", {"sink": jnp.zeros(HEADS, jnp.int32)}),
        (errors.ElementTypeError, "lengths holds float32", {"lengths": jnp.zeros(BATCH)}),
        (errors.ElementTypeError, "block_tables holds float32", {"block_tables": jnp.zeros((BATCH, 1))}),
        (errors.ShapeError, "q has 3 dimensions", {"q": q[0]}),
        (errors.ShapeError, "k is", {"k": k[..., 1:]}),
        (errors.ShapeError, "3 heads of q", {"q": q[:, 1:]}),
        (errors.ShapeError, "mask has shape", {"mask": jnp.zeros((3, SLOTS))}),
        (errors.ShapeError, "lengths has 2", {"lengths": [1, 2]}),
        (errors.ShapeError, "lengths has 2 dimensions", {"lengths": [[1, 2, 3]]}),
        (errors.ShapeError, "block_tables has shape", {"block_tables": jnp.zeros((2, 1), jnp.int32)}),
        (errors.ShapeError, "block_tables has 1 dimension", {"block_tables": jnp.zeros(BATCH, jnp.int32)}),
        (errors.ShapeError, "sink has shape", {"sink": jnp.zeros(HEADS + 1)}),
        (errors.ShapeError, "v_scale has shape", {**codes, **scales, "v_scale": jnp.ones(SIZE)}),
        (errors.OptionError, "v_scale is missing", {**codes, "k_scale": scales["k_scale"]}),
        (errors.OptionError, "k_scale must be given", codes),
        (errors.OptionError, "k_scale must be absent", scales),
        (errors.OptionError, "window = 0", {"window": 0}),
        (errors.OptionError, "scale = -1", {"scale": -1.0}),
        (errors.OptionError, "softcap", {"softcap": -1.0}),
        (errors.OptionError, "mode", {"mode": "ring"}),
        (errors.OptionError, "layout", {"layout": "bsd"}),
        (
            errors.OptionError,
            "block_tables",
            {"mode": "circular", "block_tables": jnp.zeros((BATCH, 1), jnp.int32)},
        ),
    ]:
        with pytest.raises(of, match=message):
            jax.jit(lambda given=given: attention(**{"q": q, "k": k, "v": v} | given))()  # type: ignore[arg-type]


def test_programs_that_the_package_does_not_make_are_refused() -> None:
    q, k, v = arrays()
    lengths, result = jnp.asarray(LENGTHS), jax.ShapeDtypeStruct((*q.shape[:3], SIZE + 1), q.dtype)
    good = {"operands": "", "causal": True, "window": np.int64(0), "mode": "linear", "layout": "bhsd"}
    half = k.astype(jnp.float16)
    for operands, results, attributes, message in [
        ((q, k, v), result, good, "3 arguments, must be 4"),
        ((q, k, v, lengths), result, {**good, "operands": "mask"}, "4 arguments, must be 5"),
        ((q, k, v, lengths, lengths), result, {**good, "operands": "masks"}, "no operand masks"),
        ((q, k, v, lengths), [result, result], good, "one result"),
        ((q, k, v, lengths), jax.ShapeDtypeStruct(q.shape, q.dtype), good, "the result does not have"),
        ((q, k, v, lengths), result.update(dtype=jnp.float16), good, "the result does not have"),
        ((q, half, v, lengths), result, good, "differ in type"),
        ((q, k, v, lengths * 1.0), result, good, "lengths has XLA type"),
        ((q, k, v, lengths[:1]), result, good, "lengths has 1 element"),
        ((q, k, v, lengths, half[0, 0, 0]), result, {**good, "operands": "mask"}, "mask has XLA type"),
        (
            (q, k, v, lengths, q[0, :, 0, 0].astype(jnp.int32)),
            result,
            {**good, "operands": "sink"},
            "sink has XLA",
        ),
        ((q, k, v, lengths, lengths), result, {**good, "operands": "block_tables"}, "must have rank 2"),
        ((q, k, v, lengths, q[0]), result, {**good, "operands": "k_scale"}, "must be used together"),
        ((q[0], k, v, lengths), result, good, "q has shape"),
        ((q, k, v, lengths), result, {**good, "layout": "x"}, "no layout x"),
        ((q, k, v, lengths), result, {**good, "scale": np.float64(1)}, "attribute scale has XLA type"),
    ]:
        with pytest.raises(Exception, match=message):
            jax.block_until_ready(jax.ffi.ffi_call(ATTENTION_TARGET, results)(*operands, **attributes))


# ── transformations ─────────────────────────────────────────────────────────────────────────────────────────────

ITEMS = 3


def stacked(array: Array, seed: int) -> jax.Array:
    """Returns items that are this array with its elements in other places of the first dimension."""
    order = [np.random.default_rng(seed + item).permutation(array.shape[0]) for item in range(ITEMS)]
    return jnp.stack([jnp.asarray(array[it]) for it in order])


PAGED = {
    "q": np.asarray(arrays()[0]),
    "k": np.random.default_rng(1).standard_normal((9, KV_HEADS, 4, SIZE)).astype(np.float32),
    "v": np.random.default_rng(2).standard_normal((9, KV_HEADS, 4, SIZE)).astype(np.float32),
    "lengths": np.array([12, 0, 5], np.int32),
    "block_tables": np.array([[3, 4, 0], [-1, 9, 9], [5, 1, -1]], np.int32),
}
FLAT: dict[str, Array] = {**dict(zip("qkv", map(np.asarray, arrays()), strict=True)), "lengths": LENGTHS}
EXTRAS: dict[str, dict[str, Array]] = {
    "flat": FLAT,
    "paged": PAGED,
    "starts": FLAT | {"starts": np.array([2, 0, 1], np.int32)},
    "mask": FLAT | {"mask": np.random.default_rng(3).random((BATCH, 1, QUERIES, SLOTS)) < 0.5},
    "row mask": FLAT | {"mask": np.random.default_rng(3).standard_normal(SLOTS).astype(np.float32)},
    "sink": FLAT | {"sink": np.arange(HEADS, dtype=np.float32)},
}


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("batched", [("q",), ("q", "k", "v"), ("lengths",), ("k",), "all"])
def test_vmap(name: str, batched: Any) -> None:
    given = EXTRAS[name]
    # Tables and lengths of other items would not fit each other.
    chosen = [it for it in given if batched == "all" or it in batched]
    if name == "paged":
        chosen = [it for it in chosen if it not in ("lengths", "block_tables")] or ["q"]
    items = {it: stacked(given[it], 7) for it in chosen}
    rest = {it: jnp.asarray(array) for it, array in given.items() if it not in items}
    found = jax.jit(jax.vmap(lambda items: attention(**rest, **items)))(items)
    for item in range(ITEMS):
        wanted = kvscatter.attention(**given | {it: np.asarray(array[item]) for it, array in items.items()})
        assert bits(np.asarray(found[item])) == bits(wanted), item


def test_vmap_of_caches_is_one_call() -> None:
    q, k, v = (jnp.stack([it] * ITEMS, 1) for it in arrays())
    call = jax.jit(jax.vmap(attention, (1, 1, 1, None)))
    text = call.lower(q, k, v, LENGTHS).as_text()
    assert text.count(f"@{ATTENTION_TARGET}") == 1 and "while" not in text
    wanted = attention(*arrays(), LENGTHS)
    assert all(bits(np.asarray(it)) == bits(np.asarray(wanted)) for it in call(q, k, v, LENGTHS))


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"causal": False, "window": 3, "softcap": 2.0, "scale": 0.3}),
    ({}, {"mode": "circular", "window": 5}),
    ({"starts": [3, 0, 1]}, {}),
    ({"sink": np.arange(HEADS, dtype=np.float32)}, {}),
    ({"mask": np.random.default_rng(3).standard_normal((HEADS, 1, SLOTS - 2)).astype(np.float32)}, {}),
    ({"mask": np.random.default_rng(3).random((QUERIES, SLOTS)) < 0.6}, {}),
]


@pytest.mark.parametrize(("operands", "options"), OPTIONS)
def test_derivatives(operands: dict[str, Any], options: dict[str, Any]) -> None:
    given = {name: jnp.asarray(it) for name, it in operands.items()}
    reals = {it: given.pop(it) for it in list(given) if jnp.issubdtype(given[it].dtype, jnp.floating)}

    def call(q: jax.Array, k: jax.Array, v: jax.Array, reals: dict[str, jax.Array]) -> jax.Array:
        return attention(q, k, v, LENGTHS, **given, **reals, **options)

    check_grads(jax.jit(call), (*arrays(), reals), order=1, rtol=2e-2, atol=2e-2)


def test_second_derivatives() -> None:
    q, k, v = (it[:1, :, :2, :3] for it in arrays())

    def by_jax(q: jax.Array) -> jax.Array:
        turned = (it.swapaxes(1, 2) for it in (q, k, v))
        return jax.nn.dot_product_attention(*turned, is_causal=True).swapaxes(1, 2)

    found, wanted = (jax.jit(jax.hessian(it))(q) for it in (lambda q: attention(q, k, v), by_jax))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(wanted).max() > 0.01


def test_derivatives_of_paged_caches_and_codes() -> None:
    given = {name: jnp.asarray(it) for name, it in PAGED.items()}
    lengths, tables = given.pop("lengths"), given.pop("block_tables")

    def paged(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention(q, k, v, lengths, block_tables=tables)

    check_grads(jax.jit(paged), tuple(given.values()), order=1, rtol=2e-2, atol=2e-2)
    q, k, v = arrays()
    codes = [(it * 50).astype(jnp.int8) for it in (k, v)]

    def of_codes(q: jax.Array, *scales: jax.Array) -> jax.Array:
        return attention(q, *codes, LENGTHS, k_scale=scales[0], v_scale=scales[1])

    for shapes in ((k.shape[:3], v.shape[:3]), ((KV_HEADS, SIZE), (KV_HEADS, SIZE + 1))):
        check_grads(
            jax.jit(of_codes), (q, *(jnp.full(it, 0.02) for it in shapes)), order=1, rtol=2e-2, atol=2e-2
        )


def test_gradients_are_those_of_jax() -> None:
    q, k, v = arrays()

    def of(call: Callable[..., jax.Array]) -> Any:
        return jax.jit(jax.grad(lambda *them: (call(*them) ** 2).sum(), (0, 1, 2)))(q, k, v[..., :SIZE])

    def by_jax(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        own = LENGTHS[:, None] - QUERIES + np.arange(QUERIES)
        mask = (np.arange(SLOTS) <= own[..., None])[:, None]
        turned = (it.swapaxes(1, 2) for it in (q, k, v))
        result = jax.nn.dot_product_attention(*turned, mask=mask).swapaxes(1, 2)
        return jnp.where(own[:, None, :, None] >= 0, result, 0)

    for found, wanted in zip(of(lambda *them: attention(*them, LENGTHS)), of(by_jax), strict=True):
        np.testing.assert_allclose(found[::2], wanted[::2], atol=2e-5)
        # The sample without tokens sees nothing.
        assert not np.asarray(found)[1].any()


def test_hidden_slots_have_no_gradient() -> None:
    q, k, v = arrays()
    hidden = np.arange(SLOTS)[:, None] >= LENGTHS[:, None, None, None]
    k, v = (jnp.where(hidden, jnp.nan, it) for it in (k, v))
    gradient = jax.grad(lambda *them: attention(*them, LENGTHS).sum(), (0, 1, 2))
    found = [np.asarray(it) for it in jax.jit(gradient)(q, k, v)]
    assert all(np.isfinite(it).all() for it in found)
    assert not np.where(hidden, found[1], 0).any() and found[1].any()
    items = jax.jit(jax.vmap(gradient, (0, None, None)))(jnp.stack([q, q]), k, v)
    np.testing.assert_allclose(items[0][1], found[0], atol=1e-6)


def test_sizes_of_zero() -> None:
    q, k, v = arrays()
    assert attention(q[:0], k[:0], v[:0], LENGTHS[:0]).shape == (0, HEADS, QUERIES, SIZE + 1)
    assert attention(q[:, :, :0], k, v).shape == (BATCH, HEADS, 0, SIZE + 1)
    assert not attention(q, k[:, :, :0], v[:, :, :0]).any()
    assert jax.vmap(attention)(q[None, :0], k[None, :0], v[None, :0]).shape[1] == 0
    gradient = jax.jit(jax.grad(lambda q: attention(q, k[:, :, :0], v[:, :, :0]).sum()))(q)
    assert not gradient.any()


# ── devices and programs ────────────────────────────────────────────────────────────────────────────────────────


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:2]), ("x",))


@pytest.mark.parametrize("checks", [False, True])
def test_shard_map_over_heads(checks: bool) -> None:
    heads = P(None, "x")
    call = jax.shard_map(
        attention, mesh=mesh(), in_specs=(heads, heads, heads, P()), out_specs=heads, check_vma=checks
    )
    wanted = attention(*arrays(), LENGTHS)
    assert bits(np.asarray(jax.jit(call)(*arrays(), jnp.asarray(LENGTHS)))) == bits(np.asarray(wanted))


SHARDED = [
    P("x"),
    P(None, "x"),
    P("y", "x"),
    P(("x", "y")),
    P(None, None, "x"),
    P(None, None, None, "x"),
    P(),
]


@pytest.mark.parametrize("spec", SHARDED)
@pytest.mark.parametrize("name", EXTRAS)
def test_sharded_queries_and_caches(spec: P, name: str) -> None:
    """Samples and heads are computed where they are. The other dimensions are gathered."""
    given = {it: jnp.asarray(array) for it, array in EXTRAS[name].items()}
    given["v"] = given["v"][..., :SIZE]
    for it in ("q", "k", "v", "mask", "starts", "lengths", "block_tables"):
        # 3 samples become 4.
        if it in given and given[it].shape[0] == BATCH:
            given[it] = jnp.concatenate([given[it], given[it][:1]])
    wanted = kvscatter.attention(**{it: np.asarray(array) for it, array in given.items()})
    of = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    places = {"q": spec, "k": spec, "v": spec}
    if name == "paged":
        places = {it: P(None, *spec[1:]) if it != "q" else spec for it in places}
    placed = {it: jax.device_put(given[it], NamedSharding(of, place)) for it, place in places.items()}
    call = jax.jit(lambda operands: attention(**operands))
    assert bits(np.asarray(call(given | placed))) == bits(wanted)
    text = call.lower(given | placed).compile().as_text()
    moves = re.findall("all-gather|all-reduce|all-to-all|collective-permute", text)
    assert not moves or len(spec) > 2, text


def test_sharded_samples_and_heads_that_do_not_divide_evenly() -> None:
    q, k, v = arrays()
    wanted = attention(q, k, v, LENGTHS)

    @jax.jit
    def call(q: jax.Array, k: jax.Array) -> jax.Array:
        q = jax.lax.with_sharding_constraint(q, NamedSharding(mesh(), P("x")))
        return attention(q, k, v, LENGTHS)

    assert bits(np.asarray(call(q, k))) == bits(np.asarray(wanted))
    of = Mesh(np.array(jax.devices()), ("x",))
    placed = jax.device_put(
        q, NamedSharding(of, P(None, "x"))
    )  # a query head on each device, for 2 heads of keys
    assert bits(np.asarray(jax.jit(attention)(placed, k, v, LENGTHS))) == bits(np.asarray(wanted))


def test_export() -> None:
    allowed = [export.DisabledSafetyCheck.custom_call(ATTENTION_TARGET)]
    program = export.export(jax.jit(attention), disabled_checks=allowed)(*arrays(), LENGTHS)
    again = export.deserialize(program.serialize())
    wanted = np.asarray(attention(*arrays(), LENGTHS))
    assert bits(np.asarray(again.call(*arrays(), LENGTHS))) == bits(wanted)
    batch, slots = export.symbolic_shape("batch, slots")
    shapes = [
        (batch, *arrays()[0].shape[1:]),
        *((batch, KV_HEADS, slots, it.shape[3]) for it in arrays()[1:]),
    ]
    operands = [
        *(jax.ShapeDtypeStruct(it, jnp.float32) for it in shapes),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
    ]
    symbolic = export.export(jax.jit(attention), disabled_checks=allowed)(*operands)
    assert bits(np.asarray(symbolic.call(*arrays(), LENGTHS))) == bits(wanted)


@pytest.mark.parametrize("windows", [[None], [4]])
def test_a_decoder_with_a_cache_of_jax(windows: list[int | None]) -> None:
    """A linear layer, or a ring."""
    cache = KvCache.zeros(windows, batch=2, capacity=16, heads=2, head_size=4, chunk=2)
    rng = np.random.default_rng(6)

    @jax.jit
    def step(cache: KvCache, rows: jax.Array) -> tuple[KvCache, jax.Array, jax.Array]:
        cache = cache.write(0, rows, rows * 2)
        layer, count = cache.layers[0], rows.shape[1]
        result = attention(
            rows,
            layer.keys,
            layer.values,
            cache.lengths + count,
            window=layer.window,
            mode="circular" if layer.is_ring else "linear",
            layout="bshd",
        )
        by_jax = jax.nn.dot_product_attention(rows, layer.keys, layer.values, mask=cache.visible(0, count))
        return cache.advance(count), result, by_jax

    for count in (2, 1, 1, 2, 1, 2, 2):
        cache, found, wanted = step(cache, jnp.asarray(rng.standard_normal((2, count, 2, 4)), jnp.float32))
        np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_a_program_for_cuda_makes_the_call_that_fails_with_a_message() -> None:
    allowed = [export.DisabledSafetyCheck.custom_call(ATTENTION_TARGET)]
    program = export.export(jax.jit(attention), disabled_checks=allowed, platforms=["cuda"])(
        *arrays(), LENGTHS
    )
    assert f"@{ATTENTION_TARGET}" in program.mlir_module()
