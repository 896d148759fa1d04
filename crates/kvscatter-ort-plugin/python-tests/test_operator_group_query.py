"""GroupQueryAttention computes what the model of the operator computes, and what ONNX Runtime's own kernel computes."""

import numpy as np
import pytest

from support import group_query
from support.group_query import COUNTS, OUTPUTS, PRESENTS, feed, memory, rows
from support.sessions import PROVIDER, VERSION, assignment, builtin, plugin, run
from support.tensors import same

# Past and present may have another type than the queries from this version on.
HAS_CACHE_TYPES = VERSION >= (1, 25)

# A node may have no presents from this version on, and a layer may read the keys and values of another layer.
HAS_SHARED_LAYERS = VERSION >= (1, 27)

# The queries of padding see the tokens of their sample from this version on. Before, their results are garbage, and
# they still are if a window has no token.
HAS_PADDING = VERSION >= (1, 28)


def is_mixed(case) -> bool:
    """Returns whether past and present have another type than the queries."""
    return case.element("present_key") != case.element("output")


@pytest.fixture(scope="module")
def cases(group_query_cases):
    """Returns the cases that this version of ONNX Runtime can load."""
    every = [case.painted() for case in group_query.cases(group_query_cases)]
    return [case for case in every if HAS_CACHE_TYPES or not is_mixed(case)]


def forms(case, in_place_too: bool = True):
    """Returns the inputs and outputs of a case with caches apart, and then in place if they have the slots."""
    inputs, outputs = case.tensors(), case.outputs()
    yield inputs, outputs, False
    if case.has_room and in_place_too:
        inputs = case.tensors()
        yield inputs, case.outputs() | {name: inputs[past] for name, past in PRESENTS.items()}, True


def check(case, n, shaped):
    """Runs a case with caches apart and in place. ``n`` chooses the number of threads."""
    session = plugin(case.model(shaped=shaped), threads=1 + n % 2)
    assert assignment(session) == {PROVIDER: ["GroupQueryAttention"]}, case.name
    for inputs, outputs, in_place in forms(case):
        before = {name: tensor.bytes() for name, tensor in inputs.items()}
        run(session, inputs, outputs)
        case.check(outputs, in_place)
        for name, tensor in inputs.items():
            if not in_place or name not in PRESENTS.values():
                same(tensor, before[name])


@pytest.mark.parametrize("shaped", [False, True], ids=["open shapes", "declared shapes"])
def test_outputs_are_those_of_the_model(cases, shaped):
    for n, case in enumerate(cases):
        check(case, n, shaped)
    assert len(cases) == (225 if HAS_CACHE_TYPES else 135)


@pytest.mark.skipif(not HAS_SHARED_LAYERS, reason="the presents are required")
def test_a_node_without_presents_attends_to_new_rows(cases):
    for case in cases[::3]:
        session = plugin(case.model(OUTPUTS[:1]))
        assert assignment(session) == {PROVIDER: ["GroupQueryAttention"]}, case.name
        inputs, outputs = case.tensors(), case.outputs()
        before = {name: tensor.bytes() for name, tensor in inputs.items()}
        run(session, inputs, {"output": outputs["output"]})
        case.check_output(outputs["output"])
        for name, tensor in inputs.items():
            same(tensor, before[name])


# The cases that the built-in kernel does not compute.
LEFT_OUT = {
    "bfloat16": lambda case: "bfloat16" in {case.element(name).name for name in OUTPUTS[:3]},
    "chunks of several samples": lambda case: case.tokens > 1 and not case.is_first and len(case.lengths) > 1,
    "caches of another type up to 1.26": lambda case: is_mixed(case) and VERSION < (1, 27),
    "layers without keys up to 1.26": lambda case: not case.has_own_rows and not HAS_SHARED_LAYERS,
}


def test_the_built_in_kernel_agrees(cases):
    """The built-in kernel gives the answers of the model, or an error for a reason in the table."""
    checked, left_out = 0, dict.fromkeys(LEFT_OUT, 0)
    for case in cases:
        reasons = [reason for reason, applies in LEFT_OUT.items() if applies(case)]
        for reason in reasons:
            left_out[reason] += 1
        # With caches of another type, the runtime converts whole caches, and new rows are read before they are rounded.
        tolerance = 4e-3 if is_mixed(case) else 2e-6
        for inputs, outputs, in_place in forms(case, in_place_too=not is_mixed(case)):
            if reasons:
                with pytest.raises(Exception, match="GroupQueryAttention"):
                    run(builtin(case.model()), inputs, outputs)
                continue
            run(builtin(case.model()), inputs, outputs)
            has_padding = HAS_PADDING and "local_window_size" not in case.attributes
            case.check(outputs, in_place, tolerance, has_padding)
            checked += 1
    assert checked > 90
    assert all(left_out[reason] > 10 for reason in list(LEFT_OUT)[:2]), left_out


ATTRIBUTES = {
    "rotated": {"do_rotary": 1},
    "interleaved": {"do_rotary": 1, "rotary_interleaved": 1},
    "unrotated": {},
    "capped": {"do_rotary": 1, "scale": 0.3, "softcap": 5.0},
    "windowed": {"do_rotary": 1, "local_window_size": 4, "smooth_softmax": 1},
}

