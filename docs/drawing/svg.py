"""A little SVG: elements as text, nothing else."""

from __future__ import annotations

import html
import textwrap

INK, FAINT, PAPER = "#1a1a1a", "#666666", "#ffffff"
LINE = 18  # pixels of a line of text
# A wide font's average, in pixels, so that a line fits in any.
CHARACTER = 7.3


class Canvas:
    """SVG elements, one after the other."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.markers: list[str] = []

    def add(self, tag: str, content: str | None = None, /, **attributes: object) -> None:
        """An element; `stroke_width=1` becomes `stroke-width="1"`. Its content is escaped."""
        pairs = "".join(f' {name.replace("_", "-")}="{_number(value)}"' for name, value in attributes.items())
        end = "/>" if content is None else f">{html.escape(content, quote=False)}</{tag}>"
        self.elements.append(f"<{tag}{pairs}{end}")

    def text(self, x: float, y: float, content: str, **attributes: object) -> None:
        """Text whose line begins at (x, y)."""
        self.add("text", content, x=x, y=y, **({"fill": INK} | attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: object) -> None:
        """A line, thin and dark unless told otherwise."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, **({"stroke": INK, "stroke_width": 1} | attributes))

    def rect(self, x: float, y: float, width: float, height: float, **attributes: object) -> None:
        """A rectangle from its upper left corner."""
        self.add("rect", x=x, y=y, width=width, height=height, **attributes)

    def paragraph(self, y: float, words: str, width: float) -> float:
        """Lines of text across `width`; returns where they end."""
        for line in textwrap.wrap(words, int((width - 32) / CHARACTER)):
            self.text(16, y, line, font_size=13)
            y += LINE
        return y

    def document(self, name: str, title: str, description: str, width: float, height: float) -> str:
        """The whole, on its own paper; `name` keeps its ids apart from other pictures' of one page."""
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
                f'height="{height:g}" role="img" aria-labelledby="{name}-title {name}-desc" '
                'font-family="system-ui, sans-serif">',
                f'<title id="{name}-title">{html.escape(title)}</title>',
                f'<desc id="{name}-desc">{html.escape(description)}</desc>',
                "<defs>",
                *self.markers,
                "</defs>",
                f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>',
                *self.elements,
                "</svg>\n",
            )
        )

    def marker(self, name: str, colour: str, *, filled: bool) -> None:
        """An arrow's head, called `url(#name)`."""
        shape = f'fill="{colour}"' if filled else f'fill="{PAPER}" stroke="{colour}" stroke-width="1.4"'
        self.markers.append(
            f'<marker id="{name}" viewBox="-1 -1 12 12" refX="10" refY="5" markerWidth="11" markerHeight="11" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L10 5 L0 10 z" {shape}/></marker>'
        )


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else html.escape(str(value))
