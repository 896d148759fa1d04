"""Arrays of other libraries, mostly JAX, are read without a copy and are never written if they are
immutable."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvscatter
import support

refused = partial(support.refused, of=kvscatter.ArrayError)


class Producer:
    """A NumPy array that only has the method ``__dlpack__``."""

    def __init__(
        self, array: Any, *, device: tuple[int, int] = (1, 0), unknown: Collection[str] = ()
    ) -> None:
        self.array, self.device, self.unknown, self.copies = array, device, unknown, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **keywords: Any) -> Any:
        if not keywords.keys().isdisjoint(self.unknown):
            raise TypeError("unexpected keyword")
        self.copies.append(keywords.get("copy"))
        return self.array.__dlpack__(**keywords)


def test_jax_arrays_are_updates_and_indices() -> None:
    cache = np.zeros((2, 4, 2), np.float32)
    update = jnp.arange(4.0).reshape(2, 1, 2) + 1
    write = kvscatter.prepare(cache, update)
    for call in (kvscatter.tensor_scatter_, write):
        cache[...] = 0
        assert call(cache, update, jnp.array([3, 1])) == 0
        assert cache[0, 3].tolist() == [1, 2]
        assert cache[1, 1].tolist() == [3, 4]
        assert np.count_nonzero(cache) == 4


def test_tracers_have_no_memory() -> None:
    past, update, starts = jnp.zeros((2, 4, 2)), jnp.ones((2, 1, 2)), jnp.array([1, 2])
    for transform in (jax.jit, jax.vmap):
        for place, argument in enumerate(("past_cache", "update", "write_indices")):

            def write(traced: Any, place: int = place) -> Any:
                given: list[Any] = [past, update, starts]
                given[place] = traced
                return kvscatter.tensor_scatter(*given)

            call = partial(transform(write), (past, update, starts)[place])
            error = support.refused("no_memory", argument, call, of=kvscatter.ArrayError)
            assert "a tracer, and kvscatter works outside of jit" in str(error)
    error = support.refused("no_memory", "cache", jax.jit(kvscatter.tensor_scatter_), past, update)
    assert "tracer" in str(error)


def test_jax_arrays_are_never_caches() -> None:
    cache, update = jnp.zeros((2, 4, 2)), np.ones((2, 1, 2), np.float32)
    write = kvscatter.prepare(cache, update)
    for call in (
        lambda: kvscatter.tensor_scatter_(cache, update, [0, 0]),
        lambda: write(cache, update, [0, 0]),
        lambda: kvscatter.write_many([(cache, update)], [0, 0]),
    ):
        assert "tensor_scatter" in str(refused("immutable", "cache", call))
    refused("immutable", "cache", kvscatter.kv_cache_update_, cache[:, None], update[:, None], [0, 0])
    past = np.zeros((2, 4, 2), np.float32)
    error = refused("immutable", "out", kvscatter.tensor_scatter, past, update, [0, 0], out=cache)
    assert str(error) == "out is a JAX array, which is immutable: omit out to get a new array"
    assert not cache.any()


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int8", "bool", "complex64"]
)
def test_jax_in_jax_out(dtype: str) -> None:
    past, update = jnp.zeros((2, 4, 2), dtype), jnp.ones((2, 1, 2), dtype)
    present = kvscatter.tensor_scatter(past, update, jnp.array([3, 1]))
    assert isinstance(present, jax.Array)
    assert (present.dtype, present.shape) == (past.dtype, past.shape)
    expected = past.at[0, 3].set(update[0, 0]).at[1, 1].set(update[1, 0])
    assert (present == expected).all()
    assert not past.astype(bool).any()
    assert (jax.jit(lambda x: x + x)(present).astype(bool) == expected.astype(bool)).all()


def test_a_jax_array_keeps_its_memory() -> None:
    present = kvscatter.tensor_scatter(jnp.zeros((1, 1 << 20)), jnp.ones((1, 1)), [5], axis=1)
    for _ in range(5):
        kvscatter.tensor_scatter(jnp.ones((1, 1 << 20)), jnp.ones((1, 1)), [5], axis=1)
    assert np.flatnonzero(np.asarray(present)).tolist() == [5]


@pytest.mark.parametrize(
    ("unknown", "copy"), [((), False), (("copy",), None), (("copy", "max_version"), None)]
)
def test_any_producer_is_written_in_place_and_never_asked_for_a_copy(unknown: Any, copy: Any) -> None:
    memory = np.zeros((2, 8, 3), np.float64)
    cache = Producer(memory[:, ::2, 1:], unknown=unknown)
    update = Producer(np.ones((2, 1, 2)), unknown=unknown)
    assert kvscatter.tensor_scatter_(cache, update, [0, 3]) == 0
    assert np.argwhere(memory).tolist() == [[0, 0, 1], [0, 0, 2], [1, 6, 1], [1, 6, 2]]
    assert set(cache.copies) == set(update.copies) == {copy}


def test_a_read_only_producer() -> None:
    memory = np.zeros((1, 4, 2))
    memory.setflags(write=False)
    update = np.ones((1, 1, 2))
    for unknown in ((), ("copy",)):
        producer = Producer(memory, unknown=unknown)
        refused("read_only", "cache", kvscatter.tensor_scatter_, producer, update, [0])
    assert kvscatter.tensor_scatter(memory, Producer(update), [0])[0, 0].all()


def test_a_copy_is_no_cache() -> None:
    class Copies(Producer):
        def __dlpack__(self, **keywords: Any) -> Any:
            return super().__dlpack__(**{**keywords, "copy": True})

    memory, update = np.zeros((1, 4, 2)), np.ones((1, 1, 2))
    error = refused("tensor", "cache", kvscatter.tensor_scatter_, Copies(memory), update, [0])
    assert "copy" in str(error)
    assert kvscatter.tensor_scatter_(memory, Copies(update), [3]) == 0
    assert memory[0, 3].all()


@pytest.mark.parametrize(
    ("device", "name"),
    [((2, 1), "cuda:1"), ((13, 0), "cuda:0"), ((10, 0), "rocm:0 (AMD's, which"), ((8, 3), "type 8")],
)
def test_memory_of_other_devices(device: tuple[int, int], name: str) -> None:
    cache = np.zeros((1, 4, 2))
    update = Producer(np.ones((1, 1, 2)), device=device)
    error = refused("device", "update", kvscatter.tensor_scatter_, cache, update, [0])
    assert isinstance(error, kvscatter.DeviceError)
    assert name in str(error)
    assert ("use kvscatter.cuda for arrays on CUDA devices" in str(error)) == name.startswith("cuda")
    assert update.copies == []


def test_a_producer_that_refuses_or_fails() -> None:
    cache = np.zeros((1, 4, 2))

    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise self.error

        def __init__(self, error: BaseException) -> None:
            self.error = error

    error = refused(
        "export", "update", kvscatter.tensor_scatter_, cache, Broken(BufferError("not today\nat all")), [0]
    )
    assert "not today" in str(error)
    with pytest.raises(KeyboardInterrupt):
        kvscatter.tensor_scatter_(cache, Broken(KeyboardInterrupt()), [0])
    for nonsense in (None, 3, "capsule"):
        with pytest.raises((kvscatter.Error, TypeError, ValueError)):
            kvscatter.tensor_scatter_(cache, type("P", (), {
                "__dlpack_device__": lambda self: (1, 0),
                "__dlpack__": lambda self, nonsense=nonsense, **_: nonsense,
            })(), [0])  # fmt: skip
    assert not cache.any()


def test_a_library_without_a_namespace_needs_out() -> None:
    past, update = Producer(np.zeros((1, 4, 2))), np.ones((1, 1, 2))
    error = refused("tensor", "past_cache", kvscatter.tensor_scatter, past, update, [0])
    assert "out" in str(error)
    out = np.empty((1, 4, 2))
    assert kvscatter.tensor_scatter(past, update, [1], out=out) is out
    assert out.sum() == 2


def test_an_exception_of_a_namespace_reaches_the_caller() -> None:
    class Interrupted(Producer):
        def __array_namespace__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kvscatter.tensor_scatter(Interrupted(np.zeros((1, 4, 2))), np.ones((1, 1, 2)), [0])
