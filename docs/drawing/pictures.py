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
        caption="Every rank sends to its right neighbour only. A chunk goes round once and collects every rank's "
        "contribution; then the finished chunk goes round once more, and everybody keeps a copy.",
        ring=True,
    ),
    Picture(
        algorithm="tree",
        title="Double binary tree",
        caption="Half A of the tensor is summed up one tree to its root and copied down again; half B uses the "
        "mirrored tree. A rank that is a leaf in one tree is an inner node in the other. A large tensor goes in many "
        "pieces, one close behind the other; here each half is one piece.",
        chunks=2,
        trees=True,
    ),
    Picture(
        algorithm="halving_doubling",
        title="Recursive halving, then doubling",
        caption="Pairs swap halves of what they still sum: first with the rank half the group away, then a quarter "
        "away, until each holds one finished chunk. The same way back doubles what each one holds.",
        height=66,
    ),
    Picture(
        algorithm="parameter_server",
        title="Parameter server",
        caption="Everybody sends its whole tensor to rank 0, which takes them one after the other, sums them, and "
        "sends the whole sum to everybody, again one after the other.",
        chunks=1,
        server=True,
    ),
    Picture(
        algorithm="two_level",
        title="Two levels, two nodes",
        caption="Ranks of a node share out the sum of their chunks. Then each chunk is all-reduced with the same place "
        "in the other node: only these thick arrows cross the slow link. Then each node gathers the whole.",
        nodes=2,
        height=66,
    ),
)


def every() -> dict[str, str]:
    """{file name: SVG document} of all pictures."""
    return {f"{each.algorithm}-{size}.svg": draw(each, size) for each in PICTURES for size in SIZES}


def main(folder: Path) -> None:
    """Write every picture into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in every().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures"))
