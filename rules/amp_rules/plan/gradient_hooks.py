"""Hooks that would see gradients while they are scaled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.scale_free import keeps_scale
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.gradients import (
    EXCHANGE_HOOK,
    EXCHANGE_HOOK_FUNCTION,
    EXCHANGES_OF_BUCKETS,
    GRADIENT,
    GRADIENT_HOOK_FUNCTIONS,
    GRADIENT_HOOKS,
    KEEP_ERRORS,
    KEEP_NO_GRADIENTS,
    TESTS_OF_NUMBERS,
    WRAPS_EXCHANGES,
)

_MAKES_ANEW = frozenset({"len", "range", "tuple", "list", "zip", "enumerate", "float", "int"})
"""Functions that change nothing which they are given."""
_REPLACE_GRADIENTS = frozenset({"register_hook", "register_full_backward_hook", "register_backward_hook"})
"""Hooks in place of whose gradient goes what they give back."""


def reasons(program: Program) -> Iterator[Declined]:
    """Hooks that would see scaled gradients; scripts for Apex had them so all along."""
    for node, _, scope in program.nodes():
        if not (isinstance(node, ast.Attribute) and node.attr in GRADIENT_HOOKS and isinstance(node.ctx, ast.Load)):
            continue
        call = scope.module.parents.get(node)
        if isinstance(call, ast.Call) and call.func is node:
            if call.args and not program.flow.callees(call) and _goes_on(program, call, scope):
                yield _meets_exchanges(scope.module, call)
                continue
            if call.args and not program.flow.callees(call) and _gives_its_own(program, call, scope):
                yield _replaces(scope.module, call)
                continue
            if program.flow.callees(call) or (call.args and _is_right_in_any_unit(program, call, scope)):
                continue
            if _only_tests_the_scale(program, call, scope) or (call.args and _keeps_for_nobody(program, call, scope)):
                continue
            yield _sees_scaled(scope.module, call)
        elif not any(value.kind == "function" for value in program.flow.values(node, scope)):
            yield _sees_scaled(scope.module, node)
    for site in program.calls_to(GRADIENT_HOOK_FUNCTIONS):
        yield _sees_scaled(site.module, site.node)
    yield from _exchanges_anew(program)


def _exchanges_anew(program: Program) -> Iterator[Declined]:
    """Hooks of wrappers that do more with the gradients of a bucket than to exchange them: ``clamp_`` wants a unit."""
    for call, _, scope in program.calls():
        hook = _exchange_hook(call)
        if hook is None:
            continue
        text = f"`{scope.module.text(call)}`"
        of_torch, own = _hooks(program, hook, scope)
        if not all(map(_only_exchanges, own)):
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                scope.module,
                call,
                f"{text} changes gradients where they are exchanged, and they are scaled there",
                "divide by `amp.scaler.get_scale()` in the hook, and multiply what it gives back, then migrate by hand",
            )
            continue
        keeping = sorted(of_torch - KEEP_NO_GRADIENTS)
        if not keeping and (of_torch or own) and not any(map(_may_keep, own)):
            continue
        if KEEP_ERRORS.issuperset(keeping) and keeping:
            found = (
                f"{text} keeps what `{keeping[0]}` cuts off of the gradients for the next step: they are scaled there, "
                "so what is kept does not fit once the scale changes, and the first gradient that overflows leaves NaN "
                "in it, after which every step is skipped"
            )
        else:
            found = f"{text} exchanges scaled gradients by a hook that may keep something of them from step to step"
        yield declining.decline(
            declining.GRADIENT_ACCESS,
            scope.module,
            call,
            found,
            "register a hook that keeps nothing, as `fp16_compress_hook`, or none, then migrate",
        )


def _exchange_hook(call: ast.Call) -> ast.expr | None:
    """The hook that a call registers with a wrapper; the call itself where it names none."""
    name = own_name(call.func)
    if name == EXCHANGE_HOOK and isinstance(call.func, ast.Attribute):
        return argument_at(call, "hook", 1) or call
    if name == EXCHANGE_HOOK_FUNCTION:
        return argument_at(call, "comm_hook_type", 0) or call
    return None


def _hooks(program: Program, hook: ast.expr, scope: Scope) -> tuple[set[str], list[FunctionFacts]]:
    """The last names of the hooks of libraries that an expression may be, and those of the project."""
    if isinstance(hook, ast.Call) and own_name(hook.func) in WRAPS_EXCHANGES and hook.args:
        return _hooks(program, hook.args[0], scope)
    names: set[str] = set()
    own: list[FunctionFacts] = []
    for value in program.flow.values(hook, scope):
        value = value.ref if value.kind == "partial" else value
        if value.kind == "function":
            own.append(value.ref)
        else:
            names.add(str(value.ref).rpartition(".")[2] if value.kind in ("external", "object") else "")
    return names, own


def _only_exchanges(info: FunctionFacts) -> bool:
    """Whether all that a hook of a wrapper calls gives something that grows with the gradients."""
    return all(
        not isinstance(node, ast.Call) or own_name(node.func) in EXCHANGES_OF_BUCKETS for node in walk(info.node)
    )


def _may_keep(info: FunctionFacts) -> bool:
    """Whether a hook puts more into an attribute than a count: ``state.error = buffer - sent``."""
    for node in walk(info.node):
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets = [node.target]
        else:
            continue
        kept = [item for target in targets for item in walk(target) if isinstance(item, ast.Attribute)]
        if not isinstance(node.value, ast.Constant) and any(isinstance(item.ctx, ast.Store) for item in kept):
            return True
    return False


def _sees_scaled(module: Module, node: ast.AST) -> Declined:
    return declining.decline(
        declining.GRADIENT_ACCESS,
        module,
        node,
        f"`{module.text(node)}` reads gradients while they are scaled",
        "divide by `amp.scaler.get_scale()` in the hook, then migrate by hand",
    )


def _meets_exchanges(module: Module, node: ast.AST) -> Declined:
    return declining.decline(
        declining.GRADIENT_ACCESS,
        module,
        node,
        f"`{module.text(node)}` starts exchanges of gradients that go on behind the backward pass, and the unscaling "
        "that what waits for them wants would meet these",
        "wait for the exchange in the hook, and divide there, then migrate",
    )


def _replaces(module: Module, node: ast.AST) -> Declined:
    return declining.decline(
        declining.GRADIENT_ACCESS,
        module,
        node,
        f"`{module.text(node)}` gives a gradient of its own in place of one that is scaled: it would be divided by the "
        "scale as well",
        "multiply what the hook gives by `amp.scaler.get_scale()`, then migrate by hand",
    )


def _gives_its_own(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook gives a gradient that has nothing to do with the one it is given: ``lambda grad: kept[key]``."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in _REPLACE_GRADIENTS):
        return False
    if not _ignores_gradients(program, call.args[0], scope):
        return False
    hooks = [value.ref for value in program.flow.values(call.args[0], scope) if value.kind == "function"]
    return any(_is_value(item) for info in hooks for item in _given_back(info))


def _given_back(info: FunctionFacts) -> list[ast.expr]:
    return [info.node.body] if isinstance(info.node, ast.Lambda) else list(info.returns)


def _is_value(node: ast.expr) -> bool:
    """Whether an expression is a value for certain: what a function is called for may be what it does."""
    return not isinstance(node, (ast.Call, ast.Constant))


def _goes_on(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook starts exchanges (``async_op=True``), and a function that waits for some uses gradients."""
    hooks = [value.ref for value in program.flow.values(call.args[0], scope) if value.kind == "function"]
    starts = any(
        isinstance(node, ast.Call) and literal(keyword(node, "async_op")) is True
        for info in hooks
        for node in walk(info.node)
    )
    return starts and any(
        any(isinstance(node, ast.Call) and own_name(node.func) == "wait" for node in program.nodes_of(body))
        and any(isinstance(node, ast.Attribute) and node.attr == GRADIENT for node in program.nodes_of(body))
        for body, _ in program.bodies
    )


