"""What ``kvscatter.verify`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusRule:
    """The rule that a case of a corpus tests.

    Attributes:
        id: The name.
        rule: The rule, as a sentence.
    """

    id: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCase:
    """The verdict on a case. Fields that do not apply are None.

    Attributes:
        case: The folder.
        verdict: The verdict.
        rule: The rule of the corpus that the case tests.
        answer: The answer of another implementation, such as ``"exact"``.
        in_place: The result of its call in place.
        reason: Why the case failed or cannot be read.
        failure: The kind of the failure.
        mismatch: The first wrong element.
        wrong_slots: The slots of the mismatch, and what they were for.
        in_place_reason: Why the call in place failed.
        in_place_mismatch: Its first wrong element.
        tensor_scatter: The inputs and attributes of ``TensorScatter``.
        picture: The command that draws the write.
    """

    case: str
    verdict: Literal["pass", "fail", "unreadable"]
    rule: CorpusRule | None = None
    answer: str | None = None
    in_place: str | None = None
    reason: str | None = None
    failure: str | None = None
    mismatch: dict[str, Any] | None = None
    wrong_slots: dict[str, Any] | None = None
    in_place_reason: str | None = None
    in_place_mismatch: dict[str, Any] | None = None
    tensor_scatter: dict[str, Any] | None = None
    picture: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A rule that cases break.

    Attributes:
        rule: The name of the rule.
        failed: The number of cases that break it.
        cases: The number of cases that test it.
    """

    rule: str
    failed: int
    cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdicts on test directories.

    Attributes:
        cases: The cases.
        passed: The number that passed.
        failed: The number that failed.
        unreadable: The number that cannot be read.
        failures: The number of failures of each kind.
        broken_rules: The rules that cases break.
        unknown_folders: The folders of ``actual`` that belong to no case.
        answers: The number of answers of each kind, or None without ``actual``.
        in_place: The number of results in place of each kind, or None without such calls.
    """

    cases: tuple[VerifiedCase, ...]
    passed: int
    failed: int
    unreadable: int
    failures: dict[str, int]
    broken_rules: tuple[BrokenRule, ...]
    unknown_folders: tuple[str, ...]
    answers: dict[str, int] | None = None
    in_place: dict[str, int] | None = None
