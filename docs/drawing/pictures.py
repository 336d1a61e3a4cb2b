"""The pictures of docs/reference/algorithms.md, drawn from what the algorithms really send.

`python -m docs.drawing.pictures docs/pictures` writes them; a test holds that they are up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.drawing.diagram import Picture, draw

SIZES = (4, 8)

PICTURES = (
    Picture(
        algorithm="ring",
        title="Ring",
        caption="Every rank sends to its right neighbor only. A chunk goes around once to collect every rank's "
        "contribution. Then the finished chunk goes around once more, and each rank keeps a copy.",
        ring=True,
    ),
    Picture(
        algorithm="tree",
        title="Double binary tree",
        caption="Half A of the tensor is summed up one tree to its root and copied down again. Half B uses the "
        "mirrored tree. A leaf of one tree is an inner node of the other. A large tensor is divided into many "
        "pieces, which follow each other closely; here each half is one piece.",
        chunks=2,
        trees=True,
    ),
    Picture(
        algorithm="halving_doubling",
        title="Recursive halving, then doubling",
        caption="Pairs of ranks exchange halves: first with the rank at half the group's distance, then at a quarter, "
        "until each rank holds one finished chunk. On the way back, the part of each rank doubles.",
        height=66,
    ),
    Picture(
        algorithm="parameter_server",
        title="Parameter server",
        caption="Every rank sends its whole tensor to rank 0. Rank 0 receives them one after the other, adds them up, "
        "and sends the whole sum to every rank, again one after the other.",
        chunks=1,
        server=True,
    ),
    Picture(
        algorithm="two_level",
        title="Two levels, two nodes",
        caption="A reduce-scatter inside each node leaves each rank with one chunk. Each chunk is then all-reduced "
        "with the rank at the same position in the other node. Only these thick arrows cross the slow link. An "
        "all-gather inside each node completes the tensor.",
        nodes=2,
        height=66,
    ),
)


def every() -> dict[str, str]:
    """Return {file name: SVG document} of all pictures."""
    return {f"{each.algorithm}-{size}.svg": draw(each, size) for each in PICTURES for size in SIZES}


def main(folder: Path) -> None:
    """Write all pictures to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in every().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures"))