def _is_right_in_any_unit(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook looks at nothing that it is given, or what a tensor's hook gives back grows with the gradient."""
    if _ignores_gradients(program, call.args[0], scope):
        return True
    is_tensors = isinstance(call.func, ast.Attribute) and call.func.attr == "register_hook"
    values = program.flow.values(call.args[0], scope)
    return is_tensors and bool(values) and all(value.kind == "function" and keeps_scale(value.ref) for value in values)


def _only_tests_the_scale(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook of the loss itself asks for no more than whether a number is one, and gives nothing back.

    The gradient of what the backward pass starts from is the scale, which is always a number. Any other gradient may
    overflow, as the scaler expects; a hook that raises then would end the training.
    """
    assert isinstance(call.func, ast.Attribute)
    owner = blocks.path_of(call.func.value) if isinstance(call.func.value, (ast.Name, ast.Attribute)) else None
    following = blocks.place(scope.module, blocks.statement_of(scope.module, call))
    starts = False
    for later in following.suite[following.index + 1 :]:
        if owner in blocks.writes(later):
            break
        starts = any(
            isinstance(item.loss, (ast.Name, ast.Attribute)) and blocks.path_of(item.loss) == owner
            for item in program.backwards
            if item.statement is later
        )
        if starts:
            break
    values = program.flow.values(call.args[0], scope) if call.args and starts else set()
    return bool(values) and all(value.kind == "function" and _only_asks_for_numbers(value.ref) for value in values)


def _only_asks_for_numbers(info: FunctionFacts) -> bool:
    """``if torch.isnan(grad).any(): raise ...``."""
    if isinstance(info.node, ast.Lambda) or info.cls is not None or info.yields or any(info.returns):
        return False
    given = set(info.parameters)
    parents = info.module.module.parents
    for node in walk(info.node):
        if isinstance(node, ast.Name) and node.id in given:
            parent = parents[node]
            call = parents.get(parent) if isinstance(parent, ast.Attribute) else parent
            if not (isinstance(call, ast.Call) and own_name(call.func) in TESTS_OF_NUMBERS):
                return False
    return True


def _keeps_for_nobody(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook only keeps the gradient in attributes that nothing which is called reads.

    Attention maps of classes are drawn with such gradients, by another script.
    """
    values = program.flow.values(call.args[0], scope)
    kept = {name for value in values for name in _kept_by(value)}
    if not values or not all(map(_kept_by, values)):
        return False
    idle = uncalled(program)
    for module in program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Constant) and node.value in kept:
                return False
            if isinstance(node, ast.Attribute) and node.attr in kept and not isinstance(node.ctx, ast.Store):
                if idle.isdisjoint(module.ancestors(node)):
                    return False
    return True


def _kept_by(value: Value) -> set[str]:
    """The attributes in which a hook keeps what it is given; none where it does anything else."""
    info: FunctionFacts | None = value.ref if value.kind == "function" else None
    if info is None or isinstance(info.node, ast.Lambda) or info.receiver is None:
        return set()
    found = set()
    for item in info.node.body:
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
            continue
        target = item.targets[0] if isinstance(item, ast.Assign) and len(item.targets) == 1 else None
        given = item.value if isinstance(item, ast.Assign) else None
        if not isinstance(target, ast.Attribute) or blocks.path_of(target.value) != info.receiver:
            return set()
        if not isinstance(given, ast.Name) or given.id not in info.parameters:
            return set()
        found.add(target.attr)
    return found


def _changes_nothing(info: FunctionFacts) -> bool:
    """Whether a hook only computes variables of its own: ``grad_input = (grad * 0.1 for grad in grad_input)``.

    What it gives back would take the place of the gradient; as a variable it is dropped.
    """
    if isinstance(info.node, ast.Lambda) or any(info.returns) or info.yields:
        return False
    for statement in info.node.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or isinstance(statement, ast.Pass):
            continue
        if not isinstance(statement, ast.Assign) or not all(isinstance(item, ast.Name) for item in statement.targets):
            return False
        calls = [node for node in walk(statement.value) if isinstance(node, ast.Call)]
        if any(not isinstance(call.func, ast.Name) or call.func.id not in _MAKES_ANEW for call in calls):
            return False
        if any(isinstance(node, ast.NamedExpr) for node in walk(statement.value)):
            return False
    return not any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in walk(info.node))


def _ignores_gradients(program: Program, hook: ast.expr, scope: Scope) -> bool:
    """Whether a hook is a function of the project that looks at nothing of what it is given, or changes nothing."""
    values = program.flow.values(hook, scope)
    for value in values:
        if value.kind != "function":
            return False
        info: FunctionFacts = value.ref
        given = set(info.parameters) - ({"self"} if info.cls is not None else set())
        if _changes_nothing(info):
            continue
        if any(isinstance(node, ast.Name) and node.id in given for node in walk(info.node)):
            return False
        if any(program.runs_step(part) for part in blocks.own_parts(info.node)):
            return False  # it steps while other gradients are still to come
    return bool(values)
