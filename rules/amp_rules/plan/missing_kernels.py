"""Which operations of the training step raise in half precision, or make complex numbers of half parts.

The points-to analysis says which calls are certainly such an operation and run with the step; the linter's analysis of
types says at which levels their operand is half.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.checks.common.mixed_types import float_type
from amp_rules.checks.types.lowp_unsupported_op import LowpUnsupportedOp
from amp_rules.lattice.abstract_values import LOW, OTHER, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import HALF_TYPES, LEVELS, HalfType, Mode
from amp_rules.lattice.operation_names import function_named
from amp_rules.lint.linter import Linter
from amp_rules.plan.options import Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.source.text import SourceError

Raising = set[object]
"""The places of one file where an operation is given a half tensor that it does not take."""


class _Imaginary(LowpUnsupportedOp):
    """Finds products of ``1j`` and a half tensor: of float16 they are complex32, for which torch has few operations.

    Of bfloat16 they are complex64, by torch's rules.
    """

    triggers = (re.compile(r"\dj\b"),)
    operations = ("mul",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge both operands."""
        is_imaginary = any(not item.tensor and item.dtypes == OTHER for item in op.args)
        half = next((item for item in op.args if float_type(item, frame) == LOW), None)
        if op.node is not None and frame.mode.fp16 and is_imaginary and half is not None:
            self.report(frame, op.node, f"`{frame.text(op.node)}` is complex32", culprit=half)


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
    if isinstance(call, ast.BinOp):
        return isinstance(call.op, ast.Mult) and any(map(has_imaginary, (call.left, call.right)))
    if not isinstance(call, ast.Call):
        return False
    names = program.callee_names(call, site.scope)
    if names:
        return bool(call.args) and all(_has_none(function_named(name), dtype) for name in names)
    is_method = isinstance(call.func, ast.Attribute) and not program.flow.callees(call)
    return is_method and _has_none(function_named(f"torch.{call.func.attr}"), dtype)  # type: ignore[attr-defined]


def has_imaginary(node: ast.expr) -> bool:
    """Whether an expression has an imaginary number in it."""
    return any(isinstance(part, ast.Constant) and isinstance(part.value, complex) for part in walk(node))


def _has_none(operation: str, dtype: HalfType) -> bool:
    # Of Fourier transforms fp16 takes some sizes, which the text mostly does not tell.
    return fate(operation, Mode("O3", dtype), autocast=False) == "no kernel"


def _raising(module: Module, dtype: HalfType) -> Raising:
    """Where the linter finds that an operation of a file raises, at one level or another."""
    found: Raising = set()
    for level in LEVELS:
        checks = [LowpUnsupportedOp(anyones=True), _Imaginary()]
        linter = Linter(Mode(level, dtype), checks, in_regions=True)
        try:
            found |= {item.span for item in linter.lint(module.source).findings}
        except (SourceError, RecursionError):
            continue
    return found
