"""tract with kvscatter's operators."""

import rust_program

OPERATORS = ["TensorScatter", "Attention"]


def name():
    return "tract with kvscatter-tract"


def version():
    return "0.23.9"


def run(case, in_place):
    place = "in-place" if in_place else "plain"
    made = rust_program.run(case, "tract", place, keeps_cache=False)
    if in_place and made["same_memory"]:
        case.cache[...] = made["outputs"][0]
    return made
