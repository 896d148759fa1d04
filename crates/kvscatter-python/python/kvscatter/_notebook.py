"""Shows pictures in a notebook."""

from __future__ import annotations

import base64
import html

__all__ = ["image"]


def image(svg: str, alt: str) -> str:
    """Returns HTML that shows an SVG document as an image.

    An image shares no names and no styles with the page, which has its own styles and may have many
    pictures.
    """
    source = base64.b64encode(svg.encode()).decode("ascii")
    return (
        f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{source}" '
        'style="max-width: 100%; height: auto">'
    )
