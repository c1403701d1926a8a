"""Writes through an index, which refuse tensors of two types: the runtime converts there, and torch does not.

Under autocast a layer's output is half, and what it is written into was made in float32. What is written takes the type
of what it is written into, in words: ``out.index_add_(0, batch, h.to(out.dtype))``. In the original both have one type,
where ``.to`` gives the very same tensor.
"""

from __future__ import annotations

import ast
from collections import defaultdict

import libcst as cst

from amp_rules.checks.common.mixed_types import float_type
from amp_rules.checks.types.dtype_mismatch_index_write import SOURCES, DtypeMismatchIndexWrite, is_advanced
from amp_rules.lattice.abstract_values import FLOATS, NUM, ZERO_DIM, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.operation_names import FACTORIES, LIKES, NEWS
from amp_rules.lint.check import Check
from amp_rules.lint.linter import Linter
from amp_rules.plain_torch.precision import AT_LEAST_FLOAT32
from amp_rules.plain_torch.regions import modes, sites_beside
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError
from amp_rules.text.actions import ExpressionEdit

_WRITTEN = {**SOURCES, "index_reduce": (3, "source"), "put": (2, "source")}
_NUMBERS_TOO = frozenset({"setitem", "scatter"})
"""Writes that take a number as well, which has no ``to``."""
_KEEPING = frozenset(
    "clone contiguous view reshape flatten unflatten squeeze unsqueeze expand permute transpose t detach repeat".split()
)
"""Methods that keep the type."""
_DEFAULT_TYPE = frozenset({"torch.set_default_dtype", "torch.set_default_tensor_type"})


def convert(translation: Translation) -> None:
    """Have every write of the regions, which may mix types, convert what is written."""
    judged: dict[Module, _Writes] = {}
    for site in sites_beside(translation):
        found = _written(translation, site)
        if found is None:
            continue
        operation, receiver, source = found
        if site.module not in judged:
            judged[site.module] = _judged(site.module, modes(translation))
        verdicts = judged[site.module].verdicts.get(site.module.span(site.node), set())
        if _is_known(operation, verdicts):
            continue
        to = _conversion(translation, site, receiver)
        if to is not None:
            translation.replace(site.module, source, to)
        else:
            text = site.module.text(site.node)
            message = f"`{text}` raises where one of its tensors is half and the other is not, and autocast leaves it"
            recipe = "convert what is written to the type of what it is written into, with `.to(...)`"
            translation.decline(site.module, site.node, message, recipe, "precision")


def _written(translation: Translation, site: Site) -> tuple[str, ast.expr, ast.expr] | None:
    """The operation of a write, with what it is written into and what is written."""
    node = site.node
    if isinstance(node, ast.Subscript):
        parent = site.module.parents[node]
        if isinstance(node.ctx, ast.Store) and isinstance(parent, ast.Assign) and parent.targets == [node]:
            return "setitem", node.value, parent.value
        return None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    operation = node.func.attr.removesuffix("_")
    if operation not in _WRITTEN or translation.program.flow.callees(node):
        return None
    position, name = _WRITTEN[operation]
    names = translation.program.callee_names(node, site.scope)
    given = [node.func.value, *node.args]
    if names:
        if not all(item.startswith("torch.") and item.rpartition(".")[2].strip("_") == operation for item in names):
            return None
        if all(item.count(".") == 1 for item in names):
            given = list(node.args)
    keywords = {item.arg: item.value for item in node.keywords}
    source = keywords.get(name) or (given[position] if position < len(given) else None)
    if (
        source is None
        or not given
        or isinstance(source, ast.Constant)
        or any(isinstance(x, ast.Starred) for x in given)
    ):
        return None
    return operation, given[0], source


class _Writes(Check):
    """What the linter's machine knows of the writes of one file.

    Attributes:
        verdicts: by place: ``alike`` (the types are the same for certain), ``number``, ``tensor``, ``unknown``.
    """

    code, name = DtypeMismatchIndexWrite.code, DtypeMismatchIndexWrite.name
    triggers = (*DtypeMismatchIndexWrite.triggers, "put_")
    operations = tuple(_WRITTEN)

    def __init__(self, module: Module) -> None:
        self.module = module
        self.verdicts: defaultdict[Span, set[str]] = defaultdict(set)

    def visit(self, op: Value, frame: Frame) -> None:
        """Note what is known of a write."""
        if op.node is None or frame.module.module.path != self.module.path:
            return
        target, source = op.args[0] if op.args else None, op.arg(*_WRITTEN[op.op])
        if target is not None and source is not None and op.node in frame.module.module.parents:
            self.verdicts[frame.span(op.node)].add(_verdict(op, target, source, frame))


