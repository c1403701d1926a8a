"""Outputs of models that are handed to NumPy: it has no bfloat16, and the runtime gives it float32 copies."""

from __future__ import annotations

import ast
import re

import libcst as cst

from amp_rules.checks.types.numpy_bf16 import NumpyBf16
from amp_rules.lattice.mode import Mode
from amp_rules.lint.linter import Linter
from amp_rules.source.modules import Module, parse
from amp_rules.source.text import SourceError, SourceFile
from amp_rules.text.actions import Action, Replace
from amp_rules.text.applying import apply
from amp_rules.text.expression_edits import widened

_OF_DOUBLES = re.compile(r"\.double\(|\btorch\.(float64|double)\b|set_default_(dtype|tensor_type)")
"""What makes outputs float64 perhaps, which would lose digits."""


def widened_for_numpy(module: Module, text: str) -> str:
    """The new text of a file with what the linter knows for an output of a model made float32 before NumPy gets it."""
    if ".numpy(" not in text or module.cells or _OF_DOUBLES.search(text):
        return text
    source = SourceFile(module.source.path, module.source.encode(text), text, module.source.encoding)
    try:
        found = Linter(Mode("O1", "bf16"), [NumpyBf16()]).lint(source).findings
    except (SourceError, RecursionError):
        return text
    if not found:
        return text
    new = parse(source, is_entry=module.is_entry)
    spans = {item.span for item in found}
    actions: list[Action] = [
        Replace(node.func, _of_widened)
        for node in new.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "numpy"
        and new.span(node) in spans
    ]
    return apply(new, actions) if actions else text


def _of_widened(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x.numpy`` becomes ``x.float().numpy``."""
    method = cst.ensure_type(node, cst.Attribute)
    return method.with_changes(value=widened(method.value))
