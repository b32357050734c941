"""How figures are drawn: matplotlib's SVG with colours that the page's theme decides, or fixed ones for files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penni.errors import PenniError

# On the page a figure must follow the theme. Matplotlib knows no CSS, so each role gets a colour that nothing else
# has, which becomes the theme's variable in the finished SVG.
_ROLES = {
    "ink": ("#010101", "currentColor", "#1c2330"),
    "grid": ("#010203", "var(--grid)", "#d5dae3"),
    "before": ("#010205", "var(--before)", "#9aa5b8"),
    "after": ("#010207", "var(--after)", "#1d62d8"),
    "accent": ("#010209", "var(--accent)", "#c2570c"),
    "shade": ("#01020b", "var(--shade)", "#f3e3d3"),
}
# From the first layer to the last; all can be read on light and on dark.
_DEPTHS = ((0.05, 0.58, 0.42), (0.24, 0.50, 0.93), (0.83, 0.28, 0.62))


@dataclass(frozen=True)
class Palette:
    """The colour of each role."""

    ink: str
    grid: str
    before: str
    after: str
    accent: str
    shade: str


FOR_PAGE = Palette(**{role: colours[0] for role, colours in _ROLES.items()})
FOR_FILES = Palette(**{role: colours[2] for role, colours in _ROLES.items()})


def depth_colour(share: float) -> tuple[float, float, float]:
    """From the first layer's colour (0) to the last one's (1)."""
    index = min(int(2 * share), 1)
    start, end, part = _DEPTHS[index], _DEPTHS[index + 1], 2 * share - index
    red, green, blue = (one + (other - one) * part for one, other in zip(start, end, strict=True))
    return (red, green, blue)


@contextmanager
def style(palette: Palette) -> Iterator[Any]:
    """Matplotlib's pyplot with the project's look, on no screen, leaving the user's own settings alone."""
    try:
        import matplotlib
    except ImportError as error:
        raise PenniError("the report's figures need matplotlib: pip install 'penni[report]'") from error
    settings = {
        "font.size": 10,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.linewidth": 0.6,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "legend.frameon": False,
        "legend.fontsize": 9,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }
    settings |= dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), palette.ink
    )
    settings["grid.color"] = palette.grid
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure

        yield Figure


def as_svg(figure: Any, name: str) -> str:
    """The figure as an SVG for the page: themed, scalable, its ids its own; `layer-N` parts carry data-layer."""
    text = svg_file(figure, text="none")
    text = text[text.index("<svg") :]
    for marker, variable, _ in _ROLES.values():
        text = text.replace(marker, variable)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(rf'id="{name}-layer-(\d+)([^"]*)"', rf'id="{name}-layer-\1\2" data-layer="\1"', text)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def svg_file(figure: Any, text: str = "path") -> str:
    """The figure as an SVG document; its text as outlines, which look alike everywhere, or ("none") as text."""
    import matplotlib

    stream = io.StringIO()
    # The salt makes the file depend on nothing but the figure.
    with matplotlib.rc_context({"svg.fonttype": text, "svg.hashsalt": "penni"}):
        figure.savefig(stream, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    return stream.getvalue()


def png_file(figure: Any) -> bytes:
    """The figure as pixels, on white."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=160, bbox_inches="tight", pad_inches=0.05, facecolor="white")
    return stream.getvalue()
