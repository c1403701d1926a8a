"""The directive ``figure-of``: a plot that the build makes, once in light colours and once in dark ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import formats
import matplotlib
import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from formats import BF16, FORMATS, FP16, FP32
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = "_generated/plots"

# Okabe and Ito's colours, which are told apart with any eyes; the dark ones are lighter.
_THEMES = {
    "light": {"text": "#3b3b3b", "faint": "#d5d5d5", "cycle": ["#0072b2", "#d55e00", "#007a5a", "#a0478c"]},
    "dark": {"text": "#cfd0d0", "faint": "#4a4d50", "cycle": ["#56b4e9", "#ff9a56", "#34c79c", "#e08fc8"]},
}
_DASHES = ["-", "--", "-.", ":"]


def ranges(axes: Axes) -> None:
    """Draw the range of each format; the part with fewer digits is lighter."""
    for row, kind in enumerate(reversed(FORMATS)):
        low, normal, high = (np.log10(x) for x in (kind.smallest, kind.smallest_normal, kind.largest))
        axes.barh(row, high - normal, left=normal, height=0.5, color="C0")
        axes.barh(row, normal - low, left=low, height=0.5, color="C0", alpha=0.4)
        axes.annotate(f"{kind.smallest:.1e} to {kind.largest:.2e}", (0, row + 0.38), ha="center", fontsize=8)
    axes.set_yticks(range(len(FORMATS)), [kind.name for kind in reversed(FORMATS)])
    axes.set_ylim(-0.5, len(FORMATS) - 0.3)
    axes.set_xticks(range(-45, 46, 15), [f"$10^{{{power}}}$" for power in range(-45, 46, 15)])
    axes.set_xlabel("positive numbers that it holds; pale: subnormal, with fewer digits")


def spacing(axes: Axes) -> None:
    """Draw the relative distance between neighbours over the size of a number."""
    for index, kind in enumerate(FORMATS):
        x = np.logspace(np.log10(max(kind.smallest, 1e-12)), np.log10(min(kind.largest, 1e6)), 2000)
        axes.loglog(x, kind.spacing(x) / x, _DASHES[index], label=kind.name, linewidth=1.4)
    axes.set_xlabel("size of the number")
    axes.set_ylabel("distance to the next, relative")
    axes.legend(ncols=2)


def underflow(axes: Axes) -> None:
    """Draw the sizes of gradients, as they are and scaled, with fp16's smallest number."""
    values = formats.gradients()
    bins = np.arange(-40, 3, 1.0)
    for index, scale in enumerate((1.0, 2.0**16)):
        label = "as they are" if scale == 1 else "scaled by $2^{16}$"
        counts, _ = np.histogram(np.log2(values * scale), bins)
        axes.stairs(100 * counts / len(values), bins, label=label, fill=True, alpha=0.55, color=f"C{index}")
    axes.axvline(np.log2(FP16.smallest), color="C2", linestyle="--", label="smallest in fp16")
    axes.axvline(np.log2(FP16.smallest_normal), color="C2", linestyle=":", label="smallest with all digits")
    axes.set_xlabel("size of a gradient, as a power of two")
    axes.set_ylabel("share of all, in %")
    axes.legend(fontsize=8)


def sums(axes: Axes) -> None:
    """Draw the sum of ones in accumulators of three formats."""
    ones = np.ones(4096)
    for index, kind in enumerate((FP32, FP16, BF16)):
        axes.plot(np.arange(1, 4097), formats.running_sum(ones, kind), _DASHES[index], label=f"added up in {kind.name}")
    axes.set_xlabel("number of ones")
    axes.set_ylabel("sum")
    axes.legend()


def exponentials(axes: Axes) -> None:
    """Draw the softmax of two scores, the one 0 and the other growing, computed in two ways in fp16."""
    x = np.linspace(0, 20, 401)
    scores = FP16.round(np.stack([x, np.zeros_like(x)]))
    axes.plot(x, formats.softmax(scores, FP16, shifted=True)[0], label="maximum taken off first")
    axes.plot(x, formats.softmax(scores, FP16, shifted=False)[0], "--", label="as the formula says", linewidth=2.5)
    axes.axvline(np.log(FP16.largest), color="C2", linestyle=":", label=f"exp overflows at {np.log(FP16.largest):.2f}")
    axes.set_xlabel("score $x$ in fp16")
    axes.set_ylabel("first of softmax$(x, 0)$")
    axes.legend()


