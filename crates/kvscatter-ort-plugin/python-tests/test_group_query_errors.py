"""A GroupQueryAttention node checks everything before it writes to a cache."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from support import group_query
from support.attention import tensor
from support.elements import BY_NAME
from support.group_query import COUNTS, OUTPUTS, PRESENTS, feed, memory, types
from support.sessions import plugin, run
from support.tensors import Part, Tensor, same

UINT8 = BY_NAME["uint8"]
SLOTS, TOKENS = 8, 2
CALL = feed([6, 4], TOKENS, SLOTS, packed=False)
KEY, PAST = CALL["key"], CALL["past_key"]
LONGEST = np.iinfo(np.int32).max


def lengths(*given: int) -> dict:
    """Returns the input for these lengths."""
    return {"seqlens_k": np.array(given, np.int64).astype(np.int32) - 1}


def total(*given: int) -> dict:
    return {"total_sequence_length": np.array(given, np.int32)}


def positions(*given) -> dict:
    return {"position_ids": np.array(given, np.int64)}


def floats(name: str, *shape: int) -> dict:
    return {name: np.ones(shape, np.float32)}


def angles(cos: tuple, sin: tuple) -> dict:
    return floats("cos_cache", *cos) | floats("sin_cache", *sin)


# name: the inputs, and the message.
REFUSED = {
    "a query of rank 2": (
        {"query": CALL["query"][0]},
        "query has shape [2, 64], must be [batch, tokens, 4 * size], each above 0",
    ),
    "a query that is no multiple": (
        {"query": CALL["query"][..., 1:]},
        "query has shape [2, 2, 63], must be [batch, tokens, 4 * size], each above 0",
    ),
    "no tokens": (
        {name: CALL[name][:, :0] for name in ("query", "key", "value")},
        "query has shape [2, 0, 64], must be [batch, tokens, 4 * size], each above 0",
    ),
    "no samples": (
        {name: CALL[name][:0] for name in ("query", "key", "value", "past_key", "past_value", "seqlens_k")},
        "query has shape [0, 2, 64], must be [batch, tokens, 4 * size], each above 0",
    ),
    "another head size": ({"key": KEY[..., :30]}, "key has shape [2, 2, 30], must be [2, 2, 32]"),
    "keys of another batch": ({"key": KEY[:1]}, "key has shape [1, 2, 32], must be [2, 2, 32]"),
    "fewer keys": ({"key": KEY[:, :1]}, "key has shape [2, 1, 32], must be [2, 2, 32]"),
    "fewer values": ({"value": KEY[:, :1]}, "value has shape [2, 1, 32], must be [2, 2, 32]"),
    "keys without values": ({"key": KEY, "value": KEY[:, :0]}, "value has shape [2, 0, 32], must be [2, 2, 32]"),
    "values without keys": ({"key": KEY[:, :0]}, "value has shape [2, 2, 32], must be [2, 0, 32]"),
    "a past of rank 3": ({"past_key": PAST[0]}, "past_key has shape [2, 8, 16], must be [2, 2, slots, 16]"),
    "a past of another batch": (
        {"past_key": PAST[:1]}, "past_key has shape [1, 2, 8, 16], must be [2, 2, 8, 16]",
    ),
    "a past of other heads": (
        {"past_key": PAST[:, :1]}, "past_key has shape [2, 1, 8, 16], must be [2, 2, 8, 16]",
    ),
    "a past of another size": (
        {"past_value": PAST[..., :15]}, "past_value has shape [2, 2, 8, 15], must be [2, 2, 8, 16]",
    ),
    "two numbers of slots": (
        {"past_value": PAST[:, :, :7]}, "past_value has shape [2, 2, 7, 16], must be [2, 2, 8, 16]",
    ),
    "a length of 0": (lengths(6, 0), "seqlens_k[1] = -1: must be between 1 and 7"),
    "a negative length": (lengths(-5, 4), "seqlens_k[0] = -6: must be between 1 and 7"),
    "a length below the tokens": (lengths(6, 1), "seqlens_k[1] = 0: must be between 1 and 7"),
    "a length above the slots": (lengths(9, 4), "seqlens_k[0] = 8: must be between 1 and 7"),
    "the largest length": (
        {"seqlens_k": np.array([3, LONGEST], np.int32)},
        f"seqlens_k[1] = {LONGEST}: must be between 1 and 7",
    ),
    "a length of padding alone": (total(2) | lengths(2, 0), "seqlens_k[1] = -1: must be between 0 and 7"),
    "lengths of another batch": (lengths(6, 4, 4), "seqlens_k has shape [3], must be [2]"),
    "one length for all": (lengths(6), "seqlens_k has shape [1], must be [2]"),
    "no total": (total(), "total_sequence_length has shape [0], must be [1]"),
    "two totals": (total(6, 4), "total_sequence_length has shape [2], must be [1]"),
    "a total of 0": (total(0), "total_sequence_length = 0: must be between 1 and 10"),
    "a negative total": (total(-6), "total_sequence_length = -6: must be between 1 and 10"),
    "a total above all slots": (total(11), "total_sequence_length = 11: must be between 1 and 10"),
    "the largest total": (total(LONGEST), f"total_sequence_length = {LONGEST}: must be between 1 and 10"),
    "another layer with too few tokens": (
        {"key": KEY[:, :0], "value": KEY[:, :0]} | lengths(9, 4),
        "seqlens_k[0] = 8: must be between 1 and 7",
    ),
    "another layer with a larger total": (
        {"key": KEY[:, :0], "value": KEY[:, :0]} | total(9),
        "total_sequence_length = 9: must be between 1 and 8",
    ),
    "angles of rank 1": (angles((16,), (16,)), "cos_cache has shape [16], must be [positions, at most 8]"),
    "angles for longer heads": (
        angles((16, 9), (16, 9)), "cos_cache has shape [16, 9], must be [positions, at most 8]",
    ),
    "fewer sines": (angles((16, 8), (15, 8)), "sin_cache has shape [15, 8], must be [16, 8], that of cos_cache"),
    "too few angles": (
        angles((5, 8), (5, 8)), "cos_cache has 5 positions, sample 0 needs position 5",
    ),
    "no angles": (angles((0, 8), (0, 8)), "cos_cache has 0 positions, sample 0 needs position 4"),
    "positions of one sample": (positions([4, 5]), "position_ids has shape [1, 2], must be [2, 2]"),
    "positions of rank 1": (positions(4, 5), "position_ids has shape [2], must be [2, 2]"),
    "a negative position": (
        positions([4, 5], [2, -1]), "cos_cache has 2048 positions, sample 1 needs position -1",
    ),
    "a position after the angles": (
        positions([4, 2048], [2, 3]), "cos_cache has 2048 positions, sample 0 needs position 2048",
    ),
    "the largest position": (
        positions([4, 5], [2**63 - 1, 3]), f"cos_cache has 2048 positions, sample 1 needs position {2**63 - 1}",
    ),
    "an offset after the angles": (
        total(2) | lengths(2, 2) | positions([2047, 0], [0, 0]),
        "cos_cache has 2048 positions, sample 0 needs position 2048",
    ),
    "the largest offset": (
        total(2) | lengths(2, 2) | positions([2**63 - 1, 0], [0, 0]),
        f"cos_cache has 2048 positions, sample 0 needs position {2**63 - 1}",
    ),
    "a bias of rank 2": (
        floats("attention_bias", 2, 6), "attention_bias has shape [2, 6], must be [2 or 1, 4 or 1, 2, 6]",
    ),
    "a bias of another batch": (
        floats("attention_bias", 3, 1, 2, 6),
        "attention_bias has shape [3, 1, 2, 6], must be [2 or 1, 4 or 1, 2, 6]",
    ),
    "a bias of other heads": (
        floats("attention_bias", 1, 2, 2, 6),
        "attention_bias has shape [1, 2, 2, 6], must be [2 or 1, 4 or 1, 2, 6]",
    ),
    "a bias of one token": (
        floats("attention_bias", 1, 1, 1, 6),
        "attention_bias has shape [1, 1, 1, 6], must be [2 or 1, 4 or 1, 2, 6]",
    ),
    "a bias for all slots": (
        floats("attention_bias", 1, 1, 2, 8),
        "attention_bias has shape [1, 1, 2, 8], must be [2 or 1, 4 or 1, 2, 6]",
    ),
    "fewer sinks": (floats("head_sink", 3), "head_sink has shape [3], must be [4]"),
    "sinks of rank 2": (floats("head_sink", 4, 1), "head_sink has shape [4, 1], must be [4]"),
}  # fmt: skip


def session_for(arrays: dict):
    return plugin(group_query.model(types(arrays), do_rotary=1, **COUNTS))


def is_refused(session, inputs: dict, outputs: dict, memory: list[Tensor], message: str) -> None:
    """Checks that a call gives one line with this message, and changes no byte of the memory."""
    before = [tensor.bytes() for tensor in memory]
    with pytest.raises(Exception, match=message) as caught:
        run(session, inputs, outputs)
    assert "\n" not in str(caught.value)
    for each, contents in zip(memory, before, strict=True):
        same(each, contents)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_error_says_why_and_writes_nothing(name, in_place):
    changed, message = REFUSED[name]
    arrays = CALL | {name: np.ascontiguousarray(array) for name, array in changed.items()}
    inputs = {name: tensor(array) for name, array in arrays.items()}
    _, outputs = memory(CALL, in_place=False)
    if in_place:
        outputs |= {present: inputs[past] for present, past in PRESENTS.items()}
    every = [*inputs.values(), *outputs.values()]
    is_refused(session_for(arrays), inputs, outputs, every, re.escape(f"GroupQueryAttention: {message}"))


def test_numbers_of_heads_that_no_query_has_are_an_error():
    """Three times this number of heads does not fit in 64 bits."""
    arrays = feed([6], slots=SLOTS)
    heads = ((1 << 64) + 2) // 3
    session = plugin(group_query.model(types(arrays), num_heads=heads, kv_num_heads=heads))
    message = re.escape("GroupQueryAttention: query has shape [1, 1, 128], must be [batch, tokens, ")
    inputs, outputs = memory(arrays, in_place=True)
    is_refused(session, inputs, outputs, [*inputs.values(), *outputs.values()], message)


def test_a_session_goes_on_after_an_error():
    session = session_for(CALL)
    expected = results(session, CALL, in_place=True)
    for changed in (
        {},
        lengths(6, 1),
        {},
        total(0),
        lengths(9, 9),
        {},
        {"query": CALL["query"][..., 1:]},
        {},
    ):
        inputs, outputs = memory(CALL, in_place=True)
        inputs |= {name: tensor(np.ascontiguousarray(array)) for name, array in changed.items()}
        if changed:
            every = [*inputs.values(), *outputs.values()]
            is_refused(session, inputs, outputs, every, "GroupQueryAttention: ")
        else:
            run(session, inputs, outputs)
            for name, values in expected.items():
                same(outputs[name], values.bytes())


def results(session, arrays: dict, in_place: bool) -> dict[str, Tensor]:
    inputs, outputs = memory(arrays, in_place)
    run(session, inputs, outputs)
    return outputs


class Placed:
    """The inputs and outputs of a call, one after another in one memory."""

    def __init__(self):
        _, outputs = memory(CALL, in_place=False)
        tensors = {name: tensor(array) for name, array in CALL.items()} | outputs
        sizes = {name: -len(each.data) % 64 + len(each.data) for name, each in tensors.items()}
        # The last tensor may be moved by a few bytes.
        size = sum(sizes.values()) + max(sizes.values())
        self.memory = Tensor(UINT8, (size,), bytes(size))
        self.parts, place = {}, 0
        for name, each in tensors.items():
            self.memory.data[place : place + len(each.data)] = each.data
            self.parts[name] = Part(each.element, each.shape, self.memory.address + place)
            place += sizes[name]

    def move(self, name: str, to: str, by: int = 0) -> None:
        """Gives a tensor the address of another one, a few bytes later."""
        self.parts[name] = replace(self.parts[name], address=self.parts[to].address + by)

    def run(self, session) -> None:
        run(session, *self.split())

    def split(self) -> tuple[dict, dict]:
        inputs = {name: part for name, part in self.parts.items() if name in CALL}
        return inputs, {name: part for name, part in self.parts.items() if name not in CALL}

    def is_refused(self, session, message: str) -> None:
        is_refused(session, *self.split(), [self.memory], message)


@pytest.mark.parametrize("output", OUTPUTS[:3])
def test_outputs_in_the_memory_of_other_tensors_are_refused(output):
    """A program may bind one buffer twice. A present in the memory of its past must be exactly there."""
    session = session_for(CALL)
    for name, in_place in itertools.product(Placed().parts, (False, True)):
        placed = Placed()
        for present, past in PRESENTS.items():
            if in_place and present != output:
                placed.move(present, past)
        if name == output or (in_place and name in PRESENTS):
            continue
        # Only the last four bytes are shared.
        other = placed.parts[name]
        placed.move(output, name, other.element.bytes(other.shape) - 4)
        placed.is_refused(session, "GroupQueryAttention: the buffer of .* shares memory with that of ")


@pytest.mark.parametrize(
    "moves",
    [
        [("present_key", "past_value")],
        [("present_value", "past_key")],
        [("present_key", "past_value"), ("present_value", "past_key")],
        [("present_key", "past_key"), ("present_value", "past_key")],
        [("past_value", "past_key"), ("present_key", "past_key"), ("present_value", "past_key")],
        [("past_value", "past_key"), ("present_key", "past_key")],
        [("key", "past_key"), ("present_key", "past_key")],
        [("output", "query")],
    ],
    ids=str,
)
def test_a_present_in_the_memory_of_another_tensor_is_refused(moves):
    placed = Placed()
    for name, to in moves:
        placed.move(name, to)
    placed.is_refused(session_for(CALL), "GroupQueryAttention: the buffer of .* shares memory with that of ")


def test_inputs_may_share_memory_and_one_cache_may_be_in_place():
    session = session_for(CALL)
    for moves in (
        [],
        [("past_value", "past_key")],
        [("value", "key")],
        [("present_key", "past_key")],
        [("present_value", "past_value")],
    ):
        placed = Placed()
        arrays = dict(CALL)
        for name, to in moves:
            placed.move(name, to)
            if name in CALL:
                arrays[name] = arrays[to]
        placed.run(session)
        placed.memory.check_guards()
        # In place, the slots after the tokens keep what they have. Apart, they are zero.
        for in_place in (True, False):
            for name, expected in results(session, arrays, in_place).items():
                part = placed.parts[name]
                is_in_place = part.address == placed.parts[PRESENTS.get(name, "query")].address
                if is_in_place == in_place or name == "output":
                    begin = part.address - placed.memory.address
                    got = placed.memory.data[begin : begin + len(expected.data)]
                    assert got.tobytes() == expected.bytes(), (moves, name)


@pytest.mark.parametrize("name", OUTPUTS[:3])
def test_outputs_must_be_aligned(name):
    placed = Placed()
    placed.move(name, name, 2)
    placed.is_refused(session_for(CALL), f"GroupQueryAttention: {name} must begin at a multiple of 4 bytes")


def test_a_cache_in_place_must_be_aligned():
    placed = Placed()
    placed.move("past_key", "past_key", 2)
    placed.move("present_key", "past_key")
    placed.is_refused(
        session_for(CALL), "GroupQueryAttention: present_key must begin at a multiple of 4 bytes"
    )


def test_inputs_may_begin_anywhere():
    session = session_for(CALL)
    inputs, outputs = memory(CALL, in_place=False)
    alive = []
    for name, each in inputs.items():
        alive.append(Tensor(UINT8, (len(each.data) + 1,), b"\0" + each.bytes()))
        inputs[name] = Part(each.element, each.shape, alive[-1].address + 1)
    run(session, inputs, outputs)
    for name, expected in results(session, CALL, in_place=False).items():
        same(outputs[name], expected.bytes())
