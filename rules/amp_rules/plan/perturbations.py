"""Weights that adversarial training moves along their gradients: FGM, PGD. The scale cancels out of a direction.

``epsilon * p.grad / norm`` with ``norm = torch.norm(p.grad)`` is the same of scaled gradients, unless they overflow:
the norm is infinite then, and the direction no number. The guard of these scripts, ``norm != 0 and not
torch.isnan(norm)``, lets an infinite norm through; with ``torch.isfinite`` a batch that overflows is not perturbed, and
its step is skipped.

PGD keeps the gradients of the clean batch, and puts them back before its last pass: in between no step is made, so the
scale is the same.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from amp_rules.roles.gradient_accesses import GradientAccess
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, own_name, walk
from amp_rules.torch.gradients import GRADIENT, NORMS

_COPIES = frozenset({"clone", "detach"})
_SAME_NUMBERS = _COPIES | {"contiguous", "data", "float"}


@dataclass(frozen=True)
class Perturbation(Site):
    """A condition under which weights are moved.

    Attributes:
        norm: the variable of the gradient's norm.
        measured: the gradient that the norm is taken of.
        nan_test: ``not torch.isnan(norm)``, where the condition asks for it; None too where it asks for finite numbers.
        is_finite: whether the condition asks for finite numbers already.
    """

    norm: str
    measured: ast.expr
    nan_test: ast.UnaryOp | None
    is_finite: bool

    @property
    def guard(self) -> ast.If:
        """The statement."""
        assert isinstance(self.node, ast.If)
        return self.node


@dataclass
class Perturbations:
    """What adversarial training does with gradients, as far as it is right in any unit.

    Attributes:
        found: the conditions.
        writes: the nodes that move weights.
        accesses: the nodes that read gradients for that.
        kept: the nodes that keep gradients and put them back.
        keeping: the calls of the functions that keep them.
    """

    found: list[Perturbation] = field(default_factory=list)
    writes: set[ast.AST] = field(default_factory=set)
    accesses: set[ast.AST] = field(default_factory=set)
    kept: set[ast.AST] = field(default_factory=set)
    keeping: list[Site] = field(default_factory=list)

    def are_kept_scaled(self, statements: Collection[ast.stmt]) -> bool:
        """Whether none of the statements, before which gradients are unscaled, comes before they are kept."""
        for site in self.keeping:
            where = blocks.place(site.module, site.statement)
            if any(node in statements for item in where.suite[: where.index + 1] for node in walk(item)):
                return False
        return True


def perturbations(program: Program, accesses: Sequence[GradientAccess]) -> Perturbations:
    """Find them in one program."""
    result = Perturbations()
    for body, scope in dict.fromkeys((access.body, access.scope) for access in accesses):
        for node in program.nodes_of(body):
            if isinstance(node, ast.If):
                _follow(program, node, Site(scope.module, scope, body, node), result)
    if result.found:
        _Kept(program, accesses).add_to(result)
    return result


# ---- directions ----------------------------------------------------------------------------------------------


def _follow(program: Program, guard: ast.If, site: Site, result: Perturbations) -> None:
    """Add a condition on the norm of a gradient under which a weight is moved along that gradient."""
    if guard.orelse:
        return
    where = blocks.place(site.module, guard)
    before = where.suite[where.index - 1] if where.index else None
    if not (isinstance(before, ast.Assign) and len(before.targets) == 1 and isinstance(before.targets[0], ast.Name)):
        return
    norm, measured = before.targets[0].id, _measured(before.value)
    if measured is None or not _is_only_read_in(program, norm, site, guard):
        return
    tests = _tests(guard.test, norm)
    if tests is None:
        return
    moved = _moves(guard.body, norm, measured)
    if moved is None or not moved[0] or not all(_is_only_read_in(program, name, site, guard) for name in moved[1]):
        return
    nan_test = next((item for item in tests if isinstance(item, ast.UnaryOp)), None)
    is_finite = any(isinstance(item, ast.Call) for item in tests)
    if nan_test is None and not is_finite and names_of(site.module).name_of("torch") is None:
        return
    found = Perturbation(site.module, site.scope, site.body, guard, norm, measured, nan_test, is_finite)
    result.found.append(found)
    result.writes.update(moved[0])
    result.accesses.update(
        part for part in (*walk(before), *walk(guard)) if isinstance(part, ast.Attribute) and part.attr == GRADIENT
    )


def _measured(node: ast.expr) -> ast.expr | None:
    """``p.grad`` of ``torch.norm(p.grad)`` and ``p.grad.norm()``."""
    if not isinstance(node, ast.Call) or node.keywords or own_name(node.func) not in NORMS:
        return None
    given = node.args[0] if node.args else None
    if given is None and isinstance(node.func, ast.Attribute):
        given = node.func.value
    if given is None or len(node.args) > 1:
        return None
    return given if _gradient_of(given) is not None else None


def _gradient_of(node: ast.expr) -> ast.Attribute | None:
    """``p.grad`` of ``p.grad.data`` and ``p.grad.detach()``, with the same numbers."""
    while True:
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            node = node.func
        if not isinstance(node, ast.Attribute):
            return None
        if node.attr == GRADIENT:
            return node if blocks.path_of(node.value) is not None else None
        if node.attr not in _SAME_NUMBERS:
            return None
        node = node.value


def _is_only_read_in(program: Program, name: str, site: Site, guard: ast.If) -> bool:
    """Whether a variable belongs to the function, is set once, and is read within one statement alone."""
    if isinstance(site.body, ast.Module) or site.scope.owner(name) is not site.scope:
        return False
    inside = set(walk(guard))
    named = [node for node in program.nodes_of(site.body) if isinstance(node, ast.Name) and node.id == name]
    stored = [node for node in named if not isinstance(node.ctx, ast.Load)]
    return len(stored) == 1 and all(node in inside for node in named if isinstance(node.ctx, ast.Load))


def _tests(test: ast.expr, norm: str) -> list[ast.expr] | None:
    """The parts of a condition that are all about the norm: not zero, a number, finite; None for any other."""
    parts = conjuncts(test)
    for part in parts:
        call = part.operand if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) else part
        if isinstance(part, ast.Name) and part.id == norm:
            continue
        if isinstance(part, ast.Compare):
            if not _is_not_zero(part, norm):
                return None
            continue
        name = "isfinite" if call is part else "isnan"
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == name):
            return None
        if not _is_about(call, norm):
            return None
    return list(parts)


def _is_not_zero(node: ast.Compare, norm: str) -> bool:
    sides = [node.left, *node.comparators]
    is_zero = len(sides) == 2 and isinstance(sides[1], ast.Constant) and sides[1].value == 0
    return is_zero and blocks.path_of(sides[0]) == norm and isinstance(node.ops[0], (ast.NotEq, ast.Gt))


def _is_about(call: ast.Call, norm: str) -> bool:
    if call.keywords:
        return False
    if call.args:
        return len(call.args) == 1 and blocks.path_of(call.args[0]) == norm
    return isinstance(call.func, ast.Attribute) and blocks.path_of(call.func.value) == norm


def _moves(suite: list[ast.stmt], norm: str, measured: ast.expr) -> tuple[list[ast.AST], set[str]] | None:
    """The nodes that move a weight, and the variables that are made for it; None where more depends on the condition.

    What is kept for later, as a copy of the weight, would be missing where a batch overflows.
    """
    gradient = _gradient_of(measured)
    assert gradient is not None
    weight = f"{blocks.path_of(gradient.value)}."
    names = _Degrees(ast.dump(gradient), {norm: 1})
    found: list[ast.AST] = []
    made: set[str] = set()
    for statement in suite:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, given = statement.targets[0], [statement.value]
            if isinstance(target, ast.Name):
                degree = names.degree(statement.value)
                if degree is None or target.id == norm:
                    return None
                made.add(target.id)
                if names.are_in(statement.value):
                    names.known[target.id] = degree
                continue
        elif isinstance(statement, ast.AugAssign):
            target, given = statement.target, [statement.value]
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            target, given = call.func, [*call.args, *(item.value for item in call.keywords)]
        else:
            return None
        is_weight = (blocks.path_of(target) or "").startswith(weight) and not names.are_in(target)
        if not is_weight or any(names.degree(item) != 0 for item in given):
            return None
        found.append(statement.value if isinstance(statement, ast.Expr) else statement)
    return found, made


class _Degrees:
    """With which power of a gradient expressions grow that are finite where its norm is.

    Attributes:
        known: the variables that hold something of it, with theirs.
    """

    def __init__(self, gradient: str, known: dict[str, int]) -> None:
        self._gradient = gradient
        self.known = known

    def are_in(self, node: ast.AST) -> bool:
        """Whether something of a gradient is in a part of the program."""
        return any(
            part.id in self.known if isinstance(part, ast.Name) else getattr(part, "attr", None) == GRADIENT
            for part in walk(node)
        )

    def degree(self, node: ast.expr) -> int | None:
        """The power; None where it is none."""
        if not self.are_in(node):
            return 0
        if isinstance(node, ast.Name):
            return self.known[node.id]
        if (gradient := _gradient_of(node)) is not None:
            return 1 if ast.dump(gradient) == self._gradient else None
        if isinstance(node, ast.UnaryOp):
            return self.degree(node.operand) if isinstance(node.op, ast.USub) else None
        if not isinstance(node, ast.BinOp):
            return None
        left, right = self.degree(node.left), self.degree(node.right)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Mult):
            return left + right if left + right < 2 else None
        if isinstance(node.op, ast.Div) and left == right == 1:
            # An element of the gradient is no larger than its norm; another quotient may be infinite.
            return 0 if isinstance(node.right, ast.Name) else None
        return left if isinstance(node.op, ast.Div) and right == 0 else None


# ---- gradients that are kept ---------------------------------------------------------------------------------


class _Kept:
    """Dictionaries of gradients that are put back as they were, before any step is made."""

    def __init__(self, program: Program, accesses: Sequence[GradientAccess]) -> None:
        self._program = program
        self._accesses = [access for access in accesses if isinstance(access.node, ast.Attribute)]

    def add_to(self, result: Perturbations) -> None:
        """Add the accesses that keep gradients and put them back."""
        kept: dict[object, list[GradientAccess]] = {}
        back: dict[object, list[GradientAccess]] = {}
        for access in self._accesses:
            for holder, kinds in ((self._kept_in(access), kept), (self._taken_from(access), back)):
                if holder is not None:
                    kinds.setdefault(self._program.flow.key(holder.value, access.scope), []).append(access)
        for key in kept.keys() & back.keys() - {None}:
            if self._holds_nothing_else(key) and self._within_a_step(kept[key], back[key]):
                result.kept |= {access.node for access in (*kept[key], *back[key])}
                result.keeping += [site for access in kept[key] for site in self._runs_of(access)]

    def _kept_in(self, access: GradientAccess) -> ast.Subscript | None:
        """``self.kept[name]`` of ``self.kept[name] = p.grad.clone()``."""
        statement = access.statement
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            return None
        is_copy = isinstance(statement.value, ast.Call) and _gradient_of(statement.value) is access.node
        target = statement.targets[0]
        return target if is_copy and isinstance(target, ast.Subscript) else None

    def _taken_from(self, access: GradientAccess) -> ast.Subscript | None:
        """``self.kept[name]`` of ``p.grad = self.kept[name]``."""
        statement = access.statement
        is_set = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if not (is_set and isinstance(statement, ast.Assign) and statement.targets[0] is access.node):
            return None
        return statement.value if isinstance(statement.value, ast.Subscript) else None

    def _holds_nothing_else(self, key: object) -> bool:
        """Whether a dictionary is filled with gradients, read to put them back, and emptied, and nothing more."""
        for node, _, scope in self._program.nodes():
            if not isinstance(node, (ast.Name, ast.Attribute)) or self._program.flow.key(node, scope) != key:
                continue
            parent = scope.module.parents[node]
            if isinstance(node.ctx, ast.Store):
                if not _is_emptied(node, _statement(scope, node)):
                    return False
            elif isinstance(parent, ast.Compare):
                continue
            elif not isinstance(parent, ast.Subscript) or parent.value is not node:
                return False
            else:
                access = next((item for item in self._accesses if item.statement is _statement(scope, parent)), None)
                if access is None or parent not in (self._kept_in(access), self._taken_from(access)):
                    return False
        return True

    def _within_a_step(self, kept: list[GradientAccess], back: list[GradientAccess]) -> bool:
        """Whether each keeping is followed by a putting back, with no step in between."""
        starts = [site for access in kept for site in self._runs_of(access)]
        ends = {site.node for access in back for site in self._runs_of(access)}
        covered: set[ast.AST] = set()
        for start in starts:
            where = blocks.place(start.module, start.statement)
            for later in where.suite[where.index + 1 :]:
                if self._program.runs_step(later):
                    break
                inside = ends & set(blocks.walk_own(later))
                covered |= inside
        return bool(starts) and bool(ends) and covered == ends

    def _runs_of(self, access: GradientAccess) -> Iterator[Site]:
        """Where the function that an access stands in is called."""
        info: FunctionFacts | None = self._program.function_of(access.body)
        for caller in self._program.flow.callers(info) if info is not None else ():
            yield calling(caller)


def _is_emptied(node: ast.expr, statement: ast.stmt) -> bool:
    """Whether a variable is assigned an empty dictionary."""
    if not isinstance(statement, ast.Assign):
        return False
    pairs = [pair for target in statement.targets for pair in blocks.unpacked(target, statement.value)]
    given = [value for target, value in pairs if target is node]
    return bool(given) and all(isinstance(value, ast.Dict) and not value.keys for value in given)


def _statement(scope: Scope, node: ast.AST) -> ast.stmt:
    return blocks.statement_of(scope.module, node)
