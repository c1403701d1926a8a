"""The picture of a training's steps: one HTML file with nothing beside it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from amp_runtime._timing.stats import Step, StepStats

_BARS = 240
_WIDTH, _HEIGHT = 960.0, 240.0
_READER, _REST, _COLD = "#d97706", "#2563eb", "#9ca3af"
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Steps of the training</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ width: 100%; height: auto }} svg text {{ font-size: 12px; fill: currentColor }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884 }}
th:first-child {{ text-align: left }}
.key {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }}
:root {{ color-scheme: light dark }}
</style></head><body>
<h1>Steps of the training</h1>
<p>{sentence}</p>
{advice}
<p><span class="key" style="background:{reader_colour}"></span>waiting for the batch
<span class="key" style="background:{rest_colour}"></span>the rest of the step
<span class="key" style="background:{cold_colour}"></span>warm-up, which the figures leave out</p>
{picture}
<table><tr><th></th><th>average</th><th>largest</th><th>smallest</th></tr>
{rows}</table>
</body></html>
"""


def page(steps: Sequence[tuple[int, Step]], warmup: int, stats: StepStats, unit: str, advice: Sequence[str]) -> str:
    """The page, as HTML.

    Args:
        steps: each with its number, from 1.
        warmup: how many first steps the figures leave out.
        stats: the figures of the others.
        unit: of ``ips``, as ``"samples/s"``.
        advice: sentences of plain text.
    """
    rows = [
        ("reader_cost (s)", [f"{value:.5f}" for value in stats.reader_cost]),
        ("batch_cost (s)", [f"{value:.5f}" for value in stats.batch_cost]),
        (f"ips ({unit})", [f"{value:.1f}" for value in stats.ips]),
    ]
    told = "".join(f"<li>{html.escape(line)}</li>" for line in advice)
    return _PAGE.format(
        sentence=_sentence(stats),
        advice=f"<ul>{told}</ul>" if told else "",
        reader_colour=_READER,
        rest_colour=_REST,
        cold_colour=_COLD,
        picture=_picture(steps, warmup),
        rows="\n".join(_row(html.escape(name), values) for name, values in rows),
    )


def _sentence(stats: StepStats) -> str:
    if not stats.steps:
        return "No step has ended after the warm-up yet."
    return (
        f"{stats.steps} steps after the warm-up. Reader ratio: {100 * stats.reader_ratio:.1f} % of the time went by "
        "waiting for batches."
    )


def _row(name: str, values: Sequence[str]) -> str:
    return f"<tr><th>{name}</th>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>"


def _picture(steps: Sequence[tuple[int, Step]], warmup: int) -> str:
    """Bars of the steps; of neighbours together where they are many, each as high as their average."""
    if not steps:
        return ""
    size = -(-len(steps) // _BARS)
    groups = [steps[first : first + size] for first in range(0, len(steps), size)]
    heights = [sum(step.batch for _, step in group) / len(group) for group in groups]
    top = max(heights) or 1.0
    wide = _WIDTH / len(groups)
    bars = []
    for number, (group, height) in enumerate(zip(groups, heights, strict=True)):
        reader = sum(step.reader for _, step in group) / len(group)
        first, last = group[0][0], group[-1][0]
        of = f"step {first}" if first == last else f"steps {first} to {last}"
        bars.append(
            f"<g><title>{of}: {height:.5f} s, of which {reader:.5f} s waiting</title>"
            + _bar(number * wide, wide, height / top, _COLD if last <= warmup else _REST)
            + _bar(number * wide, wide, min(reader, height) / top, _READER)
            + "</g>"
        )
    axis = (
        f'<text x="0" y="12">{top:.4g} s</text>'
        f'<text x="0" y="{_HEIGHT + 14}">step {steps[0][0]}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end">step {steps[-1][0]}</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 20}" role="img" aria-label="Seconds of each step">'
        + "".join(bars)
        + axis
        + "</svg>"
    )


def _bar(x: float, wide: float, part: float, colour: str) -> str:
    # The top 20 units stay free for the axis.
    scale = _HEIGHT - 20
    return (
        f'<rect x="{x:.2f}" y="{_HEIGHT - scale * part:.2f}" width="{max(wide - 0.5, 0.5):.2f}" '
        f'height="{scale * part:.2f}" fill="{colour}"/>'
    )
