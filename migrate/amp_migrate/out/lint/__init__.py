"""How a run is printed: one format a file.

Each module has a function ``render(run, options)`` that yields pieces of text.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from amp_migrate.lint.lint_run import LintRun

_MODULES = {
    "full": "full",
    "concise": "concise",
    "json": "lint_json",
    "sarif": "lint_sarif",
    "github": "lint_github",
    "gitlab": "gitlab",
    "rdjson": "lint_rdjson",
}
FORMATS = tuple(_MODULES)


@dataclass(frozen=True)
class RenderOptions:
    """What the formats for people may be told.

    Attributes:
        colour: whether to use the terminal's colours.
        unsafe_fixes: whether fixes that want a reader are shown as applicable.
    """

    colour: bool = False
    unsafe_fixes: bool = False


class Format(Protocol):
    """A module of this package."""

    def render(self, run: LintRun, options: RenderOptions) -> Iterator[str]:
        """Yield the text of a run, piece by piece."""
        ...


def load_format(name: str) -> Format:
    """Return the format ``name``, one of :data:`FORMATS`."""
    return cast(Format, importlib.import_module(f"{__name__}.{_MODULES[name]}"))
