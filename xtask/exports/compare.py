"""Compares generated tokens with the expected ones."""

from collections.abc import Callable
from dataclasses import dataclass

from original import Answer
from texts import Text

# Continues texts and returns the new tokens of each.
Generate = Callable[[list[Text], int], list[list[int]]]

# A token that leads the second by less than this can differ, because rounding decides it. Weights of 8 bits have
# activations of 8 bits too. Rounding moves some to the next code, and the caches keep the difference. The limit is
# less than the largest error of these codes, which is 0.5 to 1.5 in the logits of the prompts.
NEAR_TIE = {"float32": 1e-4, "float16": 0.05, "4-bit": 0.05, "8-bit": 0.3}
# The most near ties in one text.
MOST_TIES = 20


class Different(Exception):
    """A token differs that is no near tie."""


@dataclass(frozen=True)
class Expected:
    """A text and the tokens that must follow."""

    text: Text
    answer: Answer


def count_ties(generate: Generate, expected: list[Expected], tie: float, alone: bool) -> int:
    """Compares every token, and returns how many near ties were decided otherwise.

    After such a tie, the text goes on from the expected token, so that all later tokens are compared too.
    """
    steps = len(expected[0].answer.tokens)
    if alone:
        made = [generate([each.text], steps)[0] for each in expected]
    else:
        made = generate([each.text for each in expected], steps)
    return sum(_ties(generate, each, tokens, tie) for each, tokens in zip(expected, made, strict=True))


def _ties(generate: Generate, expected: Expected, made: list[int], tie: float) -> int:
    wanted, leads = expected.answer.tokens, expected.answer.leads
    begin = 0
    for ties in range(MOST_TIES):
        if len(made) != len(wanted) - begin:
            raise Different(f"{len(made)} tokens instead of {len(wanted) - begin}")
        different = (at for at, token in enumerate(made, begin) if token != wanted[at])
        at = next(different, None)
        if at is None:
            return ties
        if leads[at] > tie:
            raise Different(
                f"token {at} after {len(expected.text.prompt)} is another one, with a lead of {leads[at]:.1e}"
            )
        begin = at + 1
        if begin == len(wanted):
            return ties + 1
        made = generate([expected.text.after(wanted[:begin])], len(wanted) - begin)[0]
    raise Different(f"more than {MOST_TIES} near ties")