# The lengths of the prompts, and the number of tokens of a chunk after them.
SEQUENCES = [((9,), 0), ((9,), 5), ((9, 4), 0), ((1, 1, 1), 0)]


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "growing"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "separate"])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_steps_continue_each_other(name, packed, in_place):
    """A prompt, a chunk and single tokens give the numbers of the built-in kernel, over the caches of each."""
    made = feed([1], packed=packed)
    model = group_query.model(group_query.types(made), **COUNTS, **ATTRIBUTES[name])
    sessions = [plugin(model, 2), builtin(model, 2)]
    for prompts, chunk in SEQUENCES:
        lengths, slots = np.array(prompts), 32 if in_place else 0
        caches = [feed(prompts, max(prompts), slots, packed=packed) for _ in sessions]
        for seed, tokens in enumerate([max(prompts), *[chunk][: bool(chunk)], *5 * [1]]):
            lengths = lengths + tokens * bool(seed)
            new = rows(len(prompts), tokens, packed, seed=seed)
            new["seqlens_k"] = (lengths - 1).astype(np.int32)
            new["total_sequence_length"] = np.array([lengths.max()], np.int32)
            results = []
            for session, cache in zip(sessions, caches, strict=True):
                cache |= new
                inputs, outputs = memory(cache, in_place)
                run(session, inputs, outputs)
                cache |= {past: group_query.values(outputs[present]) for present, past in PRESENTS.items()}
                results.append(group_query.values(outputs["output"]))
            for sample, length in enumerate(lengths):
                got, expected = (result[sample, :length] for result in results)
                np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=f"{prompts} {seed}")
                for past in PRESENTS.values():
                    got, expected = (cache[past][sample, :, :length] for cache in caches)
                    np.testing.assert_allclose(got, expected, atol=1e-6, err_msg=f"{prompts} {seed}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float", "float16"])
@pytest.mark.parametrize("window", [-1, 100])
def test_long_caches_and_prompts(window, dtype):
    """Calls of several blocks of rows and of several chunks of slots give the numbers of the built-in kernel."""
    for lengths, tokens in [((1090,), 20), ((1090, 700, 3), 1), ((70, 33), 70)]:
        arrays = feed(lengths, tokens, slots=1100, dtype=dtype)
        model = group_query.model(group_query.types(arrays), do_rotary=1, local_window_size=window, **COUNTS)
        results = []
        for make in (plugin, builtin):
            inputs, outputs = memory(arrays, in_place=True)
            run(make(model, 2), inputs, outputs)
            results.append([group_query.values(outputs[name]).astype(np.float64) for name in OUTPUTS[:3]])
        for sample, length in enumerate(lengths):
            got, expected = (result[0][sample, :length] for result in results)
            np.testing.assert_allclose(got, expected, atol=1e-5 if dtype == np.float32 else 2e-3)
        for got, expected in zip(results[0][1:], results[1][1:], strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-6 if dtype == np.float32 else 4e-3)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
@pytest.mark.parametrize(
    ("lengths", "tokens", "total"),
    [
        ((7, 6), 5, 5),
        ((5, 2), 5, 5),
        ((7,), 1, 1),
        ((6, 4), 1, 3),
        ((6, 4), 1, 16),
        ((6,), 3, 4),
        ((3,), 3, 9),
    ],
)
def test_the_total_decides_only_whether_a_call_is_a_prompt(lengths, tokens, total, in_place):
    """A call whose total is its number of tokens begins at slot 0 for all lengths."""
    arrays = feed(lengths, tokens, 16, total)
    model = group_query.model(group_query.types(arrays), do_rotary=1, **COUNTS)
    results = []
    for make in (plugin, builtin):
        inputs, outputs = memory(arrays, in_place)
        run(make(model), inputs, outputs)
        results.append([group_query.values(outputs[name]) for name in OUTPUTS[:3]])
    for sample, length in enumerate(lengths):
        got, expected = (result[0][sample, :length] for result in results)
        np.testing.assert_allclose(got, expected, atol=1e-5)
    for got, expected in zip(results[0][1:], results[1][1:], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_calls_of_all_kinds_in_one_session():
    """What is prepared for one call is not used for another. Each gives the bits of a session that has no other."""
    model = group_query.model(group_query.types(feed([1])), do_rotary=1, **COUNTS)
    session = plugin(model)
    calls = [([9], 9, 32), ([14], 5, 32), ([15], 1, 32), ([15, 3], 1, 32), ([9, 4], 9, 9), ([10, 5], 1, 9)]
    calls += [([11, 6], 1, 10), ([8, 6], 3, 40), ([9], 9, 0), ([10], 1, None), ([1], 1, 1)]
    for seed, (lengths, tokens, slots) in enumerate(3 * calls):
        arrays = feed(lengths, tokens, slots, seed=seed)
        results = []
        for each in (session, plugin(model)):
            inputs, outputs = memory(arrays, in_place=False)
            run(each, inputs, outputs)
            results.append(outputs)
        for name, expected in results[1].items():
            same(results[0][name], expected.bytes())
