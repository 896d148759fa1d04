"""Checks integer arguments of the modules that are written in Python."""

from __future__ import annotations

from kvscatter import _native


def within(argument: str, value: object, least: int, most: int) -> int:
    """Returns ``value`` as an integer from ``least`` to ``most``.

    Raises the same errors as the compiled module: ``ElementTypeError`` for another type, including booleans,
    and ``OptionError`` with the limits for an integer out of range.
    """
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value  # compilers trace this line
    return _native.integer_within(argument, value, least, most)
