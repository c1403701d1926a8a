"""Passes through the model inside a DistributedDataParallel, of whose loss the wrapper averages no gradient."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator

from amp_rules.checks.common.origins import functions_called
from amp_rules.checks.common.rank_branches import uses_framework
from amp_rules.source import blocks
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import FileIndex, Function
from amp_rules.source.syntax import last_name, spelling
from amp_rules.torch.gradients import RECORDS_NOTHING
from amp_rules.torch.idioms import (
    NAMED_AVERAGES_GRADIENTS,
    NAMED_AVERAGING,
    NAMED_CLIPPING,
    NAMED_EVALUATION,
    NAMED_SAVING,
)
from amp_rules.torch.varying import ASKS_KIND
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL, WATCHING_METHODS

_WITHOUT_GRADIENT = frozenset("detach item tolist numpy".split())
_OF_MODULES = frozenset(
    """
    apply cpu cuda eval float half load_state_dict modules named_modules named_parameters parameters register_buffer
    requires_grad_ state_dict to train zero_grad generate sample
    """.split()
)
"""Methods of models whose result is no part of a loss."""


def passes_around(
    module: ModuleFacts, is_wrapped: Callable[[ast.expr], bool], *, by_name: bool = False
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of a wrapped model's inside that a loss is computed from, and ``model`` of ``model.module``.

    Args:
        module: the file.
        is_wrapped: whether an expression holds a model in its wrapper.
        by_name: whether the inside is looked for by the names that it is given too: ``inner = model.module``.
    """
    index = module.index
    if "backward" not in index.words or "no_sync" in index.words or uses_framework(module):
        return
    around = [(call, held) for call in index.calls if (held := _wrapper_around(call)) is not None]
    if by_name and "module" in index.words:
        around += _calls_by_name(index)
    if not around or _averages_by_hand(index):
        return
    inside = {call for call, _ in around}
    for call, held in around:
        if not is_wrapped(held) or _in_evaluation(module, call):
            continue
        if any(True for _ in _backward_functions(module, call)) and not _is_called(module, held, call, inside):
            yield call, held


def _wrapper_around(call: ast.Call) -> ast.expr | None:
    """``model`` of ``model.module(x)`` and ``model.module.loss(x)``."""
    func = call.func
    if not (call.args or call.keywords) or not isinstance(func, ast.Attribute):
        return None
    if isinstance(func.value, ast.IfExp):
        # ``(model if alone else model.module).loss(x)``
        inside = func.attr not in _OF_MODULES and not NAMED_EVALUATION.search(func.attr)
        return _either_way(func.value) if inside else None
    if func.attr != "module":
        if func.attr in _OF_MODULES or NAMED_EVALUATION.search(func.attr) or not isinstance(func.value, ast.Attribute):
            return None
        func = func.value
    return func.value if func.attr == "module" and spelling(func.value) is not None else None


def _calls_by_name(index: FileIndex) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield ``inner(x)``, ``inner.layer(x)`` and ``inner[i](x)`` below ``inner = model.module``, with ``model``."""
    taken = [
        (target.id, held, statement)
        for target, value, statement in index.assignments
        if isinstance(target, ast.Name) and (held := _unwrapped(value)) is not None
    ]
    for call in index.calls if taken else ():
        name = call.func
        if isinstance(name, ast.Attribute) and (name.attr in _OF_MODULES or NAMED_EVALUATION.search(name.attr)):
            continue
        while isinstance(name, (ast.Attribute, ast.Subscript)):
            name = name.value
        if not isinstance(name, ast.Name) or not (call.args or call.keywords):
            continue
        for inner, held, statement in taken:
            if inner == name.id and index.scope(statement) is index.scope(call) and index.precedes(statement, call):
                yield call, held
                break


def _unwrapped(node: ast.expr) -> ast.expr | None:
    """``model`` of ``model.module``, and of ``model if alone else model.module``."""
    if isinstance(node, ast.IfExp):
        return _either_way(node)
    inside = isinstance(node, ast.Attribute) and node.attr == "module" and spelling(node.value) is not None
    return node.value if inside and isinstance(node, ast.Attribute) else None


def _either_way(node: ast.IfExp) -> ast.expr | None:
    """``model`` of ``model if alone else model.module``."""
    for one, other in ((node.body, node.orelse), (node.orelse, node.body)):
        if isinstance(other, ast.Attribute) and other.attr == "module" and spelling(one) is not None:
            if spelling(other.value) == spelling(one):
                return other.value
    return None


def _averages_by_hand(index: FileIndex) -> bool:
    """Whether the file communicates gradients itself."""
    if any(NAMED_AVERAGES_GRADIENTS.search(name) for name in index.named):
        return True
    reduced = [call for name in ("all_reduce", "allreduce") for call in index.named.get(name, ())]
    return any(index.scope(use) is index.scope(call) for call in reduced for use in index.uses("grad"))


def _in_evaluation(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether nothing is recorded where a call stands, or its function says that it does not train."""
    for item in module.index.ancestors(node):
        if isinstance(item, (ast.With, ast.AsyncWith)):
            if any(_last(part.context_expr) in RECORDS_NOTHING for part in item.items):
                return True
        elif isinstance(item, Function):
            if NAMED_EVALUATION.search(item.name) or any(
                _last(part) in RECORDS_NOTHING for part in item.decorator_list
            ):
                return True
    return False