def _verdict(op: Value, target: Value, source: Value, frame: Frame) -> str:
    if source.tensor == 0 or not source.dtypes & ~NUM or source.bits & ZERO_DIM:
        return "number"
    if not source.dtypes & FLOATS or not target.dtypes & FLOATS or target.root is source.root:
        return "alike"
    held, given = float_type(target, frame), float_type(source, frame)
    if held and held == given and frame.autocast:
        return "alike"
    if op.op == "setitem" and not (is_advanced(op, frame) and frame.is_tensor(target)):
        return "unknown"
    return "tensor" if frame.is_tensor(source) else "unknown"


def _judged(module: Module, modes: list[Mode]) -> _Writes:
    writes = _Writes(module)
    checks: list[Check] = [writes]
    for mode in modes:
        try:
            Linter(mode, checks).lint(module.source)
        except (SourceError, RecursionError):
            continue
    return writes


def _is_known(operation: str, verdicts: set[str]) -> bool:
    """Whether a write is left as it is."""
    if operation in _NUMBERS_TOO:
        return "tensor" not in verdicts
    return bool(verdicts) and verdicts <= {"alike", "number"}


def _conversion(translation: Translation, site: Site, receiver: ast.expr) -> ExpressionEdit | None:
    """The edit that gives what is written the type of what it is written into; None where no words say which it is."""
    node = receiver
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
        node = node.func.value
    if _can_be_repeated(node):
        return _to(f"{source_of(site.module, node)}.dtype")
    if not isinstance(node, ast.Call):
        return None
    names = translation.program.callee_names(node, site.scope)
    last = {item.rpartition(".")[2] for item in names if item.startswith("torch.")}
    given = next((item.value for item in node.keywords if item.arg == "dtype"), None)
    if given is not None and (last or isinstance(node.func, ast.Attribute)):
        return _as(translation, site, given)
    if last and last <= FACTORIES and not any(item.arg is None for item in node.keywords):
        if translation.program.calls_to(_DEFAULT_TYPE):
            return _to(translation.code(site.module, "{torch}.get_default_dtype()"))
        return _to(None)
    like = node.args[0] if last and last <= LIKES and node.args else None
    if like is None and isinstance(node.func, ast.Attribute) and node.func.attr in NEWS and not last:
        like = node.func.value
    return _to(f"{source_of(site.module, like)}.dtype") if like is not None and _can_be_repeated(like) else None


def _as(translation: Translation, site: Site, dtype: ast.expr) -> ExpressionEdit | None:
    """The edit for a type that the script, or its migration, names."""
    widened = [use for use in translation.uses_of("at_least_float32") if use.whole is dtype]
    if widened:
        use: Use = widened[0]
        name = translation.helper(use, AT_LEAST_FLOAT32, "precision")
        return _to(f"{name}({source_of(site.module, use.argument)})")
    return _to(source_of(site.module, dtype)) if _can_be_repeated(dtype) else None


def _can_be_repeated(node: ast.expr) -> bool:
    """Whether an expression is the same a second time, and does nothing."""
    if isinstance(node, ast.Subscript):
        parts = [*ast.walk(node.slice)]
        plain = (ast.Constant, ast.Name, ast.Slice, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load)
        return all(isinstance(item, plain) for item in parts) and _can_be_repeated(node.value)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _can_be_repeated(node.value))


def _to(dtype: str | None) -> ExpressionEdit:
    """``x`` becomes ``x.to(dtype)``, or ``x.float()`` without a type."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        if not isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)) and not node.lpar:
            node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        method = cst.Attribute(node, cst.Name("to" if dtype else "float"))
        return cst.Call(method, [cst.Arg(cst.parse_expression(dtype))] if dtype else [])

    return edit
