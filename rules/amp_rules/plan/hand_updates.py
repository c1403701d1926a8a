"""Weights that the script itself changes by their gradients: no scaler stands between an overflow and them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.roles.gradient_accesses import GradientAccess
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import GRADIENT

_VIEWS = frozenset({"data", "detach", "view", "flatten"})
_GROWS = frozenset({"append", "extend", "add", "insert", "update"})
_PAIRS = frozenset({"builtins.zip", "builtins.enumerate"})


def reasons(program: Program, accesses: list[GradientAccess], right: Collection[ast.AST] = ()) -> Iterator[Declined]:
    """Yield each statement that writes a number made from gradients into a weight, but for those of ``right``."""
    owners = GradientOwners(program)
    bodies = dict.fromkeys((access.body, access.scope) for access in accesses)
    for body, scope in bodies:
        sources = {access.node for access in accesses if access.body is body}
        names = _made_from(program, body, scope, sources)
        bound = _made_from(program, body, scope, sources, in_place=False)
        for node in program.nodes_of(body):
            for target, given in _writes(node) if node not in right else ():
                # A variable that holds gradients, as an element of ``[p.grad for p in weights]``, is no weight.
                if _root(target) not in bound and _holds(given, sources, names) and _is_weight(owners, target, scope):
                    yield _declined(node, target, scope)


def _made_from(
    program: Program, body: ast.AST, scope: Scope, sources: set[ast.AST], *, in_place: bool = True
) -> set[str]:
    """Variables of the body that hold something computed from gradients, those that it was only added to included."""
    names: set[str] = set()
    while True:
        before = len(names)
        for node in program.nodes_of(body):
            if isinstance(node, ast.AugAssign) and not in_place:
                continue
            for target, given in _gives(program, node, scope):
                if _holds(given, sources, names):
                    names |= {item.id for item in walk(target) if isinstance(item, ast.Name)} - {"self"}
        if len(names) == before:
            return names


def _gives(program: Program, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to which target, the elements of tuples and of ``zip`` each by itself."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, (ast.Name, ast.Tuple, ast.List)):
                yield from blocks.unpacked(target, node.value)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        if isinstance(node.target, ast.Name):
            yield node.target, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        called = node.iter
        if isinstance(called, ast.Call) and program.callee_names(called, scope) & _PAIRS:
            if isinstance(node.target, ast.Tuple) and len(node.target.elts) == len(called.args):
                yield from zip(node.target.elts, called.args, strict=True)
                return
        yield node.target, node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS:
        if isinstance(node.func.value, ast.Name):
            for argument in node.args:
                yield node.func.value, argument


def _writes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a node changes in place, and by what: ``p.data.add_(g)``, ``p -= g``, ``p.data = p.data - g``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr.endswith("_") and not node.func.attr.endswith("__"):
            for argument in [*node.args, *(item.value for item in node.keywords)]:
                yield node.func.value, argument
    elif isinstance(node, ast.AugAssign):
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                yield target, node.value


def _holds(node: ast.expr, sources: set[ast.AST], names: set[str]) -> bool:
    return any(
        part in sources or (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id in names)
        for part in walk(node)
    )


def _root(node: ast.expr) -> str:
    """The variable that an expression is an element or a view of: ``g`` of ``g.detach()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
        node = node.func.value
    return (blocks.path_of(node) or "").split(".")[0]


def _is_weight(owners: GradientOwners, target: ast.expr, scope: Scope) -> bool:
    """Whether a parameter is written, not its gradient nor what is kept beside it."""
    node: ast.expr = target
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Call):
            if not (
                isinstance(node.func, ast.Attribute) and (node.func.attr in _VIEWS or node.func.attr.endswith("_"))
            ):
                return False
            node = node.func.value
        elif isinstance(node, ast.Subscript) or node.attr in _VIEWS:
            node = node.value
        else:
            break
    if isinstance(node, ast.Attribute) and node.attr == GRADIENT:
        return False
    return owners.is_weight(node, scope)


def _declined(node: ast.AST, target: ast.expr, scope: Scope) -> Declined:
    statement = blocks.statement_of(scope.module, node)
    path = blocks.path_of(target) or scope.module.text(target)
    return declining.decline(
        declining.GRADIENT_ACCESS,
        scope.module,
        node,
        f"`{scope.module.text(statement)}` updates weights from their gradients by hand: if the gradients overflow, "
        f"infinities get into `{path}`",
        "let an optimizer hold these weights and step it with `amp.scaler.step`, or keep the script in FP32",
    )
