"""Everything that reaches a gradient, as an attribute, by its name as a string, or through a function that clips.

A gradient is a cell: a backward pass adds to it, in the unit of the scaled loss, until the optimizer steps. What only
clears it, or asks for its shape, is right in any unit. Everything else is an access.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from amp_rules.flow.values import Value
from amp_rules.roles.absent import is_always_none
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.gradients import (
    BY_NAME,
    CLIP_FUNCTIONS,
    CLIP_METHODS,
    FACTS_OF_TENSORS,
    FINDS_FUNCTIONS,
    GRADIENT,
    MAKES_GETTERS,
    RUNS_TEXT,
    ZEROS,
)

_SETS_WEIGHTS = "torch.nn.init"
_TENSOR_BASES = ("torch.Tensor", "torch.nn.Parameter", "torch.nn.parameter.Parameter")


@dataclass(frozen=True)
class GradientAccess(Site):
    """Something that reads or changes gradients: clipping, ``p.grad``.

    Attributes:
        what: its text, for messages.
        owner: whose gradients: a tensor, several, a model or an optimizer; None where the text does not say.
    """

    what: str
    owner: ast.expr | None = None


_KNOWN: WeakKeyDictionary[Program, list[GradientAccess]] = WeakKeyDictionary()


def gradient_accesses(program: Program) -> list[GradientAccess]:
    """Every access that can run, without those of optimizers' own steps and of closures that set true gradients.

    Found once a program: the plan asks, and the check of each file of its draft does.
    """
    known = _KNOWN.get(program)
    if known is None:
        known = _KNOWN[program] = _found(program)
    return known


def _found(program: Program) -> list[GradientAccess]:
    steps = _OwnSteps(program)
    closures = {body for one in program.apart for body in one.closures}
    found = []
    for node, body, scope in program.nodes():
        if body in closures or node in program.looks.reads:
            continue
        for what, owner in _reached(program, node, scope):
            never_runs = owner is not None and is_always_none(program.flow, owner, scope)
            if not steps.run_all_of(body) and not never_runs:
                text = scope.module.text(what).partition("\n")[0]
                found.append(GradientAccess(scope.module, scope, body, node, text, owner))
    return found


def _reached(program: Program, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What of a node to name in a message, and whose gradient it reaches."""
    if isinstance(node, ast.Attribute) and node.attr == GRADIENT:
        if not _only_clears(program, node, scope) and _may_be_tensor(program, node.value, scope):
            if not program.names(node, scope):
                yield node, node.value
    elif isinstance(node, ast.Call):
        yield from _reached_by_call(program, node, scope)
    elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(getattr(node, "ctx", None), ast.Load):
        if _is_handed_to_library(program, node, scope) and program.names(node, scope) & CLIP_FUNCTIONS:
            yield node, None


