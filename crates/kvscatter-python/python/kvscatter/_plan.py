"""What a plan is made of, and how it shows in a notebook."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

from kvscatter._notebook import image

__all__ = ["Block", "Loop", "Segment"]


@dataclass(frozen=True, slots=True)
class Loop:
    """A strided loop: how often, and how far destination and source move each time, in elements."""

    count: int
    dst_stride: int
    src_stride: int


@dataclass(frozen=True, slots=True)
class Block:
    """One strided copy: a contiguous run of ``len`` elements inside at most three loops, outermost first.

    Offsets are those of the first element, counted in elements from the lowest address of an array. With two loops, the
    run at loop indices ``i`` and ``j`` begins in the destination at
    ``dst_offset + i * loops[0].dst_stride + j * loops[1].dst_stride``, and in the source at the same sum over
    ``src_offset`` and ``src_stride``. The blocks of a plan share no destination, so they may be copied in any order.
    """

    len: int
    dst_offset: int
    src_offset: int
    loops: tuple[Loop, ...]

    @property
    def elements(self) -> int:
        """Elements that it moves."""
        return self.len * math.prod(loop.count for loop in self.loops)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of slots of one sample that receives consecutive rows of its update.

    A sample has one, or two where a ring wraps: the second then begins at slot 0.
    """

    sample: int
    """The sample."""
    slot: int
    """The first slot written."""
    row: int
    """The row of the sample's update that goes there."""
    rows: int
    """How many rows."""


def figure(svg: str, caption: str) -> str:
    """A picture with a caption."""
    return (
        f'<figure style="margin: 0 0 1em">{image(svg, caption)}'
        f'<figcaption style="margin-top: 0.3em">{html.escape(caption)}</figcaption></figure>'
    )
