"""The linter: runs PyTorch code abstractly, in one mode, and shows each operation to the rules.

Layers, each importing only those above it:

``mode``         in which the code is judged
``finding``      the result: plain data
``values``       abstract values: type set, interval, provenance, and the operation that made them
``module``       facts of one file: what a name means, its functions and classes
``index``        calls, assignments and tests of one file, for rules that read its text
``hints``        what the names of parameters say
``digest``       the hash by which a file's content is known
``library``      the other files that a file's imports lead to
``frame``        a function while it is run
``operations``   what an operation of torch does to an abstract value in a mode
``evaluation``, ``conditions``, ``expressions``, ``calls``, ``statements``
                 run Python's constructs
``check``        what a rule is
``paths``        states that rules keep along the ways through a function, told apart by the tests on them
``interpreter``  the machine: runs functions, remembers classes, calls functions in line
``callers``      what the calls of a function in its file give to it
``triggers``     finds the places that rules can be about without parsing
``linter``       which functions to run, which rules to ask
``edits``, ``fixes``
                 what a fix means on a syntax tree, and carrying it out

What rules of one kind share beyond this is in :mod:`amp_rules.evidence`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from amp_rules.lint.finding import SEVERITIES, Finding, Fix, Severity, TextEdit
from amp_rules.lint.mode import DEVICES, HALF_TYPES, LEVELS, Mode

if TYPE_CHECKING:
    from amp_rules.lint.linter import Linter, LintResult, all_checks

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
    "all_checks",
]


def __getattr__(name: str) -> Any:
    # Only files that have changed need the analysis; a front end that finds all of them in its cache starts without.
    if name in ("Linter", "LintResult", "all_checks"):
        return getattr(importlib.import_module("amp_rules.lint.linter"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