def _reached_by_call(program: Program, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    # However the function is found: ``CLIPS[args.clip](...)``, ``getattr(nn.utils, "clip_grad_norm_")(...)``.
    names = program.names(call.func, scope) if not program.flow.callees(call) else set()
    if any(_clips(name) for name in names):
        owner = call.args[0] if call.args else next((item.value for item in call.keywords), None)
        yield call.func, owner
    elif _is_clipping_method(program, call, scope):
        assert isinstance(call.func, ast.Attribute)
        yield call.func, call.args[0] if call.args and not isinstance(call.args[0], ast.Constant) else call.func.value
    elif names & BY_NAME and len(call.args) > 1 and _may_be_name(program, call.args[1], scope):
        if not _only_clears_by_name(program, call, names, scope):
            if isinstance(call.args[1], ast.Constant) or _is_parameter(program, call.args[0], scope):
                yield call, call.args[0]
    elif (names & MAKES_GETTERS and any(_names_gradient(item) for item in call.args)) or (
        names & RUNS_TEXT and call.args and _text_reaches(program, call.args[0], scope)
    ):
        yield call, None
    elif _is_looked_up(program, call, scope, names):
        given = [*call.args, *(item.value for item in call.keywords)]
        yield from ((call.func, item) for item in given[:1] if _is_parameter(program, item, scope))


def _text_reaches(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a text is code that reads or clips gradients: ``exec("clip_grad_norm_(net.parameters(), 1.0)")``."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    try:
        inner = list(ast.walk(ast.parse(node.value.strip())))
    except (SyntaxError, ValueError):
        return False
    return any(
        (isinstance(item, ast.Attribute) and item.attr == GRADIENT)
        or (isinstance(item, ast.Call) and any(map(_clips, program.names(item.func, scope))))
        for item in inner
    )


def _is_looked_up(program: Program, call: ast.Call, scope: Scope, names: set[str]) -> bool:
    """Whether a function found by a name that only the run knows may clip: ``getattr(nn.utils, "clip_" + how)(...)``.

    What makes an optimizer gives it back, and what sets weights for the first time is told apart by its module.
    """
    finder = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    if not isinstance(finder, ast.Call) or not isinstance(scope.module.parents.get(call), ast.Expr):
        return False
    if any(name.startswith(_SETS_WEIGHTS) for name in names) or program.flow.callees(call):
        return False
    return bool(program.callee_names(finder, scope) & FINDS_FUNCTIONS)


def _clips(name: str) -> bool:
    if name.startswith("amp_runtime."):
        return False
    return name in CLIP_FUNCTIONS or (not name.startswith("torch.") and name.rpartition(".")[2] in CLIP_METHODS)


def _is_clipping_method(program: Program, call: ast.Call, scope: Scope) -> bool:
    """``optimizer.clip_grad_norm(1.0)`` of a library."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in CLIP_METHODS) or program.flow.callees(call):
        return False
    values = program.flow.values(call.func.value, scope)
    if values and all(value.kind == "object" and str(value.ref).startswith("torch.optim.") for value in values):
        return False  # which have none: ``if hasattr(optimizer, "clip_grad_norm"):`` asks for those of a library
    return not any(value.kind in ("external", "module") for value in values)


def _is_handed_to_library(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a function is given to something of a library that calls it: ``map(clip, groups)``."""
    holder = scope.module.parents.get(node)
    if isinstance(holder, ast.keyword):
        holder = scope.module.parents.get(holder)
    if not isinstance(holder, ast.Call) or holder.func is node or program.flow.callees(holder):
        return False
    return "functools.partial" not in program.callee_names(holder, scope)


def _names_gradient(node: ast.expr) -> bool:
    """``"grad"``, ``"weight.grad.data"``."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and GRADIENT in node.value.split(".")


def _may_be_name(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression that names an attribute can be ``"grad"``."""
    if isinstance(node, ast.Constant):
        return node.value == GRADIENT
    values = program.flow.values(node, scope)
    known = {value.ref for value in values if value.kind == "constant"}
    return GRADIENT in known if known else _says_gradient(program)


def _says_gradient(program: Program) -> bool:
    """Whether the program has the name in a string somewhere."""
    known = _SAYING.get(program)
    if known is None:
        known = any(isinstance(node, ast.Constant) and node.value == GRADIENT for node, _, _ in program.nodes())
        _SAYING[program] = known
    return known


_SAYING: WeakKeyDictionary[Program, bool] = WeakKeyDictionary()
"""What is known of each program: every attribute by a name made at run time asks for it."""


def _is_parameter(program: Program, node: ast.expr, scope: Scope) -> bool:
    return any(value.kind == "parameters" for value in program.flow.values(node, scope))


def _may_be_tensor(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether the owner of an attribute may be a tensor: not an object of the project, nor settings."""
    values = program.flow.values(node, scope)
    return not values or not all(_is_no_tensor(value) for value in values)


def _is_no_tensor(value: Value) -> bool:
    if value.kind == "instance":
        return not any(name.startswith(_TENSOR_BASES) for name in value.ref.external_bases())
    if value.kind in ("class", "function", "module", "constant"):
        return True
    if value.is_result:
        return False  # of what a module gave
    return value.kind == "object" and (is_module(value) or str(value.ref).startswith("argparse."))


# ---- what reads no number ------------------------------------------------------------------------------------


def _only_clears(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """``p.grad = None``, ``p.grad is None``, ``p.grad.zero_()``, ``p.grad.detach_()``, ``p.grad.shape``."""
    parents = scope.module.parents
    parent = parents.get(node)
    if isinstance(node.ctx, ast.Del):
        return True
    if isinstance(node.ctx, ast.Store):
        return isinstance(parent, ast.Assign) and _is_zero(program, parent.value, scope)
    current: ast.AST = node
    while isinstance(parent, ast.Attribute):
        if parent.attr == "zero_" or parent.attr in FACTS_OF_TENSORS:
            return True
        if parent.attr == "detach_":
            call = parents.get(parent)
            return isinstance(call, ast.Call) and isinstance(parents.get(call), ast.Expr)
        if isinstance(parent.ctx, ast.Store):
            holder = parents.get(parent)
            return isinstance(holder, ast.Assign) and _is_zero(program, holder.value, scope)
        current, parent = parent, parents.get(parent)
    if isinstance(parent, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops):
        return True
    return current is node and _is_condition(scope.module, node)


def _is_zero(program: Program, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    return isinstance(node, ast.Call) and bool(program.callee_names(node, scope) & ZEROS)


def _is_condition(module: Module, node: ast.AST) -> bool:
    """``if p.grad:``, ``if not p.grad or ...``: whether there is one."""
    parent = module.parents.get(node)
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        if isinstance(parent, ast.UnaryOp) and not isinstance(parent.op, ast.Not):
            return False
        node, parent = parent, module.parents.get(parent)
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    return isinstance(parent, (ast.If, ast.While, ast.IfExp, ast.Assert)) and parent.test is node


def _only_clears_by_name(program: Program, call: ast.Call, names: set[str], scope: Scope) -> bool:
    """``hasattr(p, "grad")``, ``setattr(p, "grad", None)``, ``getattr(p, "grad") is None``."""
    if names & {"builtins.hasattr", "builtins.delattr"}:
        return True
    if "builtins.setattr" in names:
        return len(call.args) > 2 and _is_zero(program, call.args[2], scope)
    parent = scope.module.parents.get(call)
    if isinstance(parent, ast.Attribute):
        return parent.attr == "zero_" or parent.attr in FACTS_OF_TENSORS
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    return _is_condition(scope.module, call)


# ---- steps of the project's optimizers -----------------------------------------------------------------------


class _OwnSteps:
    """Which bodies run only within the ``step`` of an optimizer of the project: the scaler unscales before it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[ast.AST, bool] = {}

    def run_all_of(self, body: ast.AST) -> bool:
        """Whether nothing else runs the body."""
        if body not in self._known:
            self._known[body] = False  # functions that only call each other are run by nothing that is known
            self._known[body] = self._decide(body)
        return self._known[body]

    def _decide(self, body: ast.AST) -> bool:
        info: FunctionFacts | None = self._program.function_of(body)
        if info is None:
            return False
        if info.name == "step" and self._program.is_of_optimizer(info):
            return True
        within = next(
            (parent for parent in info.module.module.ancestors(body) if parent in self._program.flow.functions), None
        )
        if within is not None and self.run_all_of(within):
            return True
        callers = self._program.flow.callers(info)
        return bool(callers) and all(self.run_all_of(caller.scope.node) for caller in callers)