def _last(node: ast.expr) -> str:
    return last_name(node.func if isinstance(node, ast.Call) else node)


_DEEPEST = 2
"""Functions between a forward pass and its backward pass: a method for the loss, and one for the step."""


def _backward_functions(module: ModuleFacts, call: ast.Call, depth: int = _DEEPEST) -> Iterator[ast.AST | None]:
    """The functions with a backward pass that begins at the result of a call, and the file for its own statements."""
    index = module.index
    scope = index.scope(call)
    held = _computed_from(module, call)
    for backward in index.named.get("backward", ()):
        if index.scope(backward) is scope and _uses(backward, call, held):
            yield scope
    if depth and isinstance(scope, Function):
        for item in ast.walk(scope):
            if isinstance(item, ast.Return) and item.value is not None and _uses(item.value, call, held):
                for caller in index.callers(scope):
                    yield from _backward_functions(module, caller, depth - 1)
                return


def _computed_from(module: ModuleFacts, call: ast.Call) -> set[str]:
    """The variables of a function that hold what is computed from the result of a call."""
    index = module.index
    scope = index.scope(call)
    bindings = [(target, value) for target, value, statement in index.assignments if index.scope(statement) is scope]
    for item in ast.walk(scope or module.module.tree):
        if isinstance(item, (ast.AugAssign, ast.For)) and index.scope(item) is scope:
            bindings.append((item.target, item.value if isinstance(item, ast.AugAssign) else item.iter))
        elif isinstance(item, (ast.With, ast.AsyncWith)) and index.scope(item) is scope:
            # ``with amp.scale_loss(loss, optimizer) as scaled_loss``
            bindings += [(part.optional_vars, part.context_expr) for part in item.items if part.optional_vars]
    held: set[str] = set()
    for _ in range(len(bindings)):
        found = {name for target, value in bindings if _uses(value, call, held) for name in _names(target)}
        if found <= held:
            break
        held |= found
    return held


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _names(item)
    else:
        if isinstance(target, (ast.Subscript, ast.Starred)):
            target = target.value
        name = spelling(target)
        if name is not None:
            yield name


def _uses(value: ast.AST, call: ast.Call, held: set[str]) -> bool:
    """Whether an expression is computed from a call's result or from variables, with its gradient."""
    if value is call:
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _WITHOUT_GRADIENT:
        return False
    if isinstance(value, (ast.Name, ast.Attribute)) and spelling(value) in held:
        return True
    return any(_uses(item, call, held) for item in ast.iter_child_nodes(value) if isinstance(item, _EXPRESSIONS))


_EXPRESSIONS = (ast.expr, ast.keyword, ast.comprehension)


def _is_called(module: ModuleFacts, held: ast.expr, call: ast.Call, inside: Container[ast.AST]) -> bool:
    """Whether the wrapper is called, or handed on, where the file trains."""
    index = module.index
    name = last_name(held)
    training = {index.scope(item) for item in index.named.get("backward", ())} | {index.scope(call)}
    for item in index.calls:
        if index.scope(item) in training:
            training |= {function.node for function in functions_called(module, item) if function.module is module}
    return any(
        last_name(item.func) == name or _hands_on(item, name)
        for item in index.calls
        # ``loss = model(x) if warm_up else model.module.sample(x)``, as branches: one of them runs.
        if item not in inside and index.scope(item) in training
        if index.scope(item) is not index.scope(call) or not blocks.exclude_each_other(module.module, item, call)
        if not _in_evaluation(module, item) and not _wraps(module, item)
    )


def _hands_on(call: ast.Call, name: str) -> bool:
    """Whether a function that may compute with a model is given it."""
    called = last_name(call.func)
    if called in ASKS_KIND | WATCHING_METHODS or NAMED_EVALUATION.search(called) or NAMED_SAVING.search(called):
        return False
    if NAMED_AVERAGING.search(spelling(call.func) or "") or NAMED_CLIPPING.search(called):
        return False
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(isinstance(item, (ast.Name, ast.Attribute)) and last_name(item) == name for item in given)


def _wraps(module: ModuleFacts, call: ast.Call) -> bool:
    return module.dotted(call.func) in DISTRIBUTED_DATA_PARALLEL
