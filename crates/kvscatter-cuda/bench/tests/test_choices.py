import choices
from cases import Case
from choices import Choices, variations
from names import AGAIN, OURS
from results import Result, Run, Samples

DEFAULT = Choices(2, 256, 64, 4, 4)


def values(of: Choices) -> list[int]:
    return [getattr(of, name) for name in choices.VALUES]


def test_each_choice_is_changed_alone_to_what_is_not_the_default() -> None:
    found = variations(DEFAULT)
    assert values(found["min_blocks_per_multiprocessor 4 → 8"]) == [2, 256, 64, 4, 8]
    for changed in found.values():
        assert sum(a != b for a, b in zip(values(changed), values(DEFAULT), strict=True)) == 1
    assert len(found) == sum(map(len, choices.VALUES.values()))
    assert values(DEFAULT) == [2, 256, 64, 4, 4]


def test_the_page_has_ratios_and_marks_those_outside_of_the_noise() -> None:
    def samples(*times: float) -> Samples:
        return Samples(list(times), list(times), list(times))

    def result(case: Case, near: float, far: float) -> Result:
        times = {OURS: samples(*[2.0] * 4), AGAIN: samples(1.9, 2.0, 2.0, 2.1)}
        changed = {"near": samples(*[2 * near] * 4), "far": samples(*[2 * far] * 4)}
        return Result(case, times | changed, [], [], {})

    cases = (Case(1, 1, 4096), 1.04, 0.5), (Case(8, 1, 4096), 0.96, 2.0)
    page = choices.page(Run("a device", 1.0, [result(*case) for case in cases], {"a case": "no time left"}))
    assert page.count("| decode, B 1, uniform | 2 | 0.95 – 1.05 | 1.04 | **0.50** |") == 3
    assert page.count("| decode, B 8, uniform | 2 | 0.95 – 1.05 | 0.96 | **2.00** |") == 3
    assert page.count("| geometric mean |  |  | 1.00 | 1.00 |") == 3
    assert page.endswith("- left out: a case: no time left\n\n")
