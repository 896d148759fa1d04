"""The parts of a plan, and the HTML that shows a plan in a notebook."""

from __future__ import annotations

import base64
import html
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loop:
    """A strided loop: its number of iterations, and the steps of destination and source, in elements."""

    count: int
    dst_stride: int
    src_stride: int


@dataclass(frozen=True, slots=True)
class Block:
    """One strided copy: a contiguous run of ``len`` elements inside at most three loops, the outermost loop
    first.

    Offsets are those of the first element. They are counted in elements from the lowest address of an array.
    With two loops, the run at loop indices ``i`` and ``j`` begins in the destination at ``dst_offset + i *
    loops[0].dst_stride + j * loops[1].dst_stride``. In the source it begins at the same sum over
    ``src_offset`` and ``src_stride``. The blocks of a plan do not share a destination element, so they may be
    copied in any order.
    """

    len: int
    dst_offset: int
    src_offset: int
    loops: tuple[Loop, ...]

    @property
    def elements(self) -> int:
        """The number of elements that the block moves."""
        return self.len * math.prod(loop.count for loop in self.loops)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of slots of one sample that receives consecutive rows of its update.

    A sample has one segment. It has two if its rows wrap around a circular cache, and the second then begins
    at slot 0.

    Attributes:
        sample: The index of the sample in the batch.
        slot: The first slot written.
        row: The row of the sample's update that is written to ``slot``.
        rows: The number of rows that the segment receives.
    """

    sample: int
    slot: int
    row: int
    rows: int


def figure(svg: str, caption: str) -> str:
    """Returns HTML that shows a picture with a caption."""
    return (
        f'<figure style="margin: 0 0 1em">{_image(svg, caption)}'
        f'<figcaption style="margin-top: 0.3em">{html.escape(caption)}</figcaption></figure>'
    )


def _image(svg: str, alt: str) -> str:
    """Returns HTML that shows an SVG document as an image.

    An image shares no names and no styles with the page, which has its own styles and may have many
    pictures.
    """
    source = base64.b64encode(svg.encode()).decode("ascii")
    return (
        f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{source}" '
        'style="max-width: 100%; height: auto">'
    )
