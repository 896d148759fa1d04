"""Pictures in a notebook."""

from __future__ import annotations

import base64
import html

__all__ = ["image"]


def image(svg: str, alt: str) -> str:
    """HTML that shows an SVG document. As an image it keeps its names and styles to itself: a page has many pictures,
    and styles of its own.
    """
    source = base64.b64encode(svg.encode()).decode("ascii")
    return (
        f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{source}" '
        'style="max-width: 100%; height: auto">'
    )
