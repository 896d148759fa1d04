"""GroupQueryAttention on many threads at once, and which memory and which threads a call uses."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support import group_query, heap, models
from support.group_query import COUNTS, KV_HEADS, OUTPUTS, PRESENTS, SIZE, feed, memory, rows, types, values
from support.sessions import VERSION, builtin, plugin, run
from support.tensors import Part, same
from support.threads import thread_time, time_of_others

THREADS, STEPS = 16, 24
MODEL = group_query.model(types(feed([1])), do_rotary=1, **COUNTS)


def generate(session, thread: int, barrier: threading.Barrier | None = None) -> bytes:
    """Returns the results of a prompt and of single tokens after it, with sizes that few other threads have. Half of
    the threads write in place, and every seventh step fails."""
    batch, prompt, in_place = 1 + thread % 3, 2 + thread % 5, thread % 2 == 0
    cache = feed(batch * [prompt], prompt, prompt + STEPS if in_place else 0, seed=thread)
    if barrier:
        barrier.wait()
    results = []
    for step in range(STEPS):
        if step:
            cache |= rows(batch, 1, seed=100 * thread + step)
        cache["total_sequence_length"] = np.array([prompt + step], np.int32)
        if step % 7 == 6:
            cache["seqlens_k"] = np.full(batch, prompt + STEPS, np.int32)
            inputs, outputs = memory(cache, in_place)
            before = {name: tensor.bytes() for name, tensor in inputs.items()}
            with pytest.raises(Exception, match=r"seqlens_k\[0\] = "):
                run(session, inputs, outputs)
            for name, tensor in inputs.items():
                same(tensor, before[name])
        cache["seqlens_k"] = np.full(batch, prompt + step - 1, np.int32)
        inputs, outputs = memory(cache, in_place)
        run(session, inputs, outputs)
        results += [tensor.bytes() for tensor in outputs.values()]
        cache |= {past: values(outputs[present]) for present, past in PRESENTS.items()}
    return b"".join(results)


@pytest.mark.parametrize("is_shared", [True, False], ids=["one session", "a session each"])
def test_many_threads(is_shared):
    """Each thread gets the bits that it gets alone."""
    session = plugin(MODEL, threads=2)
    expected = [generate(session, thread) for thread in range(THREADS)]
    barrier = threading.Barrier(THREADS)

    def start(thread: int) -> bytes:
        mine = session if is_shared else plugin(MODEL, threads=1 + thread % 3)
        return generate(mine, thread, barrier)

    with ThreadPoolExecutor(THREADS) as pool:
        for thread, results in enumerate(pool.map(start, range(THREADS))):
            assert results == expected[thread], thread


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
def test_the_number_of_threads_does_not_change_the_result(in_place):
    """The rows are split, the caches copied and the blocks computed by several threads."""
    for lengths, tokens in [((1090,), 1), ((1090, 300, 700), 1), ((1090, 200), 200)]:
        arrays = feed(lengths, tokens, 1100)
        results = []
        for threads in (1, 2, 5):
            inputs, outputs = memory(arrays, in_place)
            run(plugin(MODEL, threads), inputs, outputs)
            results.append([tensor.bytes() for tensor in outputs.values()])
        assert results[0] == results[1] == results[2], lengths


def bound(session, inputs, outputs):
    """Returns a binding of a call that can be made again."""
    binding = session.io_binding()
    for name, tensor in inputs.items():
        binding.bind_input(name, "cpu", 0, tensor.element.code, tensor.shape, tensor.address)
    for name, tensor in outputs.items():
        binding.bind_output(name, "cpu", 0, tensor.element.code, tensor.shape, tensor.address)
    return binding


def test_a_step_in_place_allocates_nothing_that_stays():
    session = plugin(MODEL)
    inputs, outputs = memory(feed([1, 1], slots=64), in_place=True)
    binding, used = bound(session, inputs, outputs), []
    for length in range(2, 64):
        inputs["seqlens_k"].data.view(np.int32)[:] = length - 1
        inputs["total_sequence_length"].data.view(np.int32)[:] = length
        session.run_with_iobinding(binding)
        used.append(heap.used())
    assert used[-1] - used[4] < 512, np.diff(used)


@pytest.mark.parametrize("has_bias", [False, True], ids=["without a bias", "with a bias"])
def test_all_steps_of_a_growing_cache_use_one_preparation(has_bias):
    """Each of them has other shapes. To prepare them all would take about 20 kB for each of the eight that are kept."""
    arrays = feed([1, 1], slots=0)
    if has_bias:
        arrays["attention_bias"] = np.zeros((1, 1, 1, 1), np.float32)
    session = plugin(group_query.model(types(arrays), do_rotary=1, **COUNTS))
    used = []
    for length in range(1, 21):
        arrays["seqlens_k"] = np.full(2, length - 1, np.int32)
        arrays["total_sequence_length"] = np.array([length], np.int32)
        if has_bias:
            arrays["attention_bias"] = np.zeros((1, 1, 1, length), np.float32)
        _, *presents = session.run(None, arrays)
        arrays |= dict(zip(PRESENTS.values(), presents, strict=True))
        used.append(heap.used())
    # The first call prepares. The caches themselves grow by half a kilobyte in each step.
    assert used[-1] - used[1] < 30_000, np.diff(used)


def without_keys(slots: int) -> dict:
    """Returns the inputs of a layer that attends to the cache of another one."""
    arrays = feed([6, 4], slots=slots, packed=False)
    return arrays | {name: arrays[name][:, :0] for name in ("key", "value")}


@pytest.mark.skipif(VERSION < (1, 27), reason="the presents are required")
def test_a_node_without_keys_and_presents_does_not_copy_the_cache():
    """Both caches together are smaller than the working memory that is kept."""
    arrays = without_keys(slots=1 << 14)
    session = plugin(group_query.model(types(arrays), OUTPUTS[:1], do_rotary=1, **COUNTS))
    inputs, outputs = memory(arrays, in_place=False)
    binding = bound(session, inputs, {"output": outputs["output"]})
    used = heap.used()
    session.run_with_iobinding(binding)
    assert heap.used() - used < len(inputs["past_key"].data) // 4


def test_caches_of_a_node_without_keys_may_share_memory():
    """In place, they are only read."""
    arrays = without_keys(slots=16)
    arrays["past_value"] = arrays["past_key"]
    session = plugin(group_query.model(types(arrays), do_rotary=1, **COUNTS))
    inputs, outputs = memory(arrays, in_place=False)
    run(session, inputs, outputs)
    expected = outputs["output"].bytes()
    inputs, outputs = memory(arrays, in_place=True)
    inputs["past_value"] = inputs["past_key"]
    outputs |= dict.fromkeys(PRESENTS, inputs["past_key"])
    before = inputs["past_key"].bytes()
    run(session, inputs, outputs)
    same(outputs["output"], expected)
    same(inputs["past_key"], before)
    output = outputs["output"]
    outputs["output"] = Part(output.element, output.shape, inputs["past_key"].address)
    with pytest.raises(Exception, match="the buffer of output shares memory with that of past_key"):
        run(session, inputs, outputs)
    same(inputs["past_key"], before)


@pytest.mark.parametrize("slots", [16, None], ids=["static", "growing"])
def test_caches_inside_a_graph_are_those_of_the_built_in_kernel(slots):
    """A model may declare one shape for past and present. The runtime must not give both the same memory, because a
    growing cache does not fit, and the slots after the tokens are zero in the runtime's own kernel."""
    arrays = feed([6, 4], slots=slots)
    made = onnx.load_from_string(MODEL)
    graph, caches = made.graph, [*PRESENTS, *PRESENTS.values()]
    [node] = graph.node
    inner = {name: f"{name} inside" for name in caches}
    node.input[:], node.output[:] = (
        [inner.get(name, name) for name in names] for names in (node.input, node.output)
    )
    before = [helper.make_node("Neg", [past], [inner[past]]) for past in PRESENTS.values()]
    after = [helper.make_node("Neg", [inner[present]], [present]) for present in PRESENTS]
    shape = [2, KV_HEADS, "slots", SIZE]
    graph.value_info.extend(models.value(name, TensorProto.FLOAT, shape) for name in inner.values())
    # The nodes are in the order in which they run.
    graph.node.extend(after)
    for each in before:
        graph.node.insert(0, each)
    results = []
    for make in (plugin, builtin):
        inputs, outputs = memory(arrays, in_place=False)
        run(make(made.SerializeToString()), inputs, outputs)
        results.append(outputs)
    for name, expected in results[1].items():
        np.testing.assert_allclose(values(results[0][name]), values(expected), atol=1e-5, err_msg=name)


def work(arrays: dict, repeats: int, threads: int) -> tuple[int, int]:
    """Returns the time of this thread and of all others for some calls."""
    session = plugin(MODEL, threads, entries={"session.intra_op.allow_spinning": "0"})
    # A binding has addresses, and does not keep the memory.
    inputs, outputs = memory(arrays, in_place=True)
    binding = bound(session, inputs, outputs)
    session.run_with_iobinding(binding)
    begin, others = thread_time(), time_of_others()
    for _ in range(repeats):
        session.run_with_iobinding(binding)
    return thread_time() - begin, time_of_others() - others


def test_a_large_call_is_shared_among_the_sessions_threads():
    mine, others = work(feed([1100], 100, 1100), repeats=10, threads=2)
    assert others > mine / 10, (mine, others)


def test_a_small_call_wakes_no_thread():
    mine, others = work(feed([12], 1, 16), repeats=2000, threads=2)
    assert others < mine / 10, (mine, others)
