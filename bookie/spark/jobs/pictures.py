"""Makes reports of one HTML page with SVG pictures, without any library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

BAR_HEIGHT = 18
LABEL_WIDTH = 220
BARS_WIDTH = 420
FONT = "font-family='sans-serif' font-size='12'"

OK = "#2b8a3e"
BAD = "#c92a2a"
OPEN = "#e67700"

Part = tuple[float, str]
"""The length of one part of a bar, and the part's colour."""

Bar = tuple[str, Sequence[Part], str]
"""The label of a bar, its parts, and the text to the right of the bar."""

_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:60em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;"
    "border-bottom:1px solid #ddd}td.n{text-align:right}.good{color:#2b8a3e}.bad{color:#c92a2a}"
)


def bars(rows: Sequence[Bar]) -> str:
    """Return an SVG picture with one bar below the other; the longest bar fills the width."""
    longest = max((sum(size for size, _ in parts) for _, parts, _ in rows), default=0) or 1
    height = (BAR_HEIGHT + 6) * len(rows) + 6
    width = LABEL_WIDTH + BARS_WIDTH + 160
    shapes = []
    for number, (label, parts, text) in enumerate(rows):
        top = 6 + number * (BAR_HEIGHT + 6)
        left: float = LABEL_WIDTH
        middle = top + BAR_HEIGHT - 5
        shapes.append(
            f"<text x='{LABEL_WIDTH - 8}' y='{middle}' text-anchor='end' {FONT}>"
            f"{escape(label)}</text>"
        )
        for size, colour in parts:
            # A small part must stay visible.
            length = max(2.0, BARS_WIDTH * size / longest) if size else 0.0
            shapes.append(
                f"<rect x='{left:.1f}' y='{top}' width='{length:.1f}' height='{BAR_HEIGHT}' "
                f"fill='{colour}'/>"
            )
            left += length
        shapes.append(f"<text x='{left + 8:.1f}' y='{middle}' {FONT}>{escape(text)}</text>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>"
        + "".join(shapes)
        + "</svg>"
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table, with numbers aligned to the right."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def page(title: str, parts: Sequence[str]) -> str:
    """Return an HTML page with the title and all parts."""
    return (
        "<!DOCTYPE html><html><head><meta charset='utf-8'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def sentence(text: str, kind: str = "") -> str:
    """Return an HTML paragraph; its class `kind` is ``good``, ``bad`` or empty."""
    return f"<p class='{kind}'>{escape(text)}</p>"


def heading(text: str) -> str:
    """Return an HTML heading within a page."""
    return f"<h2>{escape(text)}</h2>"


def size_text(count: float) -> str:
    """Return a number of bytes as text for people, such as ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit ends the loop")


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<td class='n'>{value}</td>"
    return f"<td>{escape(str(value))}</td>"
