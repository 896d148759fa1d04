"""Attention over a cache: checks what JAX knows when it traces a program, and makes the call.

As for the write, a ``custom_jvp`` composes derivatives of JAX's own operations, and a ``custom_vmap`` makes the items
of ``vmap`` more samples of one call. A ``custom_partitioning`` lets each device compute its own samples and heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.export import is_symbolic_dim
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from kvscatter import _native, errors
from kvscatter._typing import AttentionLayout, Mode
from kvscatter.jax._scatter import Integers, integers
from kvscatter.jax._write import as_samples, check_implicit, placement, varying_like

ATTENTION_TARGET: Final = "kvscatter_attention"
"""The name of the custom call of `attention`, for the list of calls that ``jax.export`` allows."""

FLOATS: Final = ("float32", "float16", "bfloat16")

for _platform, _handler in _native.xla_attention_handlers().items():
    jax.ffi.register_ffi_target(ATTENTION_TARGET, _handler, platform=_platform)


class Options(NamedTuple):
    """The attributes of a call."""

    causal: bool
    window: int | None
    scale: float | None
    softcap: float
    mode: Mode
    layout: AttentionLayout


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    lengths: Integers | None = None,
    *,
    starts: Integers | None = None,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    mask: ArrayLike | None = None,
    sink: ArrayLike | None = None,
    mode: Mode = "linear",
    layout: AttentionLayout = "bhsd",
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    block_tables: ArrayLike | None = None,
) -> jax.Array:
    """Computes attention of queries over the slots of a cache that contain tokens, and reads no others.

    The arguments are those of ``kvscatter.attention``, and on the CPU the result has the same bits. On other devices
    the program ends with an error. Derivatives are computed by JAX's own operations, which need memory for a score of
    each query and slot.

    Args:
        q: Queries ``[B, H, S, D]`` of float32, float16 or bfloat16.
        k: Keys ``[B, Hkv, C, D]``, where ``Hkv`` divides ``H``, of one of these types, or int8 codes. With
            ``block_tables``, blocks ``[blocks, Hkv, block_size, D]``.
        v: Values ``[B, Hkv, C, Dv]``, of the type of the keys. With ``block_tables``, blocks like those of the keys.
        lengths: The number of tokens of each sample, with the new ones, ``[B]``. The default is that every slot
            contains a token.
        starts: The position of each sample's first token after padding on the left, ``[B]``. The default is 0.
        causal: Whether a query sees no position after its own.
        window: The number of positions that a query sees, its own included. The default is all.
        scale: The factor of the products of queries and keys. The default is ``D ** -0.5``.
        softcap: A score ``s`` becomes ``softcap * tanh(s / softcap)``. 0 means no cap.
        mask: Booleans, or numbers of the type of the queries, whose shape broadcasts to ``[B, H, S, C]``, except the
            last dimension, which may be shorter.
        sink: The score of a sink of each query head, ``[H]``, of the type of the queries.
        mode: ``"linear"``, or ``"circular"`` for rings, in which position ``p`` is in slot ``p % C``.
        layout: ``"bhsd"``, or ``"bshd"`` if queries, keys, values and the result have the heads after the sequence, as
            in ``jax.nn.dot_product_attention``.
        k_scale, v_scale: The scales of int8 codes, of float32: one for each row, ``[B, Hkv, C]`` or
            ``[blocks, Hkv, block_size]``, or one for each element of a head, ``[Hkv, D]``.
        block_tables: The blocks of each sample, integers ``[B, max_blocks]``.

    Returns:
        ``[B, H, S, Dv]`` in the layout and the type of the queries.

    Raises:
        ElementTypeError: A type is not supported, or types do not fit each other.
        ShapeError: Shapes do not fit each other.
        OptionError: An argument is out of range, or arguments cannot be combined.
        jax.errors.JaxRuntimeError: A length exceeds the cache, a start is negative, or a block does not exist. JAX runs
            programs asynchronously, and raises the error when a result is used. Some versions raise ValueError.

    >>> import jax, jax.numpy as jnp, kvscatter.jax
    >>> q, k = jnp.ones((2, 1, 1, 4)), jnp.ones((2, 1, 8, 4))
    >>> v = jnp.zeros((2, 1, 8, 4)) + jnp.arange(8.0)[:, None]
    >>> jax.jit(kvscatter.jax.attention)(q, k, v, jnp.array([1, 5]))[:, 0, 0, 0]
    Array([0., 2.], dtype=float32)
    """
    operands = {"q": _array(q, "q"), "k": _array(k, "k"), "v": _array(v, "v")}
    for argument, operand in operands.items():
        if operand.ndim != 4:
            message = f"{argument} has {operand.ndim} dimensions, must have 4"
            raise errors.ShapeError(message, "rank", argument, rank=operand.ndim)
    optional = {"mask": mask, "sink": sink, "k_scale": k_scale, "v_scale": v_scale}
    given = {argument: _array(value, argument) for argument, value in optional.items() if value is not None}
    if block_tables is not None:
        given["block_tables"] = _tables(block_tables)
    _check_types(operands | given)
    options = Options(bool(causal), window, scale, softcap, mode, layout)
    _check_shapes(operands, given, options)
    batch = operands["q"].shape[0]
    if lengths is None:
        slots = operands["k"].shape[2 if layout == "bhsd" else 1]
        if "block_tables" in given:
            slots *= given["block_tables"].shape[1]
        lengths = jnp.full(batch, slots, jnp.int32)
    operands["lengths"] = _numbers(lengths, "lengths", batch)
    if starts is not None:
        given["starts"] = _numbers(starts, "starts", batch)
    return attend(tuple(given), options)(*operands.values(), *given.values())


def _array(value: ArrayLike, argument: str) -> jax.Array:
    array = jnp.asarray(value)
    check_implicit(argument, array)
    return array


def _numbers(values: Integers, argument: str, batch: Any) -> jax.Array:
    array = integers(values, argument)
    count = array.shape[0]
    if not (is_symbolic_dim(count) or is_symbolic_dim(batch)) and count != batch:
        message = f"{argument} has {count} elements, must have {batch}"
        raise errors.ShapeError(message, "list_length", argument, got=count, expected=batch)
    # Only numbers that no cache has become negative, which is an error too.
    kinds = {"uint32": jnp.int32, "uint64": jnp.int64}
    return array.astype(kinds.get(array.dtype.name, array.dtype))


def _tables(values: ArrayLike) -> jax.Array:
    tables = _array(values, "block_tables")
    if not jnp.issubdtype(tables.dtype, jnp.integer):
        message = f"block_tables holds {tables.dtype}: must hold integers"
        raise errors.ElementTypeError(message, "not_integers", "block_tables")
    # A number that does not fit is no block.
    most = np.iinfo(np.int32).max
    if tables.dtype.itemsize > 4 or tables.dtype == jnp.uint32:
        tables = jnp.where((tables >= 0) & (tables <= most), tables, jnp.asarray(-1).astype(tables.dtype))
    return tables.astype(jnp.int32)


def _check_types(operands: dict[str, jax.Array]) -> None:
    names = {argument: operand.dtype.name for argument, operand in operands.items()}
    for argument, accepted in (("q", FLOATS), ("k", (*FLOATS, "int8"))):
        if names[argument] not in accepted:
            message = f"{argument} has dtype {names[argument]}, must have one of {', '.join(accepted)}"
            raise errors.ElementTypeError(message, "element_type", argument, element=names[argument])
    wanted = {"v": names["k"], "sink": names["q"], "k_scale": "float32", "v_scale": "float32"}
    if names.get("mask") != "bool":
        wanted["mask"] = names["q"]
    for argument, expected in wanted.items():
        if (got := names.get(argument, expected)) != expected:
            message = f"{argument} is {got}, must be {expected}"
            raise errors.ElementTypeError(message, "element_type_mismatch", argument, element=got)


def _check_shapes(operands: dict[str, jax.Array], given: dict[str, jax.Array], options: Options) -> None:
    q, k, v = operands.values()
    if ("k_scale" in given) != ("v_scale" in given):
        argument = "v_scale" if "k_scale" in given else "k_scale"
        raise errors.OptionError(
            f"{argument} is missing: codes need k_scale and v_scale", "scale_missing", argument
        )
    if (k.dtype == jnp.int8) != ("k_scale" in given):
        message = f"k_scale must be {'given' if k.dtype == jnp.int8 else 'absent'}"
        raise errors.OptionError(message, "combination", "k_scale")
    shapes = [it.shape for it in (*operands.values(), *given.values())]
    if any(is_symbolic_dim(size) for shape in shapes for size in shape):
        # The call checks these shapes when the program runs.
        return
    mask, tables = given.get("mask"), given.get("block_tables")
    all_shapes = (
        q.shape,
        k.shape,
        v.shape,
        None if mask is None else mask.shape,
        None if tables is None else tables.shape,
    )
    _native.xla_check_attention((q.dtype.name, k.dtype.name), all_shapes, "sink" in given, *options)
    heads = 1 if options.layout == "bhsd" else 2
    expected: dict[str, list[tuple[int, ...]]] = {"sink": [(q.shape[heads],)]}
    for argument, cached in (("k_scale", k), ("v_scale", v)):
        by_row = cached.shape[0], cached.shape[heads], cached.shape[3 - heads]
        expected[argument] = [by_row, (cached.shape[heads], cached.shape[3])]
    if tables is not None:
        expected["block_tables"] = [(q.shape[0], tables.shape[1])]
    for argument, accepted in expected.items():
        if argument in given and given[argument].shape not in accepted:
            got = given[argument].shape
            message = f"{argument} has shape {got}, must have {' or '.join(map(str, accepted))}"
            raise errors.ShapeError(message, "dimension_mismatch", argument)


@cache
def attend(names: tuple[str, ...], options: Options) -> Callable[..., jax.Array]:
    """Returns the function of queries, keys, values, lengths, and of the operands with these names."""

    @custom_vmap
    def batchable(*operands: jax.Array) -> jax.Array:
        return _on_devices(names, options, *operands)

    @batchable.def_vmap
    def batching_rule(items: int, is_batched: list[bool], *operands: jax.Array) -> tuple[jax.Array, bool]:
        all_names = ("q", "k", "v", "lengths", *names)
        folded = _folded(
            dict(zip(all_names, operands, strict=True)), dict(zip(all_names, is_batched, strict=True)), items
        )
        if folded is not None:
            result = differentiable(*folded)
            return result.reshape(items, result.shape[0] // items if items else 0, *result.shape[1:]), True

        def one(batched: Sequence[jax.Array]) -> jax.Array:
            rest = iter(batched)
            each = (next(rest) if it else operand for operand, it in zip(operands, is_batched, strict=True))
            result: jax.Array = differentiable(*each)
            return result

        batched = [operand for operand, it in zip(operands, is_batched, strict=True) if it]
        return jax.lax.map(one, batched), True

    @jax.custom_jvp
    def differentiable(*operands: jax.Array) -> jax.Array:
        result: jax.Array = batchable(*operands)
        return result

    @differentiable.defjvp
    def with_tangents(
        primals: Sequence[jax.Array], tangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        _, tangent = jax.jvp(partial(_composed, names, options), tuple(primals), tuple(tangents))
        return differentiable(*primals), tangent

    return differentiable


def _call(names: tuple[str, ...], options: Options, *operands: jax.Array) -> jax.Array:
    q, _, v = operands[:3]
    result = jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype)
    scale = {} if options.scale is None else {"scale": np.float32(options.scale)}
    found: jax.Array = jax.ffi.ffi_call(ATTENTION_TARGET, result)(
        *operands,
        operands=" ".join(names),
        causal=options.causal,
        window=np.int64(options.window or 0),
        softcap=np.float32(options.softcap or 0),
        mode=options.mode,
        layout=options.layout,
        **scale,
    )
    return found


def _on_devices(names: tuple[str, ...], options: Options, *operands: jax.Array) -> jax.Array:
    """Makes the call on each device with a part of the samples and of the heads."""
    shapes = tuple(operand.shape for operand in operands)
    if any(is_symbolic_dim(size) or size == 0 for shape in shapes for size in shape):
        return varying_like(_call(names, options, *operands), operands)
    result: jax.Array = _partitioned(names, options, shapes)(*operands)
    return varying_like(result, operands)


@cache
def _partitioned(
    names: tuple[str, ...], options: Options, shapes: tuple[tuple[int, ...], ...]
) -> Callable[..., jax.Array]:
    """Returns the call with its rule for devices: queries may be sharded along the samples and the heads.

    The other operands follow the queries, and XLA moves what is elsewhere.
    """
    dims = _dimensions(names, options, shapes)
    heads = 1 if options.layout == "bhsd" else 2
    query_heads, kv_heads = shapes[0][heads], shapes[1][heads]
    local = partial(_call, names, options)

    def placements(mesh: Mesh, operands: Any) -> list[NamedSharding]:
        spec = placement(operands[0])
        axes = {"b": spec[0], "h": spec[heads]}
        for dim, size in (("b", shapes[0][0]), ("h", kv_heads)):
            of_dim = axes[dim]
            used = of_dim if isinstance(of_dim, tuple) else () if of_dim is None else (of_dim,)
            # A device would get samples that do not exist, or a part of a group.
            if size % math.prod(mesh.shape[name] for name in used):
                axes[dim] = None
        axes["n"] = axes["h"]
        return [NamedSharding(mesh, PartitionSpec(*(axes.get(dim) for dim in of))) for of in dims]

    def partition(mesh: Mesh, operands: Any, _: Any) -> tuple[Mesh, Any, Any, Any]:
        placed = placements(mesh, operands)
        return mesh, local, placed[0], tuple(placed)

    def infer(mesh: Mesh, operands: Any, _: Any) -> NamedSharding:
        return placements(mesh, operands)[0]

    def whole(*operands: jax.Array) -> jax.Array:
        return local(*operands)

    group = query_heads // kv_heads
    in_rule = {"h": "n" if group == 1 else "(n g)"}
    operands = [" ".join(in_rule.get(dim, dim) for dim in of) for of in dims]
    result = " ".join(in_rule.get(dim, dim) for dim in (*dims[0][:3], "e"))
    call = custom_partitioning(whole)
    sizes: dict[str, Any] = {} if group == 1 else {"g": group}
    rule = f"{', '.join(operands)} -> {result}"
    call.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule, **sizes)
    return call


def _dimensions(
    names: tuple[str, ...], options: Options, shapes: tuple[tuple[int, ...], ...]
) -> list[tuple[str, ...]]:
    """Names the dimensions of each operand. Those with one name have one size: ``b`` for samples, ``h`` for heads of
    queries, and ``n`` for heads of keys."""
    is_paged = "block_tables" in names
    samples, rows = ("blocks", "offsets") if is_paged else ("b", "c")

    def ordered(a: str, b: str, c: str, d: str) -> tuple[str, ...]:
        return (a, b, c, d) if options.layout == "bhsd" else (a, c, b, d)

    dims = [ordered("b", "h", "s", "d"), *(ordered(samples, "n", rows, size) for size in "de"), ("b",)]
    sizes = dict(zip(dims[0], shapes[0], strict=True))
    for name, shape in zip(names, shapes[4:], strict=True):
        if name == "mask":
            full = ("b", "h", "s", "")[4 - len(shape) :]
            # A dimension of size 1 is repeated, and the last one may be shorter than the cache.
            named = enumerate(zip(full, shape, strict=True))
            dims.append(
                tuple(dim if size > 1 and sizes.get(dim) == size else f"m{at}" for at, (dim, size) in named)
            )
        elif name in ("k_scale", "v_scale"):
            size = "d" if name == "k_scale" else "e"
            dims.append((samples, "n", rows) if len(shape) == 3 else ("n", size))
        else:
            dims.append({"starts": ("b",), "sink": ("h",), "block_tables": ("b", "t")}[name])
    return dims


def _folded(
    operands: dict[str, jax.Array], is_batched: dict[str, bool], items: int
) -> list[jax.Array] | None:
    """Makes the items of vmap more samples of one call. Returns None if each item needs one call: the operand
    belongs to all samples of a call, or the caches of all samples would be copied for each item."""
    has_tables = "block_tables" in operands
    caches = ["k", "v", *(name for name in ("k_scale", "v_scale") if name in operands)]
    if is_batched.get("sink") or any(operands[name].ndim - is_batched[name] == 2 for name in caches[2:]):
        return None
    is_shared = not any(is_batched[name] for name in caches)
    if not has_tables and not all(is_batched[name] for name in caches):
        return None
    folded = {}
    batch = operands["q"].shape[is_batched["q"]]
    for name, operand in operands.items():
        if (name in caches and is_shared) or name == "sink":
            folded[name] = operand
        elif name == "mask":
            folded[name] = _folded_mask(operand, is_batched[name], items, batch)
        elif name != "block_tables":
            folded[name] = as_samples(operand, is_batched[name], items)
    if has_tables:
        tables = operands["block_tables"]
        if not is_batched["block_tables"]:
            tables = jnp.broadcast_to(tables, (items, *tables.shape))
        if not is_shared:
            blocks = operands["k"].shape[is_batched["k"]]
            first = blocks * jnp.arange(items, dtype=jnp.int32)[:, None, None]
            # A block that does not exist must not become one of another item.
            tables = jnp.where((tables >= 0) & (tables < blocks), tables + first, -1)
        folded["block_tables"] = tables.reshape(-1, tables.shape[-1])
    return [folded[name] for name in operands]


def _folded_mask(mask: jax.Array, is_batched: bool, items: int, batch: int) -> jax.Array:
    shape = mask.shape[is_batched:]
    shape = (1,) * (4 - len(shape)) + shape
    if not is_batched and shape[0] == 1:
        return mask
    mask = mask.reshape(items if is_batched else 1, *shape)
    return jnp.broadcast_to(mask, (items, batch, *shape[1:])).reshape(items * batch, *shape[1:])


def _composed(names: tuple[str, ...], options: Options, *operands: jax.Array) -> jax.Array:
    """Computes the result by operations whose derivatives JAX knows, in float32."""
    q, k, v, lengths = operands[:4]
    given = dict(zip(names, operands[4:], strict=True))
    if options.layout == "bshd":
        q, k, v = (operand.swapaxes(1, 2) for operand in (q, k, v))
    k, v = (_rows(rows, given.get(name)) for rows, name in ((k, "k_scale"), (v, "v_scale")))
    if "block_tables" in given:
        k, v = (_of_samples(rows, given["block_tables"]) for rows in (k, v))
    (batch, heads, queries, size), (_, kv_heads, slots, _) = q.shape, k.shape
    group = heads // max(kv_heads, 1)

    def grouped(array: jax.Array) -> jax.Array:
        shape = array.shape[1] if array.shape[1] == 1 else kv_heads, 1 if array.shape[1] == 1 else group
        return array.reshape(array.shape[0], *shape, *array.shape[2:])

    seen, bias = _seen(given, options, lengths, queries, slots, q.dtype)
    seen, bias = grouped(seen), grouped(bias)
    # Gradients multiply what no query sees with 0, which gives NaN if it is NaN.
    is_used = jnp.broadcast_to(seen, (batch, kv_heads, group, queries, slots)).any((2, 3))[..., None]
    k, v = (jnp.where(is_used, rows, 0) for rows in (k, v))
    scale = options.scale if options.scale is not None else max(size, 1) ** -0.5
    scores = (
        jnp.einsum(
            "bngsd,bncd->bngsc", grouped(q).astype(jnp.float32), k, precision=jax.lax.Precision.HIGHEST
        )
        * scale
    )
    if options.softcap:
        scores = jnp.tanh(scores / options.softcap) * options.softcap
    lowest = _lowest(q.dtype)
    # The lowest number absorbs the score.
    scores = jnp.where(bias <= lowest, 0, scores + jnp.where(bias <= lowest, 0, bias))
    highest = jnp.max(jnp.where(seen, scores, -jnp.inf), -1, initial=-jnp.inf)
    sink = None
    if "sink" in given:
        sink = given["sink"].astype(jnp.float32).reshape(kv_heads, group, 1)
        highest = jnp.maximum(highest, sink)
    highest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0))[..., None]
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, scores, highest) - highest), 0)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total += jnp.exp(sink[..., None] - highest)
    weights /= jnp.where(total == 0, 1, total)
    result = jnp.einsum("bngsc,bnce->bngse", weights, v, precision=jax.lax.Precision.HIGHEST)
    result = result.reshape(batch, heads, queries, v.shape[3]).astype(q.dtype)
    return result.swapaxes(1, 2) if options.layout == "bshd" else result


def _lowest(dtype: Any) -> Any:
    """Returns the lowest finite number of a type."""
    return np.nextafter(np.array(-np.inf, dtype), np.array(0, dtype))


def _rows(rows: jax.Array, scale: jax.Array | None) -> jax.Array:
    rows = rows.astype(jnp.float32)
    if scale is None:
        return rows
    return rows * (scale[:, None, :] if scale.ndim == 2 else scale[..., None])


def _of_samples(blocks: jax.Array, tables: jax.Array) -> jax.Array:
    """Returns the slots of each sample, in the order of their positions."""
    rows = jnp.take(blocks, tables, axis=0, mode="clip").swapaxes(1, 2)
    return rows.reshape(*rows.shape[:2], rows.shape[2] * rows.shape[3], rows.shape[4])


def _seen(
    given: dict[str, jax.Array], options: Options, lengths: jax.Array, queries: int, slots: int, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns which slots have an influence on each query, and what is added to their scores. Both broadcast to
    ``[B, H, S, C]``."""
    last = lengths[:, None, None, None] - 1
    positions = jnp.arange(slots, dtype=lengths.dtype)
    if options.mode == "circular":
        positions = last - (last - positions) % max(slots, 1)
    own = last + 1 - queries + jnp.arange(queries, dtype=lengths.dtype)[:, None]
    starts = given["starts"][:, None, None, None] if "starts" in given else 0
    seen = (positions >= starts) & (positions >= 0) & (positions <= last)
    if options.causal:
        seen &= positions <= own
    if options.window is not None:
        seen &= own - positions < options.window
    seen = jnp.broadcast_to(seen, (lengths.shape[0], 1, queries, slots))
    if "mask" not in given:
        return seen, jnp.zeros((1, 1, 1, 1), jnp.float32)
    mask = given["mask"]
    hidden: Any = False if mask.dtype == jnp.bool_ else -jnp.inf
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    mask = jnp.pad(mask, [(0, 0)] * 3 + [(0, slots - mask.shape[3])], constant_values=hidden)
    if mask.dtype == jnp.bool_:
        return seen & mask, jnp.zeros((1, 1, 1, 1), jnp.float32)
    seen &= mask != -jnp.inf
    is_lowest = mask <= _lowest(dtype)
    seen &= ~is_lowest | ~(seen & ~is_lowest).any(-1, keepdims=True)
    return seen, mask.astype(jnp.float32)
