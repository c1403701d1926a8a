"""Where an expression finds its evaluator: the modules that know the kinds of expressions enter theirs here."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from amp_rules.lint.frame import Frame
from amp_rules.lint.values import Value

EVALUATORS: dict[type, Callable[[Frame, Any], Value]] = {}
"""Kind of expression to the function that evaluates it."""


def evaluate(frame: Frame, node: ast.expr) -> Value:
    """What an expression may be."""
    function = EVALUATORS.get(node.__class__)
    if function is None:
        return Value("other", node)
    return function(frame, node)
