"""Write SVG documents as text."""

from __future__ import annotations

import html
import textwrap

INK, FAINT, PAPER = "#1a1a1a", "#666666", "#ffffff"
LINE = 18  # height of a line of text, in pixels
# Mean width of a character in a wide font, in pixels, so that lines fit with every font.
CHARACTER = 7.3


class Canvas:
    """A list of SVG elements."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.markers: list[str] = []

    def add(self, tag: str, content: str | None = None, /, **attributes: object) -> None:
        """Add an element. `stroke_width=1` becomes `stroke-width="1"`, and the content is escaped."""
        pairs = "".join(f' {name.replace("_", "-")}="{_number(value)}"' for name, value in attributes.items())
        end = "/>" if content is None else f">{html.escape(content, quote=False)}</{tag}>"
        self.elements.append(f"<{tag}{pairs}{end}")

    def text(self, x: float, y: float, content: str, **attributes: object) -> None:
        """Add text that starts at (x, y)."""
        self.add("text", content, x=x, y=y, **({"fill": INK} | attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: object) -> None:
        """Add a line, by default thin and dark."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, **({"stroke": INK, "stroke_width": 1} | attributes))

    def rect(self, x: float, y: float, width: float, height: float, **attributes: object) -> None:
        """Add a rectangle with its upper left corner at (x, y)."""
        self.add("rect", x=x, y=y, width=width, height=height, **attributes)

    def paragraph(self, y: float, words: str, width: float) -> float:
        """Add text, wrapped to `width`. Returns the y of its end."""
        for line in textwrap.wrap(words, int((width - 32) / CHARACTER)):
            self.text(16, y, line, font_size=13)
            y += LINE
        return y

    def document(self, name: str, title: str, description: str, width: float, height: float) -> str:
        """Return the SVG document, on white. `name` makes its ids unique if a page has several pictures."""
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

    def marker(self, name: str, color: str, *, filled: bool) -> None:
        """Define an arrowhead, to use as `url(#name)`."""
        shape = f'fill="{color}"' if filled else f'fill="{PAPER}" stroke="{color}" stroke-width="1.4"'
        self.markers.append(
            f'<marker id="{name}" viewBox="-1 -1 12 12" refX="10" refY="5" markerWidth="11" markerHeight="11" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L10 5 L0 10 z" {shape}/></marker>'
        )


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else html.escape(str(value))
