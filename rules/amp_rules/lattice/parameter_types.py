"""What a function's own text says of the types of a parameter: its annotation, its use, its name and its page."""

from __future__ import annotations

import ast
import re

from amp_rules.lattice.abstract_values import ASSUMED, BOOL, F32, FLOATS, INT, LOW, NUM, OTHER, PASSING, Value
from amp_rules.lattice.known_values import KnownOfFile
from amp_rules.lattice.parameter_names import possible_types
from amp_rules.lattice.variable_uses import uses_in
from amp_rules.source.facts import FunctionFacts

_PLAIN = frozenset(
    "int float bool str dict list tuple Dict List Tuple Callable Path Any Mapping Sequence Iterable".split()
)
_WHOLE = re.compile(r"(?:Long|Int|Short|Byte)Tensor|\bU?Int(?:8|16|32|64)?\[")
_BOOLEAN = re.compile(r"BoolTensor|\bBool\[")
_DOCUMENTED = re.compile(r"(?:Long|Int|Byte|Bool)_?Tensor|torch\.(?:long|bool|int\d*|uint8)\b")


def narrow(made: Value, item: ast.arg, function: FunctionFacts, unknown_float: int, known: KnownOfFile) -> None:
    """Narrow the types of a parameter by what its function says of it.

    Args:
        made: the parameter's value, with the types of an activation or of its default.
        item: the parameter.
        function: whose it is.
        unknown_float: the types of an activation.
        known: what is known of the file.
    """
    annotation = item.annotation
    if annotation is not None:
        _annotate(made, annotation.id if isinstance(annotation, ast.Name) else ast.unparse(annotation), unknown_float)
    if made.tensor == 0 or not made.dtypes & (FLOATS | NUM | OTHER):
        return
    possible = possible_types(item.arg, number=made.tensor == 1)
    if possible & BOOL:
        if _documented(item.arg, function):
            made.bits &= ~ASSUMED
        made.dtypes |= possible
        if item.arg in uses_in(function, known.uses).in_arithmetic:
            not_of_booleans(made)
    else:
        made.dtypes |= possible


def not_of_booleans(value: Value) -> None:
    """Note that a mask is subtracted from a number, which torch refuses to do where it holds booleans.

    What the mode makes half is then half: a mask of integers would make float32 of the half scores that it is added to,
    which no half layer behind them takes.
    """
    root = value.root
    refused = BOOL | INT if root.bits & ASSUMED and root.op == "param" else BOOL
    while value.dtypes & FLOATS:
        value.dtypes &= ~refused
        if value.op not in PASSING or not value.args:
            return
        value = value.args[0]


def _annotate(made: Value, annotation: str, unknown_float: int) -> None:
    if _WHOLE.search(annotation):
        made.dtypes, made.tensor = INT, 2
    elif _BOOLEAN.search(annotation):
        made.dtypes, made.tensor = BOOL, 2
    elif "Tensor" in annotation:
        made.tensor = 2
        if not made.dtypes & (LOW | F32):
            made.dtypes = unknown_float
    elif annotation.strip("'\" ").split("[")[0].rpartition(".")[2] in _PLAIN or "ndarray" in annotation:
        made.tensor = 0
        made.dtypes = NUM if annotation.strip("'\"") in ("int", "float", "bool") else OTHER | NUM


def _documented(name: str, function: FunctionFacts) -> bool:
    """Whether the function's docstring, or that of its class, says that a parameter holds integers or booleans."""
    nodes = [function.node, *([function.cls.node] if function.cls is not None else [])]
    for node in nodes:
        text = ast.get_docstring(node, clean=False) if not isinstance(node, ast.Lambda) else None
        if text and any(name in line and _DOCUMENTED.search(line) for line in text.splitlines()):
            return True
    return False