def epsilons(axes: Axes) -> None:
    """Draw what is left of an epsilon when it is stored."""
    x = np.geomspace(*formats.EPSILONS, 1500)
    for index, kind in enumerate((FP16, BF16)):
        axes.semilogx(x, kind.round(x) / x, _DASHES[index], label=kind.name, color=f"C{1 - index}")
    axes.axvline(1e-8, color="C2", linestyle=":", label="1e-8")
    axes.set_xlabel("epsilon as it is written")
    axes.set_ylabel("part of it that is stored")
    axes.legend()


def scaling(axes: Axes) -> None:
    """Draw a dynamic loss scale over a run, with the steps that were skipped."""
    run = formats.dynamic_scaling()
    steps = np.arange(len(run.scales))
    axes.step(steps, run.scales, where="post", label="loss scale")
    axes.plot(steps[run.skipped], run.scales[run.skipped], "x", color="C1", label="overflow: step skipped")
    axes.set_yscale("log", base=2)
    axes.set_xlabel("step")
    axes.set_ylabel("scale")
    axes.legend()


def reassociation(axes: Axes) -> None:
    """Draw how far sums in shares are from the sum of one process."""
    for place, count in enumerate(formats.SHARES):
        values = formats.reassociated(count)
        axes.plot(np.full(len(values), place) + np.linspace(-0.2, 0.2, len(values)), values, ".", color="C0", alpha=0.6)
    axes.axhline(FP32.epsilon, color="C1", linestyle="--", label="spacing of fp32, relative")
    axes.set_xticks(range(len(formats.SHARES)), [str(count) for count in formats.SHARES])
    axes.set_xlabel("processes that the same 4096 numbers are shared among")
    axes.set_ylabel("relative difference of the sum")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1)


PLOTS: dict[str, Callable[[Axes], None]] = {
    function.__name__: function
    for function in (ranges, spacing, underflow, sums, exponentials, epsilons, scaling, reassociation)
}


def draw(name: str, theme: str, path: Path) -> None:
    """Write one plot as SVG with a clear ground."""
    colours = _THEMES[theme]
    style = {
        "svg.hashsalt": name,
        "font.size": 9,
        "axes.prop_cycle": matplotlib.cycler(color=colours["cycle"]),
        "axes.edgecolor": colours["faint"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": colours["faint"],
        "grid.linewidth": 0.5,
        "legend.frameon": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), colours["text"]),
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(6.4, 3.0), layout="constrained")
        PLOTS[name](figure.add_subplot())
        figure.savefig(path, transparent=True, metadata={"Date": None})


def draw_all(app: Sphinx) -> None:
    """Draw every plot in both themes, unless those of the last build are younger than what draws them."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    changed = max(Path(module).stat().st_mtime for module in (__file__, formats.__file__))
    for name in PLOTS:
        for theme in _THEMES:
            path = folder / f"{name}-{theme}.svg"
            if not path.exists() or path.stat().st_mtime < changed:
                draw(name, theme, path)


class FigureOf(SphinxDirective):
    """A figure of the plot with the given name; the content is its caption."""

    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return the figure, with one image for each theme."""
        name = self.arguments[0]
        if name not in PLOTS:
            raise self.error(f"there is no plot {name!r}; there are {', '.join(PLOTS)}")
        if not self.options.get("alt"):
            raise self.error(f"the plot {name!r} needs a text for those who do not see it: :alt:")
        figure = nodes.figure(classes=["plot"])
        for theme in _THEMES:
            image = nodes.image(uri=f"/{FOLDER}/{name}-{theme}.svg", alt=self.options["alt"], classes=[f"only-{theme}"])
            figure += image
        caption = self.parse_content_to_nodes()
        figure += nodes.caption("", "", *caption[0].children if caption else ())
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and have the plots drawn first."""
    app.add_directive("figure-of", FigureOf)
    app.connect("builder-inited", draw_all)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
