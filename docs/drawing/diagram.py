"""Draw the space-time diagram of an all-reduce: ranks are columns, time runs down, an arrow is a message.

The colors are from Okabe and Ito, for any color vision. Letters and line styles repeat their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from docs.drawing.space_time import Arrow, SpaceTime, space_time
from docs.drawing.svg import FAINT, INK, LINE, PAPER, Canvas
from parabench.collectives.algorithm import make

# One color per chunk. A picture has at most eight chunks.
COLORS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#000000")
REDUCE, GATHER, BOTH = "#fdf3e1", "#e6f2fa", "#f2f2f2"
ACROSS = "#B34700"  # a darker vermillion, for thin lines

# Pixels: margins, width of a column, height and width of a strip, space above the first round, smallest width.
LEFT, RIGHT, COLUMN, STRIP, CELLS, HEAD, NARROWEST = 112, 80, 98, 18, 46, 62, 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The options of a picture: the algorithm, the number of chunks of its tensor, title and caption."""

    algorithm: str
    title: str
    caption: str
    chunks: int | None = None  # None: one per rank
    nodes: int = 1
    height: int = 52  # of a round, in pixels
    trees: bool = False
    ring: bool = False
    server: bool = False


def letters(chunks: tuple[int, ...]) -> str:
    """Return the names of chunks: `A`, `AB`, `A-D`, `ACE`."""
    names = [chr(ord("A") + i) for i in chunks]
    if len(names) > 2 and chunks == tuple(range(chunks[0], chunks[0] + len(chunks))):
        return f"{names[0]}\u2013{names[-1]}"
    return "".join(names)


def column(rank: int) -> float:
    """Return the x of the line of a rank."""
    return LEFT + COLUMN * (rank + 0.5)


def _strip(canvas: Canvas, x: float, y: float, chunks: int, held: dict[int, float]) -> None:
    """Draw the tensor as a row of cells. Each cell is filled by the share of ranks in its sum."""
    width = CELLS / chunks
    canvas.rect(x - CELLS / 2, y, CELLS, STRIP, fill=PAPER, stroke=FAINT, stroke_width=0.8)
    for chunk, level in held.items():
        left, height = x - CELLS / 2 + width * chunk, STRIP * level
        canvas.rect(left, y + STRIP - height, width, height, fill=COLORS[chunk])
    for chunk in held:
        if chunk - 1 not in held:
            end = next(i for i in range(chunk, chunks + 1) if i not in held)
            left, whole = x - CELLS / 2 + width * chunk, width * (end - chunk)
            canvas.rect(left, y, whole, STRIP, fill="none", stroke=INK, stroke_width=0.8)


def _arrow(canvas: Canvas, picture: Picture, scene: SpaceTime, arrow: Arrow, y: float) -> None:
    finished = scene.finished(arrow)
    node = scene.size // picture.nodes
    crosses = picture.nodes > 1 and arrow.src // node != arrow.dst // node
    style: dict[str, object] = {
        "stroke": ACROSS if crosses else INK,
        "stroke_width": 3 if crosses else 1.6,
        "marker_end": f"url(#{'copy' if finished else 'add'}{'-across' if crosses else ''})",
    }
    if finished:
        style["stroke_dasharray"] = "6 3"
    x, to, top, bottom = column(arrow.src), column(arrow.dst), y + 4 + STRIP, y + picture.height - 1
    if picture.ring and scene.size > 2 and arrow.src == scene.size - 1 and arrow.dst == 0:
        # The arrow leaves at the right edge and continues at the left edge, so that it crosses no other arrow.
        middle, half = (top + bottom) / 2, COLUMN / 2
        canvas.line(x, top, x + half, middle, **(style | {"marker_end": "none"}))
        canvas.line(to - half, middle, to, bottom, **style)
        canvas.text(x + half + 4, middle + 4, f"to {arrow.dst}", font_size=11)
        canvas.text(to - half - 4, middle + 4, f"from {arrow.src}", font_size=11, text_anchor="end")
    else:
        canvas.line(x, top, to, bottom, **style)
    level = len(arrow.summed) / scene.size
    _strip(canvas, x, y + 4, scene.chunks, dict.fromkeys(arrow.chunks, level))
    words = "all" if scene.chunks == 1 else letters(arrow.chunks)
    canvas.text(x + CELLS / 2 + 3, y + STRIP, words, font_size=11, font_weight="bold")


def _trees(canvas: Canvas, scene: SpaceTime, y: float) -> float:
    """Draw both trees, with each rank in its column. Returns the y of their end."""
    for chunk in range(scene.chunks):
        parents = {a.src: a.dst for a in scene.arrows if a.chunks == (chunk,) and not scene.finished(a)}

        def depth(rank: int, parents: dict[int, int] = parents) -> int:
            return 1 + depth(parents[rank]) if rank in parents else 0

        for child, parent in parents.items():
            ends = (column(child), y + 16 + 30 * depth(child), column(parent), y + 16 + 30 * depth(parent))
            canvas.line(*ends, stroke=COLORS[chunk], stroke_width=3)
        for rank in range(scene.size):
            canvas.add("circle", cx=column(rank), cy=y + 16 + 30 * depth(rank), r=11, fill=PAPER, stroke=INK)
            canvas.text(column(rank), y + 20 + 30 * depth(rank), str(rank), text_anchor="middle", font_size=12)
        canvas.text(16, y + 20, f"tree of half {letters((chunk,))}", font_size=12, font_weight="bold")
        y += 46 + 30 * max(map(depth, range(scene.size)))
    return y


