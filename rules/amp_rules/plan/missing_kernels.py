"""Which operations of the training step raise in half precision.

The points-to analysis says which calls are certainly such an operation and run with the step; the linter's analysis of
types says at which levels their operand is half.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.types.lowp_unsupported_op import LowpUnsupportedOp
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import HALF_TYPES, LEVELS, HalfType, Mode
from amp_rules.lattice.operation_names import function_named
from amp_rules.lint.linter import Linter
from amp_rules.plan.options import Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.text import SourceError

Raising = set[object]
"""The places of one file where an operation is given a half tensor that it does not take."""


def raising(program: Program, precision: Precision, options: Options) -> Iterator[Site]:
    """Yield each call of the training step that raises in half precision, by file and line."""
    judged: dict[tuple[Module, HalfType], Raising] = {}
    for site in precision.nodes(program):
        for dtype in _types(options):
            if not _may_lack_kernel(program, site, dtype):
                continue
            module = site.module
            if (module, dtype) not in judged:
                judged[module, dtype] = _raising(module, dtype)
            if module.span(site.node) in judged[module, dtype]:
                yield site
                break


def _types(options: Options) -> tuple[HalfType, ...]:
    """The half types in which the script may run."""
    return HALF_TYPES if options.dtype == "auto" else (options.dtype,)


def _may_lack_kernel(program: Program, site: Site, dtype: HalfType) -> bool:
    """Whether a call is of an operation without a half kernel: for certain, or a method that is called like one."""
    call = site.node
    if not isinstance(call, ast.Call):
        return False
    names = program.callee_names(call, site.scope)
    if names:
        return bool(call.args) and all(_has_none(function_named(name), dtype) for name in names)
    is_method = isinstance(call.func, ast.Attribute) and not program.flow.callees(call)
    return is_method and _has_none(function_named(f"torch.{call.func.attr}"), dtype)  # type: ignore[attr-defined]


def _has_none(operation: str, dtype: HalfType) -> bool:
    # Of Fourier transforms fp16 takes some sizes, which the text mostly does not tell.
    return fate(operation, Mode("O3", dtype), autocast=False) == "no kernel"


def _raising(module: Module, dtype: HalfType) -> Raising:
    """Where the linter finds that an operation of a file raises, at one level or another."""
    found: Raising = set()
    for level in LEVELS:
        linter = Linter(Mode(level, dtype), [LowpUnsupportedOp(anyones=True)], in_regions=True)
        try:
            found |= {item.span for item in linter.lint(module.source).findings}
        except (SourceError, RecursionError):
            continue
    return found
