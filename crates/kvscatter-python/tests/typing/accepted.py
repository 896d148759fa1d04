"""What type checkers must accept: the calls of the documentation, and their results."""

from pathlib import Path
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import kvscatter
import kvscatter.jax
from kvscatter import cuda, paged, positions, reference, results, ring


def on_numpy(cache: NDArray[np.float16], update: NDArray[np.float16], starts: NDArray[np.int32]) -> None:
    assert_type(kvscatter.tensor_scatter_(cache, update, starts, axis=1, mode="circular"), int)
    assert_type(kvscatter.tensor_scatter(cache, update, [0, 1]), NDArray[np.float16])
    assert_type(kvscatter.tensor_scatter(cache, update, [starts[0], 1]), NDArray[np.float16])
    assert_type(kvscatter.tensor_scatter(cache, update, out=cache), NDArray[np.float16])
    assert_type(kvscatter.write_many([(cache, update), (cache, update)], (0, 1)), int)
    assert_type(kvscatter.kv_cache_update_(cache, update, starts, updateLengths=[0, 1]), int)
    assert_type(kvscatter.kv_cache_operation_(cache, update, 0, starts, [1], out_of_range="skip"), int)


def on_jax(cache: jax.Array, update: jax.Array) -> None:
    assert_type(kvscatter.tensor_scatter(cache, update, jnp.zeros(2, jnp.int32)), jax.Array)


def in_blocks(cache: NDArray[np.float16], rows: NDArray[np.float16], tables: NDArray[np.int32]) -> None:
    slots = paged.slot_mapping(tables, [3, 2], 1, block_size=np.int64(2), num_blocks=4)
    assert_type(slots, NDArray[np.int64])
    assert_type(paged.slot_mapping(tables, slots, [1, 1], block_size=2, num_blocks=4), NDArray[np.int64])
    assert_type(paged.write_([(cache, rows)], slots, layout="bshd", skip_negative=True), int)
    assert_type(kvscatter.attention(rows, cache, cache, [3, 2], block_tables=tables), NDArray[np.float16])


def attention_in_jax(q: jax.Array, cache: jax.Array) -> None:
    assert_type(kvscatter.jax.attention(q, cache, cache, [1, 2], mode="circular", layout="bshd"), jax.Array)


def prepared(cache: NDArray[np.float32], update: NDArray[np.float32]) -> None:
    write = kvscatter.prepare(cache, update, out_of_range="skip")
    assert_type(write, kvscatter.Prepared)
    assert_type(write(cache, update, [1], lengths=[1]), int)
    assert_type(write.many(((cache, update) for _ in range(2)), [1]), int)
    assert_type(write.into(cache, update, cache.copy()), int)
    assert_type(kvscatter.prepare((2, 4, 8), [2, 1, 8], dtype="bfloat16"), kvscatter.Prepared)


def planned() -> None:
    plan = kvscatter.plan((2, 4, 8), (2, 1, 8), [0, 1], dtype=np.float16)
    assert_type(plan.bytes, int | None)
    assert_type(plan.blocks[0].loops[0].count, int)
    assert_type([segment.slot for segment in plan.segments], list[int])
    assert_type(plan.text(width=40) + plan.svg(), str)


def converted(starts: NDArray[np.int64]) -> None:
    assert_type(positions.token_offset(1, rows=2), int)
    assert_type(positions.token_offset(np.int64(1), rows=2), int)
    assert_type(positions.token_offset(3, rows=[2, 1]), NDArray[np.int64])
    assert_type(
        positions.start_from_nonpad_kv_seqlen(3, starts, capacity=8, mode="circular"), NDArray[np.int64]
    )
    assert_type(positions.nonpad_kv_seqlen(starts, rows=2, capacity=8), NDArray[np.int64])


def stepped(starts: NDArray[np.int64]) -> None:
    capacity = ring.least_capacity(8, rows=4, rewind=2, feeding="idle")
    assert_type(capacity, int)
    assert_type(ring.most_rows(capacity, 8, high=3, start=np.int64(3)), int)
    assert_type(ring.most_rows(capacity, 8, 3, starts), NDArray[np.int64])
    assert_type(ring.least_start(capacity, 8, [3, 4]), NDArray[np.int64])
    assert_type(ring.high_after(3, 3, [1, 2]), NDArray[np.int64])


def referred(cache: NDArray[np.float16], update: NDArray[np.float16]) -> None:
    assert_type(reference.tensor_scatter(cache, update, [0, 1], axis=1), NDArray[Any])
    assert_type(reference.answer(reference.tensor_scatter, cache, update, out_of_range="skip").skipped, int)