def _phases(scene: SpaceTime) -> list[tuple[int, int, str, str]]:
    """Return (first round, last round, color, words) for rounds with the same kind of messages."""
    found: list[tuple[int, int, str, str]] = []
    for number in range(1, scene.rounds + 1):
        kinds = {scene.finished(arrow) for arrow in scene.of_round(number)}
        color, words = (
            (BOTH, "both") if len(kinds) == 2 else (GATHER, "gather") if kinds == {True} else (REDUCE, "reduce")
        )
        if found and found[-1][3] == words:
            found[-1] = (found[-1][0], number, color, words)
        else:
            found.append((number, number, color, words))
    return found


def _legend(canvas: Canvas, picture: Picture, scene: SpaceTime, y: float) -> float:
    """Draw the legend. Returns the y of its end."""
    canvas.line(16, y - 4, 52, y - 4, stroke_width=1.6, marker_end="url(#add)")
    canvas.text(60, y, "reduce: a partial sum, to which the receiver adds its data", font_size=12)
    y += LINE
    canvas.line(16, y - 4, 52, y - 4, stroke_width=1.6, stroke_dasharray="6 3", marker_end="url(#copy)")
    canvas.text(60, y, "gather: a finished sum, which the receiver keeps", font_size=12)
    y += LINE
    if picture.nodes > 1:
        canvas.line(16, y - 4, 48, y - 4, stroke=ACROSS, stroke_width=3, marker_end="url(#add-across)")
        canvas.text(60, y, "thick: between the nodes", font_size=12)
        y += LINE
    _strip(canvas, 39, y - 9, scene.chunks, {0: 1 / 2})
    words = "content of a message; a fuller cell is a sum over more ranks"
    canvas.text(70, y + 4, words, font_size=12)
    return y + 30


def _frame(canvas: Canvas, picture: Picture, scene: SpaceTime, y: float, width: float) -> float:
    """Draw phases, rounds, ranks and nodes, without messages. Returns the y of the first round."""
    top = y + HEAD
    bottom = top + picture.height * scene.rounds
    for first, last, color, words in _phases(scene):
        start = top + picture.height * (first - 1)
        canvas.rect(8, start, width - 16, picture.height * (last - first + 1), fill=color)
        canvas.text(16, start + 16, words, font_size=12, font_weight="bold")
    for number in range(1, scene.rounds + 1):
        start, share = top + picture.height * (number - 1), scene.share(number)
        canvas.line(8, start, width - 8, start, stroke="#cccccc")
        canvas.text(16, start + 33, f"round {number}", font_size=12, fill=FAINT)
        words = (
            f"S/{share.denominator}" if share.numerator == 1 < share.denominator else f"{share} S".removeprefix("1 ")
        )
        canvas.text(width - 16, start + 20, words, font_size=12, fill=FAINT, text_anchor="end")
    canvas.text(width - 16, top - 8, "bytes", font_size=12, fill=FAINT, text_anchor="end")
    node = scene.size // picture.nodes
    for number in range(picture.nodes if picture.nodes > 1 else 0):
        left, across = column(number * node) - COLUMN / 2 + 4, COLUMN * node - 8
        canvas.rect(left, y - 4, across, bottom - y + 50, fill="none", stroke=FAINT, rx=6)
        canvas.text(left + across / 2, y + 11, f"node {number}", font_size=12, text_anchor="middle")
    for rank in range(scene.size):
        x, everything = column(rank), range(scene.chunks)
        canvas.line(x, top - 8, x, bottom, stroke="#999999")
        words = f"rank {rank}, server" if picture.server and rank == 0 else f"rank {rank}"
        canvas.text(x, y + 28, words, font_size=12, font_weight="bold", text_anchor="middle")
        _strip(canvas, x, top - 8 - STRIP, scene.chunks, dict.fromkeys(everything, 1 / scene.size))
        _strip(canvas, x, bottom + 6, scene.chunks, dict.fromkeys(everything, 1.0))
    canvas.text(16, top - 12, "own data", font_size=12)
    canvas.text(16, bottom + 19, "the sum", font_size=12)
    return top


def draw(picture: Picture, size: int) -> str:
    """Return the picture for `size` ranks as an SVG document. Raises UsageError for an unknown algorithm."""
    algorithm = make(picture.algorithm, size // picture.nodes if picture.nodes > 1 else None)
    scene = space_time(algorithm, size, picture.chunks or size)
    width = max(LEFT + COLUMN * size + RIGHT, NARROWEST)
    title = f"{picture.title}: all-reduce of {size} ranks"
    canvas = Canvas()
    for name, filled in (("add", True), ("copy", False)):
        canvas.marker(name, INK, filled=filled)
        canvas.marker(f"{name}-across", ACROSS, filled=filled)
    canvas.text(16, 30, title, font_size=18, font_weight="bold")
    y = canvas.paragraph(52, picture.caption, width)
    y = _legend(canvas, picture, scene, y + 10)
    if picture.trees:
        y = _trees(canvas, scene, y)
    top = _frame(canvas, picture, scene, y, width)
    for arrow in scene.arrows:
        _arrow(canvas, picture, scene, arrow, top + picture.height * (arrow.round - 1))
    total = sum(scene.share(number) for number in range(1, scene.rounds + 1))
    words = (
        f"S is the size of the tensor. In a round, a rank sends and receives at most one message. The largest "
        f"messages of the {scene.rounds} rounds add up to {total} S."
    )
    end = canvas.paragraph(top + picture.height * scene.rounds + 66, words, width)
    return canvas.document(f"{picture.algorithm}-{size}", title, f"{picture.caption} {words}", width, end)
