"""The drawings of a report: SVG that takes its colours from the page, in a wide form and in one for phones.

matplotlib writes colours as it is given them, so each is drawn in one of its own that stands for a variable of the
style sheet, and is replaced by that in the end.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from amp_migrate.report.measures import Measures, RunRow
from amp_migrate.verify.checks.common import percent
from amp_migrate.verify.evidence import Evidence
from amp_migrate.verify.plan import ORIGINAL
from amp_migrate.verify.words import OTHER_NUMBERS

_KEYS = ("text", "muted", "line", "original", "o0", "o1", "o2", "o3", "together", "o1-together")
_STANDS_FOR = {key: f"#0f1e{number:02x}" for number, key in enumerate(_KEYS, start=16)}
_STROKES: Mapping[str, tuple[object, float]] = {
    "original": ("solid", 4.5),
    "o0": ((0, (4, 2)), 1.6),
    "o1": ("solid", 1.5),
    "o2": ((0, (6, 1.5, 1, 1.5)), 1.5),
    "o3": ((0, (1, 1)), 1.7),
    "together": ((0, (2, 1.5)), 1.5),
    "o1-together": ((0, (5, 1, 1, 1, 1, 1)), 1.5),
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _STANDS_FOR["line"],
    "axes.labelcolor": _STANDS_FOR["muted"],
    "axes.titlecolor": _STANDS_FOR["text"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "text.color": _STANDS_FOR["text"],
    "xtick.color": _STANDS_FOR["line"],
    "ytick.color": _STANDS_FOR["line"],
    "xtick.labelcolor": _STANDS_FOR["muted"],
    "ytick.labelcolor": _STANDS_FOR["muted"],
    "legend.frameon": False,
    # A parser must not take a name with dollars for a formula.
    "text.parse_math": False,
}
_WIDE, _NARROW = 9.6, 4.4
_PANELS = 4


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes:
        id: unique on the page.
        title: its heading.
        text: what is to be seen on it, in words.
        caption: what is needed to read it.
        wide: for screens and paper.
        narrow: for phones.
    """

    id: str
    title: str
    text: str
    caption: str
    wide: Markup
    narrow: Markup


def drawings(evidence: Evidence, measures: Measures) -> list[Drawing]:
    """Draw what there is numbers for."""
    return [_losses(evidence, measures)] if measures.drawn else []


# ---- losses --------------------------------------------------------------------------------------------------


def _losses(evidence: Evidence, measures: Measures) -> Drawing:
    rows = measures.drawn
    sites = sorted({site for row in rows for site in row.run.sites}) or [0]
    shown = sites[:_PANELS]

    def draw(canvas: Canvas, narrow: bool) -> None:
        grid = canvas.subplots(len(shown) if narrow else 1, 1 if narrow else len(shown), squeeze=False, sharex=True)
        axes = list(grid.flat)
        for site, panel in zip(shown, axes, strict=True):
            _curves(panel, rows, site, evidence.tolerance)
            panel.set_title(f"backward call {site + 1}" if len(sites) > 1 else "loss at each backward call")
        for panel in axes[-1:] if narrow else axes:
            panel.set_xlabel("step")
        handles, labels = axes[0].get_legend_handles_labels()
        canvas.legend(
            handles, labels, loc="outside upper left", ncols=2 if narrow else 6, handlelength=2.6, columnspacing=1.4
        )

    count = len(shown)
    sizes = ((_WIDE, 3.3), (_NARROW, 1.2 + 2.3 * count))
    known = measures.levels if measures.repeats else []
    levels = [f"{row.run.name} by at most {row.deviation}" for row in known]
    text = f"Losses of {', '.join(row.run.name for row in rows)} over up to {max(row.steps for row in rows)} steps."
    if levels:
        text += f" Apart from the original: {', '.join(levels)}."
    caption = f"The shaded band is {percent(evidence.tolerance)} of the original's loss to either side."
    if len(sites) > count:
        caption += f" Of {len(sites)} backward calls the first {count} are shown."
    if several := [row.run.processes for row in rows if row.run.processes > 1]:
        caption += f" In {several[0]} processes a step takes {several[0]} batches: fewer steps, and other losses."
    if not measures.repeats:
        caption += f" {OTHER_NUMBERS}"
    return _drawing("losses", "Losses", text, caption, sizes, draw)


def _curves(panel: Axes, rows: Sequence[RunRow], site: int, tolerance: float) -> None:
    for row in rows:
        steps, losses = _of_site(row, site)
        style, width = _STROKES[row.key]
        colour = _STANDS_FOR[row.key]
        is_original = row.run.name == ORIGINAL
        panel.plot(
            steps,
            losses,
            color=colour,
            linestyle=style,
            linewidth=width,
            label=row.run.name,
            solid_capstyle="round",
            alpha=0.45 if is_original else 1,
            marker="o" if len(steps) == 1 else "",
        )
        if is_original and len(steps) > 1:
            typical = sum(map(abs, losses)) / len(losses)
            half = [tolerance * max(abs(loss), typical) for loss in losses]
            low = [loss - width for loss, width in zip(losses, half, strict=True)]
            high = [loss + width for loss, width in zip(losses, half, strict=True)]
            panel.fill_between(steps, low, high, color=colour, alpha=0.14, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.yaxis.set_major_locator(MaxNLocator(5))
    panel.grid(axis="y", color=_STANDS_FOR["line"], linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)
    panel.spines["left"].set_visible(False)


def _of_site(row: RunRow, site: int) -> tuple[list[int], list[float]]:
    """The steps and losses of one backward call of the script, without those that are not finite."""
    sites = row.run.sites or (0,) * len(row.run.losses)
    pairs = [
        (step, loss)
        for step, (loss, own) in enumerate(zip(row.run.losses, sites, strict=False), start=1)
        if own == site and loss is not None
    ]
    return [step for step, _ in pairs], [loss for _, loss in pairs]


# ---- from matplotlib to the page -----------------------------------------------------------------------------


def _drawing(
    name: str,
    title: str,
    text: str,
    caption: str,
    sizes: tuple[tuple[float, float], tuple[float, float]],
    draw: Callable[[Canvas, bool], None],
) -> Drawing:
    wide, narrow = (_svg(f"{name}-{form}", text, size, draw, form == "narrow") for form, size in _forms(sizes))
    return Drawing(name, title, text, caption, wide, narrow)


def _forms(sizes: tuple[tuple[float, float], tuple[float, float]]) -> Iterator[tuple[str, tuple[float, float]]]:
    yield from zip(("wide", "narrow"), sizes, strict=True)


def _svg(name: str, text: str, size: tuple[float, float], draw: Callable[[Canvas, bool], None], narrow: bool) -> Markup:
    out = io.StringIO()
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=size, layout="constrained")
        draw(canvas, narrow)
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    head, _, body = out.getvalue().partition("<svg")[2].partition(">")
    box = re.search(r'viewBox="([^"]+)"', head)
    # Its style sheet would be the whole page's, and its metadata say nothing of the drawing.
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    # Several drawings share a page, and so do their names.
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", body).replace("'DejaVu Sans'", "var(--sans)")
    for key, colour in _STANDS_FOR.items():
        body = body.replace(colour, f"var(--{key})")
    return Markup(f'<svg role="img" aria-label="{escape(text)}" viewBox="{box[1] if box else ""}">{body}')