class OnDevice:
    """An array on a device, of a library without DLPack."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


class Stream:
    """A stream with the attributes of CuPy's streams."""

    ptr = 0


def on_cuda(array: OnDevice, other: jax.Array) -> None:
    write = cuda.prepare([(array, other)], array, lengths=other, mode="circular", skip_all=True, status=array)
    assert_type(write, cuda.Write)
    assert_type(write.status, cuda.Status)
    assert_type(write.status.read(), cuda.StatusWords)
    assert_type(write.status.read().bad_samples, int)
    write.status.check(write.status.read())
    write.status.check(np.array(write.status.array.get()))
    assert_type(write.width, int | None)
    write.launch()
    write.launch(Stream())
    write.status.clear(stream=1)
    assert_type(cuda.prepare_present([(other, other, array)], array, axis=1), cuda.Write)
    assert_type(cuda.prepare_kv_cache_update(((array, array) for _ in range(2)), array, array), cuda.Write)
    assert_type(cuda.prepare_kv_cache_operation([(array, array)], array, array, array), cuda.Write)
    assert_type(cuda.prepare_slots([(array, array)], array), cuda.Write)
    assert_type(cuda.driver_version(), int)


def run(session: kvscatter.KvSession) -> None:
    with kvscatter.KvSession("model.onnx", batch=2, refuse_nan=True, onnxruntime="folder") as opened:
        assert_type(opened, kvscatter.KvSession)
    sample = session.add()
    scores = session.step({sample: [1, np.int64(2)], session.add(): np.array([3])})
    assert_type(scores, kvscatter.Logits)
    assert_type(session.prefill({sample: (1, 2)}, chunk=1).last(sample), NDArray[np.float32])
    assert_type(scores.after(sample, 0), NDArray[np.float32])
    assert_type(session.memory().caches[0].shape, tuple[int, ...])
    assert_type(session.memory().undo, int)
    session.begin(sample)
    assert_type(session.begun(sample), int | None)
    session.accept(sample, 1)
    session.accept_all({sample: 1})
    session.accept_rows(sample, [0, np.int64(2)])
    with session.transaction(sample, *session.samples):
        assert_type(session.tokens(sample), list[int])
    beams = [sample, *session.fork(sample, copies=2)]
    assert_type(session.reorder(beams, np.array([2, 0, 0])), list[kvscatter.Sample])
    assert_type(session.reorder((sample,), [0]), list[kvscatter.Sample])
    assert_type(kvscatter.generate("model.onnx", [[1], np.array([2])], 8, eos=[0]).samples, list[list[int]])
    kvscatter.generate("model.onnx", [[1]], 8, progress=print)
    assert_type(kvscatter.generate("folder", "text", stop="\n").text, str)
    assert_type(kvscatter.generate("folder", ["text"], top_p=0.9).texts, list[str] | None)
    assert_type(next(kvscatter.generate("folder", "text", stream=True)), str)
    assert_type(next(kvscatter.generate("folder", ["text"], stream=True)), tuple[int, str])
    messages = [{"role": "user", "content": "text"}]
    assert_type(kvscatter.chat("folder", messages, threads=1), str)
    with kvscatter.Generator("folder", batch=2, max_seq=64) as generator:
        assert_type(generator.capacity, int | None)
        assert_type(generator.tokenizer.encode("text"), list[int])
        assert_type(generator.generate(["a", "b"], 3, seed=1), kvscatter.Generated)
        assert_type(generator.chat(messages, stream=True), kvscatter.Stream[str])


def refused(error: kvscatter.PositionError) -> None:
    assert_type(error.kind, str)
    assert_type(error.argument, str | None)
    assert_type((error.index, error.value), tuple[int | None, int | None])
    assert_type(error.capacity, int | None)
    raise kvscatter.ShapeError("of a program")


def models() -> None:
    inspected = kvscatter.inspect("model.onnx", batch=2, dim={"heads": 4}, target="tensorrt")
    assert_type(inspected, results.Inspection)
    assert_type([cache.bytes for cache in inspected.caches], list[int | None])
    converted = kvscatter.convert(Path("folder"), "static.onnx", max_seq=64, cache_type="int8", window="mask")
    assert_type(converted.rings[0].capacity, int)
    assert_type(kvscatter.lower("static.onnx", "lowered.onnx", to="scatter-nd").scatters, int)
    certificate = kvscatter.certify("static.onnx", original="folder", prompt=(3, 5), ort_plugin="none")
    assert_type(certificate.evidence.observed[0].verdict, results.Verdict)
    assert_type(kvscatter.verify("one", Path("two"), rtol=0).failures, dict[str, int])
