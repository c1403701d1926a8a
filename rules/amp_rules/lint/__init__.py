"""The linter: shows what PyTorch code does in one mode, as the abstract machine runs it, to the rules.

Layers, each importing only those above it:

``finding``      the result: plain data
``check``        what a rule is, and how it reports
``declarations`` what is refused of a rule, with what to write
``triggers``     finds the places that rules can be about without parsing
``linter``       which functions to run, which rules to ask
``resolved_edits``, ``leftover_imports``, ``fixes``
                 what a fix means on a syntax tree, the imports that nothing uses after it, and carrying it out

The machine is :mod:`amp_rules.lattice`, what it knows about files :mod:`amp_rules.source`. The rules are in
:mod:`amp_rules.checks`, which also finds them; the linter is given them and knows none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from amp_rules.lattice.mode import DEVICES, HALF_TYPES, LEVELS, Mode
from amp_rules.lint.finding import SEVERITIES, Finding, Fix, Severity, TextEdit

if TYPE_CHECKING:
    from amp_rules.lint.linter import Linter, LintResult

__all__ = [
    "DEVICES",
    "HALF_TYPES",
    "LEVELS",
    "SEVERITIES",
    "Finding",
    "Fix",
    "LintResult",
    "Linter",
    "Mode",
    "Severity",
    "TextEdit",
]


def __getattr__(name: str) -> Any:
    # Only files that have changed need the analysis; a front end that finds all of them in its cache starts without.
    if name in ("Linter", "LintResult"):
        return getattr(importlib.import_module("amp_rules.lint.linter"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
